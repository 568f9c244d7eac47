//! The beginning: what programs ask first comes in one answer, together with the greeting of the first thread.
#![allow(non_snake_case)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use divvy_abi::*;

use super::visible::{Uuid, of_program};
use super::{device, thread};
use crate::wire::by_hand::START;
use crate::wire::{Malformed, Reader};

/// What the server has told.
#[derive(Clone)]
struct Told {
    code: CUresult,
    /// The driver's version, where it tells it: 12040 is 12.4.
    version: Option<i32>,
    /// The program's devices in their order.
    devices: Vec<CUdevice>,
}

static TOLD: RwLock<Option<Told>> = RwLock::new(None);
/// Whether the program has called cuInit with success.
static INITIALIZED: AtomicBool = AtomicBool::new(false);

/// The program may make other calls.
///
/// # Errors
/// It has not called cuInit with success, or there is no server.
#[inline]
pub fn require() -> Result<(), CUresult> {
    match INITIALIZED.load(Ordering::Relaxed) {
        true => Ok(()),
        false => thread::open_at_any_time().and(Err(CUDA_ERROR_NOT_INITIALIZED)),
    }
}

fn told() -> Option<Told> {
    TOLD.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Whether the server has told it already.
pub fn is_told() -> bool {
    TOLD.read().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// Takes an answer: the version, the devices, and the attributes of those for which there was room.
pub fn take(m: &mut Reader<'_>, code: CUresult) -> Result<(), Malformed> {
    let (known, version): (bool, i32) = (m.flag()?, m.plain()?);
    let mut devices = Vec::new();
    if code == CUDA_SUCCESS {
        for word in m.list(4)?.ok_or(Malformed)?.as_chunks::<4>().0 {
            devices.push(CUdevice::from_le_bytes(*word));
        }
        let mut uuids = Vec::new();
        for _ in &devices {
            uuids.extend(m.bytes(size_of::<Uuid>())?.first_chunk());
        }
        devices = of_program(&devices, &uuids);
        while m.flag()? {
            device::take(m.plain()?, m)?;
        }
    }
    *TOLD.write().unwrap_or_else(PoisonError::into_inner) = Some(Told {
        code,
        version: known.then_some(version),
        devices,
    });
    Ok(())
}

/// Asks again.
fn ask() -> CUresult {
    thread::call_at_any_time(START, |_| {}, take)
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuInit(Flags: u32) -> CUresult {
    if Flags != 0 {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // The first thread's greeting asks, too.
    if let Err(code) = thread::open_at_any_time() {
        return code;
    }
    let code = match told() {
        Some(told) if told.code == CUDA_SUCCESS => CUDA_SUCCESS,
        // It may be otherwise by now.
        _ => ask(),
    };
    if code == CUDA_SUCCESS {
        INITIALIZED.store(true, Ordering::Relaxed);
    }
    code
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuDriverGetVersion(driverVersion: *mut i32) -> CUresult {
    if driverVersion.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if let Err(code) = thread::open_at_any_time() {
        return code;
    }
    if !is_told() {
        ask();
    }
    match told().map(|told| told.version.ok_or(told.code)) {
        Some(Ok(version)) => {
            // SAFETY: the program vouches for its pointer, which is not null.
            unsafe { driverVersion.write(version) };
            CUDA_SUCCESS
        }
        Some(Err(code)) if code != CUDA_SUCCESS => code,
        _ => CUDA_ERROR_UNKNOWN,
    }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuDeviceGetCount(count: *mut i32) -> CUresult {
    if let Err(code) = require() {
        return code;
    }
    let Some(told) = told().filter(|_| !count.is_null()) else {
        return CUDA_ERROR_INVALID_VALUE;
    };
    // SAFETY: the program vouches for its pointer, which is not null.
    unsafe { count.write(told.devices.len() as i32) };
    CUDA_SUCCESS
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuDeviceGet(device: *mut CUdevice, ordinal: i32) -> CUresult {
    if let Err(code) = require() {
        return code;
    }
    let Some(told) = told().filter(|_| !device.is_null()) else {
        return CUDA_ERROR_INVALID_VALUE;
    };
    let known = usize::try_from(ordinal)
        .ok()
        .and_then(|ordinal| told.devices.get(ordinal));
    let Some(known) = known else {
        return CUDA_ERROR_INVALID_DEVICE;
    };
    // SAFETY: the program vouches for its pointer, which is not null.
    unsafe { device.write(*known) };
    CUDA_SUCCESS
}
