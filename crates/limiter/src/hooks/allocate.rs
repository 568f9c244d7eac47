//! Functions that hand out device memory.
#![allow(non_snake_case)]

use divvy_abi::{CU_MEM_ATTACH_GLOBAL, CUdeviceptr, CUdeviceptr_v1, CUresult, guard};

use crate::account;
use crate::below::forward;
use crate::charges::CHARGES;

/// Reads an out-parameter that the driver has just filled in.
///
/// # Safety
/// `out` is what the driver took as valid for writing.
#[inline]
unsafe fn filled<T: Copy + Into<u64>>(out: *const T) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { out.read() }.into()
}

pub(super) unsafe extern "C-unwind" fn cuMemAlloc(out: *mut CUdeviceptr_v1, bytes: u32) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came.
        let call = || unsafe { forward::cuMemAlloc(out, bytes) };
        match account::current() {
            // SAFETY: read only after the driver said that it filled it in.
            Ok(Some(account)) => CHARGES.allocate(account, bytes.into(), call, || unsafe { filled(out) }),
            Ok(None) => call(),
            Err(code) => code,
        }
    })
}

pub(super) unsafe extern "C-unwind" fn cuMemAlloc_v2(out: *mut CUdeviceptr, bytes: usize) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came.
        let call = || unsafe { forward::cuMemAlloc_v2(out, bytes) };
        // SAFETY: as above.
        let managed = || unsafe { forward::cuMemAllocManaged(out, bytes, CU_MEM_ATTACH_GLOBAL.0) };
        // SAFETY: read only after the driver said that it filled it in.
        let pointer = || unsafe { filled(out) };
        match account::current() {
            Ok(Some(account)) => CHARGES.allocate_or_spill(account, bytes as u64, call, managed, pointer),
            Ok(None) => call(),
            Err(code) => code,
        }
    })
}

pub(super) unsafe extern "C-unwind" fn cuMemAllocManaged(
    out: *mut CUdeviceptr,
    bytes: usize,
    flags: u32,
) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came.
        let call = || unsafe { forward::cuMemAllocManaged(out, bytes, flags) };
        match account::current() {
            Ok(Some(account)) => {
                // SAFETY: read only after the driver said that it filled it in.
                CHARGES.allocate_managed(account, bytes as u64, call, || unsafe { filled(out) })
            }
            Ok(None) => call(),
            Err(code) => code,
        }
    })
}

pub(super) unsafe extern "C-unwind" fn cuMemAllocPitch(
    out: *mut CUdeviceptr_v1,
    pitch: *mut u32,
    width: u32,
    height: u32,
    element: u32,
) -> CUresult {
    guard(|| {
        pitched(
            width.into(),
            height.into(),
            // SAFETY: the arguments are handed on as they came.
            || unsafe { forward::cuMemAllocPitch(out, pitch, width, height, element) },
            // SAFETY: read only after the driver said that it filled them in.
            || unsafe { (filled(out), filled(pitch)) },
        )
    })
}

pub(super) unsafe extern "C-unwind" fn cuMemAllocPitch_v2(
    out: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> CUresult {
    guard(|| {
        pitched(
            width as u64,
            height as u64,
            // SAFETY: the arguments are handed on as they came.
            || unsafe { forward::cuMemAllocPitch_v2(out, pitch, width, height, element) },
            // SAFETY: read only after the driver said that it filled them in.
            || unsafe { (filled(out), pitch.read() as u64) },
        )
    })
}

fn pitched(
    width: u64,
    height: u64,
    mut call: impl FnMut() -> CUresult,
    filled_in: impl FnOnce() -> (CUdeviceptr, u64),
) -> CUresult {
    match account::current() {
        Ok(Some(account)) => CHARGES.allocate_rows(account, (width, height), call, filled_in),
        Ok(None) => call(),
        Err(code) => code,
    }
}
