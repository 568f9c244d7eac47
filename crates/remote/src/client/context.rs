//! Contexts with parameters that are lists of lists: those without any are made as before.
#![allow(non_snake_case)]

use divvy_abi::*;

use super::TABLE;

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuCtxCreate_v4(
    pctx: *mut CUcontext,
    ctxCreateParams: *mut CUctxCreateParams,
    flags: u32,
    dev: CUdevice,
) -> CUresult {
    // SAFETY: the program vouches for its pointers.
    unsafe {
        let params = ctxCreateParams.as_ref();
        if params.is_some_and(|all| all.numExecAffinityParams != 0 || !all.cigParams.is_null()) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        (TABLE.cuCtxCreate_v2)(pctx, flags, dev)
    }
}
