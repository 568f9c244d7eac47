//! Memory of one process in another: cuIpcGetMemHandle and its kin.
//!
//! Rules and codes are those of the driver API's manual, "Memory Management". The handle is of the whole allocation,
//! whichever address in it is given. Opening a handle again in a context gives the same address and counts. A process
//! cannot open its own handles, which NVIDIA's driver answers with CUDA_ERROR_INVALID_CONTEXT.

use super::args::Out;
use super::capture::unsafe_call;
use super::current;
use crate::Result;
use crate::check;
use crate::driver::{Driver, driver};
use crate::memory::allocation::{Allocation, Backing, Kind};
use crate::memory::imported::{Imported, Own, export};
use divvy_abi::*;
use divvy_device::Device;
use divvy_device::shared::key::{BYTES, Key, Lock};
use divvy_device::shared::ownership::Id;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How often each open import was opened, by buffer id.
static OPENINGS: Mutex<Option<HashMap<u64, u64>>> = Mutex::new(None);

entry! {
    fn cuIpcGetMemHandle(handle: Out<CUipcMemHandle>, pointer: u64) {
        handle.required()?;
        let driver = driver()?;
        let found = driver.addresses.live.find(pointer).filter(|found| found.kind == Kind::Device);
        let allocation = found.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if let Some(checker) = check::on() {
            checker.all_written(allocation.base);
        }
        let device = &driver.devices[allocation.device];
        let key = key(Lock::Memory, device.facts.uuid.0, share(device, &allocation)?, &allocation);
        handle.set(CUipcMemHandle { reserved: key.to_bytes().map(|byte| byte as c_char) })
    }

    fn cuIpcOpenMemHandle_v2 | cuIpcOpenMemHandle(pointer: Out<CUdeviceptr>, handle: CUipcMemHandle, flags: u32) {
        open(&pointer, &handle, flags)
    }

    fn cuIpcCloseMemHandle(pointer: u64) {
        unsafe_call()?;
        let driver = driver()?;
        let imported = |found: &Allocation| found.kind == Kind::Imported { pool: 0 };
        let found = driver.addresses.live.find(pointer).filter(|found| found.base == pointer && imported(found));
        let found = found.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if closed_once(found.buffer_id) {
            return Ok(());
        }
        // Work of any context of the device may use it.
        for context in driver.contexts.all() {
            context.drain();
        }
        // Another thread may have opened it again meanwhile. Then that thread has the address, and this was one closing
        // of two.
        let gone = {
            let mut openings = openings();
            let openings = openings.get_or_insert_default();
            if count_down(openings, found.buffer_id) {
                return Ok(());
            }
            openings.remove(&found.buffer_id);
            driver.addresses.live.remove(pointer, |other| other.buffer_id == found.buffer_id)
        };
        gone.map(drop).ok_or(CUDA_ERROR_INVALID_VALUE)
    }
}

/// Lists an allocation as one that others may open. Returns the name of its pages' ownership record, and where in the
/// pages it starts.
pub fn share(device: &Device, allocation: &Allocation) -> Result<(Id, u32)> {
    let extent = allocation.extent().ok_or(CUDA_ERROR_INVALID_VALUE)?;
    export(device, extent, allocation.buffer_id)
}

/// The key to an allocation whose ownership record is known.
pub fn key(lock: Lock, scope: [u8; 16], place: (Id, u32), allocation: &Allocation) -> Key {
    Key {
        lock,
        scope,
        id: place.0,
        allocation: allocation.buffer_id,
        offset: place.1,
        bytes: allocation.bytes,
    }
}

/// Makes an import known under its address; gives that.
pub fn register(driver: &Driver, imported: Imported, pool: u64, context: u64, device: usize) -> Result<u64> {
    let (address, bytes) = (imported.address(), imported.key.bytes);
    let (kind, backing) = (Kind::Imported { pool }, Backing::Imported(Arc::new(imported)));
    let allocation = Allocation::new(address, bytes, kind, context, device, backing);
    driver
        .addresses
        .live
        .insert(Arc::new(allocation))
        .map_err(|_| CUDA_ERROR_UNKNOWN)?;
    Ok(address)
}

fn openings() -> MutexGuard<'static, Option<HashMap<u64, u64>>> {
    OPENINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether an import was opened more than once; then it is closed once.
fn closed_once(buffer_id: u64) -> bool {
    count_down(openings().get_or_insert_default(), buffer_id)
}

fn count_down(openings: &mut HashMap<u64, u64>, buffer_id: u64) -> bool {
    match openings.get_mut(&buffer_id) {
        Some(count) if *count > 1 => {
            *count -= 1;
            true
        }
        _ => false,
    }
}

fn open(out: &Out<CUdeviceptr>, handle: &CUipcMemHandle, flags: u32) -> Result {
    out.required()?;
    unsafe_call()?;
    let context = current::usable()?;
    if flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let driver = driver()?;
    let bytes: [u8; BYTES] = handle.reserved.map(|byte| byte as u8);
    let key = Key::read(&bytes, Lock::Memory).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    let device = driver
        .devices
        .iter()
        .find(|device| device.facts.uuid.0 == key.scope);
    let device = device.ok_or(CUDA_ERROR_INVALID_DEVICE)?;
    // One opening at a time: two of the same key must find each other.
    let mut openings = openings();
    let openings = openings.get_or_insert_default();
    let same = |found: &Allocation| {
        found.context == context.handle && found.imported().is_some_and(|imported| imported.key == key)
    };
    if let Some(found) = driver.addresses.live.find_where(same) {
        *openings.entry(found.buffer_id).or_insert(1) += 1;
        return out.set(found.base);
    }
    let imported = Imported::open(device, key, Own::Refused)?;
    out.set(register(driver, imported, 0, context.handle, device.ordinal)?)
}
