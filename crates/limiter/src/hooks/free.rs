//! Functions that free device memory: each takes pointers of either kind, synchronous and stream-ordered.
#![allow(non_snake_case)]

use divvy_abi::{CUdeviceptr, CUdeviceptr_v1, CUresult, CUstream, guard};

use crate::below::forward;
use crate::charges::CHARGES;
use crate::driver;

macro_rules! frees {
    ($($name:ident($of:ty);)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(pointer: $of) -> CUresult {
            guard(|| {
                // SAFETY: the arguments are handed on as they came.
                CHARGES.free(CUdeviceptr::from(pointer), || unsafe { forward::$name(pointer) })
            })
        })*
    };
}

frees! {
    cuMemFree(CUdeviceptr_v1);
    cuMemFree_v2(CUdeviceptr);
}

macro_rules! stream_ordered_frees {
    ($($name:ident, $per_thread:literal;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(pointer: CUdeviceptr, stream: CUstream) -> CUresult {
            guard(|| {
                let named = driver::stream(stream, $per_thread);
                // SAFETY: the arguments are handed on as they came.
                CHARGES.free_in(named, pointer, || unsafe { forward::$name(pointer, stream) })
            })
        })*
    };
}

stream_ordered_frees! {
    cuMemFreeAsync, false;
    cuMemFreeAsync_ptsz, true;
}
