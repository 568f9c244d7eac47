//! Functions that hand out device memory.
#![allow(non_snake_case)]

use divvy_abi::{CU_MEM_ATTACH_GLOBAL, CUdeviceptr, CUdeviceptr_v1, CUresult, guard};

use super::charge::{charged, kept};
use super::spill;
use crate::account;
use crate::below::forward;
use crate::books::held::Piece;
use crate::books::{grain, rounded};

/// Reads an out-parameter that the driver has just filled in.
///
/// # Safety
/// `out` is what the driver took as valid for writing.
#[inline]
unsafe fn filled<T: Copy + Into<u64>>(out: *const T) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { out.read() }.into()
}

macro_rules! allocations {
    ($($name:ident($out:ident: $of:ty, $bytes:ident: $size:ty $(, $rest:ident: $rest_type:ty)*);)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(
            $out: $of,
            $bytes: $size
            $(, $rest: $rest_type)*
        ) -> CUresult {
            guard(|| {
                charged(
                    $bytes as u64,
                    // SAFETY: the arguments are handed on as they came.
                    || unsafe { forward::$name($out, $bytes $(, $rest)*) },
                    // SAFETY: read only after the driver said that it filled it in.
                    || unsafe { filled($out) },
                )
            })
        })*
    };
}

allocations! {
    cuMemAlloc(out: *mut CUdeviceptr_v1, bytes: u32);
}

pub(super) unsafe extern "C-unwind" fn cuMemAlloc_v2(out: *mut CUdeviceptr, bytes: usize) -> CUresult {
    guard(|| {
        spill::charged_or_spilled(
            bytes as u64,
            // SAFETY: the arguments are handed on as they came.
            || unsafe { forward::cuMemAlloc_v2(out, bytes) },
            // SAFETY: as above.
            || unsafe { forward::cuMemAllocManaged(out, bytes, CU_MEM_ATTACH_GLOBAL.0) },
            // SAFETY: read only after the driver said that it filled it in.
            || unsafe { filled(out) },
        )
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
        // SAFETY: read only after the driver said that it filled it in.
        spill::managed(bytes as u64, call, || unsafe { filled(out) })
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

/// Rows are charged at the driver's pitch, which is known only afterwards: reserved by the usual one, then corrected.
fn pitched(
    width: u64,
    height: u64,
    mut call: impl FnMut() -> CUresult,
    filled_in: impl FnOnce() -> (CUdeviceptr, u64),
) -> CUresult {
    let account = match account::current() {
        Ok(Some(account)) => account,
        Ok(None) => return call(),
        Err(code) => return code,
    };
    // Every device so far pitches rows to a multiple of 512 bytes.
    let expected = rounded(width).saturating_mul(height);
    if let Err(code) = account::look_around(expected) {
        return code;
    }
    let most = grain::most(account, expected);
    if let Err(code) = account::take(account, most, "an allocation of rows") {
        return code;
    }
    let result = account::calling(account, most, &mut call);
    if !result.is_success() {
        return result;
    }
    let (pointer, pitch) = filled_in();
    let bytes = rounded(pitch.saturating_mul(height));
    kept(account, Piece { pointer, bytes }, most)
}
