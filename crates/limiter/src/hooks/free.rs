//! Functions that free device memory: each takes pointers of either kind, synchronous and stream-ordered.
#![allow(non_snake_case)]

use divvy_abi::{CUdeviceptr, CUdeviceptr_v1, CUresult, CUstream, guard};

use super::charge::freed;
use crate::below::forward;

macro_rules! frees {
    ($($name:ident($pointer:ident: $of:ty $(, $rest:ident: $rest_type:ty)*);)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name($pointer: $of $(, $rest: $rest_type)*) -> CUresult {
            guard(|| {
                // SAFETY: the arguments are handed on as they came.
                freed(CUdeviceptr::from($pointer), || unsafe { forward::$name($pointer $(, $rest)*) })
            })
        })*
    };
}

frees! {
    cuMemFree(pointer: CUdeviceptr_v1);
    cuMemFree_v2(pointer: CUdeviceptr);
    cuMemFreeAsync(pointer: CUdeviceptr, stream: CUstream);
    cuMemFreeAsync_ptsz(pointer: CUdeviceptr, stream: CUstream);
}
