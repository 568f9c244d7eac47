//! Errors.

use core::ffi::c_char;

use crate::error;
use crate::prelude::*;

pub unsafe extern "C-unwind" fn cudaGetLastError() -> cudaError_t {
    let last = error::last();
    if !error::is_sticky(last) {
        error::forget();
    }
    last
}

pub unsafe extern "C-unwind" fn cudaPeekAtLastError() -> cudaError_t {
    error::last()
}

pub unsafe extern "C-unwind" fn cudaGetErrorName(code: cudaError_t) -> *const c_char {
    error::name(code)
}

pub unsafe extern "C-unwind" fn cudaGetErrorString(code: cudaError_t) -> *const c_char {
    error::description(code)
}
