//! The current context, and primary contexts, which the server counts.
#![allow(non_snake_case)]

use divvy_abi::*;

use super::arguments::take_word;
use super::{given, start, thread};
use crate::handle::{Id, Kind, Word};
use crate::wire::by_hand::{PRIMARY_RELEASE, PRIMARY_RESET, PRIMARY_RETAIN, SET_CURRENT};

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) -> CUresult {
    if pctx.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    thread::call(
        PRIMARY_RETAIN,
        Symbol::cuDevicePrimaryCtxRetain,
        |m| m.plain(start::to_worker(dev)),
        |m, good| match good {
            // SAFETY: the program vouches for its pointer.
            true => unsafe { take_word(m, pctx) },
            false => Ok(()),
        },
    )
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuCtxSetCurrent(ctx: CUcontext) -> CUresult {
    let bits = ctx.bits();
    let is_context = Id::from_bits(bits).is_some_and(|id| id.kind() == Kind::Context);
    if !Kind::Context.is_constant(bits) && !is_context {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    // A context that is gone is told of by the next call that waits.
    thread::submit(
        SET_CURRENT,
        Symbol::cuCtxSetCurrent,
        |m| m.plain(bits),
        |_, _| Ok(()),
    )
}

macro_rules! of_a_device {
    ($($name:ident $id:ident;)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        pub unsafe extern "C-unwind" fn $name(dev: CUdevice) -> CUresult {
            let code = thread::call($id, Symbol::$name, |m| m.plain(start::to_worker(dev)), |_, _| Ok(()));
            if code == CUDA_SUCCESS {
                // The last reference ends the context.
                given::ended(Kind::Context, 0);
            }
            code
        }
    )*};
}

of_a_device! {
    cuDevicePrimaryCtxRelease PRIMARY_RELEASE;
    cuDevicePrimaryCtxRelease_v2 PRIMARY_RELEASE;
    cuDevicePrimaryCtxReset PRIMARY_RESET;
    cuDevicePrimaryCtxReset_v2 PRIMARY_RESET;
}
