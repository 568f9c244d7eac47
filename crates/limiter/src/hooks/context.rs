//! Functions that free memory by ending a context.
//!
//! Which allocations went with it is the driver's knowledge: afterwards each pointer that we hold a charge for is
//! asked about, and the charge of those that the driver no longer knows goes back. That costs nothing at allocation,
//! and gets shared and pooled memory right, which outlives a context.
#![allow(non_snake_case)]

use core::mem::MaybeUninit;

use divvy_abi::{
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CUDA_ERROR_INVALID_VALUE, CUcontext, CUdevice, CUresult, guard,
};

use crate::account;
use crate::below::forward;
use crate::books::{CHARGED, returned};

macro_rules! context_ends {
    ($($name:ident($argument:ident: $of:ty) $(unless $alive:ident)?;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name($argument: $of) -> CUresult {
            guard(|| {
                // SAFETY: the argument is handed on as it came.
                let result = unsafe { forward::$name($argument) };
                if result.is_success() $(&& !$alive($argument))? {
                    return_charges_of_the_gone();
                }
                result
            })
        })*
    };
}

context_ends! {
    cuCtxDestroy(context: CUcontext);
    cuCtxDestroy_v2(context: CUcontext);
    cuCtxDetach(context: CUcontext);
    cuDevicePrimaryCtxRelease(device: CUdevice) unless is_active;
    cuDevicePrimaryCtxRelease_v2(device: CUdevice) unless is_active;
    cuDevicePrimaryCtxReset(device: CUdevice);
    cuDevicePrimaryCtxReset_v2(device: CUdevice);
}

/// Whether somebody still holds the device's primary context: some libraries retain and release it at every turn.
fn is_active(device: CUdevice) -> bool {
    let mut flags = 0;
    let mut active = 0;
    // SAFETY: both out-parameters are ours.
    let result = unsafe { forward::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) };
    result.is_success() && active != 0
}

fn return_charges_of_the_gone() {
    if !account::keeps_books() {
        return;
    }
    for (pointer, charge) in CHARGED.snapshot() {
        let mut kind = MaybeUninit::<u64>::zeroed();
        // SAFETY: the attribute is 4 bytes wide and `kind` has room; the driver checks the pointer.
        let answer = unsafe {
            forward::cuPointerGetAttribute(
                kind.as_mut_ptr().cast(),
                CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                pointer,
            )
        };
        // Any other answer leaves it open whether the memory is gone: the charge stays.
        if answer == CUDA_ERROR_INVALID_VALUE
            && let Some(charge) = CHARGED.take_if(pointer, |present| present == charge)
        {
            returned(charge);
        }
    }
}
