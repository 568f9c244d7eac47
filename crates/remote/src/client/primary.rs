//! Primary contexts, which the server counts.
#![allow(non_snake_case)]

use divvy_abi::*;

use super::arguments::take_word;
use super::thread;
use crate::wire::by_hand::{PRIMARY_RELEASE, PRIMARY_RESET, PRIMARY_RETAIN};

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) -> CUresult {
    if pctx.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    thread::call(
        PRIMARY_RETAIN,
        Symbol::cuDevicePrimaryCtxRetain,
        |m| m.plain(dev),
        |m, good| match good {
            // SAFETY: the program vouches for its pointer.
            true => unsafe { take_word(m, pctx) },
            false => Ok(()),
        },
    )
}

macro_rules! of_a_device {
    ($($name:ident $id:ident;)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        pub unsafe extern "C-unwind" fn $name(dev: CUdevice) -> CUresult {
            thread::call($id, Symbol::$name, |m| m.plain(dev), |_, _| Ok(()))
        }
    )*};
}

of_a_device! {
    cuDevicePrimaryCtxRelease PRIMARY_RELEASE;
    cuDevicePrimaryCtxRelease_v2 PRIMARY_RELEASE;
    cuDevicePrimaryCtxReset PRIMARY_RESET;
    cuDevicePrimaryCtxReset_v2 PRIMARY_RESET;
}
