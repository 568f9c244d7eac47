//! The beginning: what programs ask first comes in one answer, together with the greeting of the first thread.
#![allow(non_snake_case)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};

use divvy_abi::*;

use super::visible::{Uuid, of_program};
use super::{device, thread};
use crate::fork::OfProcess;
use crate::wire::by_hand::START;
use crate::wire::{Malformed, Reader};

/// What the server has told.
#[derive(Clone)]
struct Told {
    code: CUresult,
    /// The driver's version, where it tells it: 12040 is 12.4.
    version: Option<i32>,
    /// The worker's devices in their order, and their UUIDs.
    devices: Vec<CUdevice>,
    uuids: Vec<Uuid>,
}

static TOLD: OfProcess<RwLock<Option<Told>>> = OfProcess::new();
/// The worker's numbers of the program's devices: a program counts its own from 0. Chosen by the first cuInit that
/// succeeds, as on a device of one's own.
static DEVICES: OfProcess<OnceLock<Vec<CUdevice>>> = OfProcess::new();
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

/// The worker's number of a device of the program's, or of none.
pub fn to_worker(device: CUdevice) -> CUdevice {
    let devices = DEVICES.get().map_or(&[][..], Vec::as_slice);
    let known = usize::try_from(device).ok().and_then(|at| devices.get(at));
    match (known, device) {
        (Some(known), _) => *known,
        // CU_DEVICE_CPU is no number of a device.
        (None, -1) => -1,
        (None, _) => NO_DEVICE,
    }
}

/// The program's number of a device of the worker's, or of none.
pub fn from_worker(device: CUdevice) -> CUdevice {
    let devices = DEVICES.get().map_or(&[][..], Vec::as_slice);
    match devices.iter().position(|known| *known == device) {
        Some(at) => at as CUdevice,
        None if device < 0 => device,
        None => NO_DEVICE,
    }
}

/// CU_DEVICE_INVALID.
pub const NO_DEVICE: CUdevice = -2;

/// Whether this process is the child of one that has called cuInit, and has no device.
fn is_forked() -> bool {
    INITIALIZED.load(Ordering::Relaxed) && thread::is_forked()
}

/// Before the call of a forked child that is answered in the program.
pub fn require_here() -> Result<(), CUresult> {
    require()?;
    match is_forked() {
        false => Ok(()),
        true => Err(CUDA_ERROR_NOT_INITIALIZED),
    }
}

/// In the child of a process that asked something and has not called cuInit: what it was told is the parent's.
fn forget_parents() {
    if !INITIALIZED.load(Ordering::Relaxed) {
        thread::forget_parents();
    }
}

/// Whether the server has told it already.
pub fn is_told() -> bool {
    TOLD.read().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// Takes an answer: the version, the devices, and the attributes of those for which there was room.
pub fn take(m: &mut Reader<'_>, code: CUresult) -> Result<(), Malformed> {
    let (known, version): (bool, i32) = (m.flag()?, m.plain()?);
    let (mut devices, mut uuids) = (Vec::new(), Vec::new());
    if code == CUDA_SUCCESS {
        for word in m.list(4)?.ok_or(Malformed)?.as_chunks::<4>().0 {
            devices.push(CUdevice::from_le_bytes(*word));
        }
        for _ in &devices {
            uuids.extend(m.bytes(size_of::<Uuid>())?.first_chunk());
        }
        while m.flag()? {
            device::take(m.plain()?, m)?;
        }
    }
    *TOLD.write().unwrap_or_else(PoisonError::into_inner) = Some(Told {
        code,
        version: known.then_some(version),
        devices,
        uuids,
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
    if is_forked() {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    forget_parents();
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
        if let Some(told) = told() {
            DEVICES.get_or_init(|| of_program(&told.devices, &told.uuids));
        }
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
    forget_parents();
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
    if let Err(code) = require_here() {
        return code;
    }
    let Some(devices) = DEVICES.get().filter(|_| !count.is_null()) else {
        return CUDA_ERROR_INVALID_VALUE;
    };
    // SAFETY: the program vouches for its pointer, which is not null.
    unsafe { count.write(devices.len() as i32) };
    CUDA_SUCCESS
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuDeviceGet(device: *mut CUdevice, ordinal: i32) -> CUresult {
    if let Err(code) = require_here() {
        return code;
    }
    let Some(devices) = DEVICES.get().filter(|_| !device.is_null()) else {
        return CUDA_ERROR_INVALID_VALUE;
    };
    if !usize::try_from(ordinal).is_ok_and(|ordinal| ordinal < devices.len()) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    // SAFETY: the program vouches for its pointer, which is not null.
    unsafe { device.write(ordinal) };
    CUDA_SUCCESS
}
