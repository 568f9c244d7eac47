//! What is answered in the program: addresses of functions, and texts.
#![allow(non_snake_case)]

use core::ffi::CStr;

use divvy_abi::*;

use super::TABLE;

/// Writes a value, where there is a place for it.
///
/// # Safety
/// `to` is null or may be written.
unsafe fn write<T>(to: *mut T, value: T) -> CUresult {
    if to.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the caller vouches for the place.
    unsafe { to.write(value) };
    CUDA_SUCCESS
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuGetErrorName(error: CUresult, text: *mut *const c_char) -> CUresult {
    // SAFETY: the program vouches for its pointer.
    unsafe { told(error.name(), text) }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuGetErrorString(error: CUresult, text: *mut *const c_char) -> CUresult {
    // SAFETY: the program vouches for its pointer.
    unsafe { told(error.description(), text) }
}

/// # Safety
/// `to` is null or may be written.
unsafe fn told(text: Option<&'static CStr>, to: *mut *const c_char) -> CUresult {
    // SAFETY: promised by the caller.
    let written = unsafe { write(to, text.map_or(std::ptr::null(), CStr::as_ptr)) };
    if text.is_none() {
        CUDA_ERROR_INVALID_VALUE
    } else {
        written
    }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuGetProcAddress(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    cudaVersion: i32,
    flags: cuuint64_t,
) -> CUresult {
    // SAFETY: the program vouches for its pointers.
    unsafe { cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, std::ptr::null_mut()) }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    cudaVersion: i32,
    flags: cuuint64_t,
    symbolStatus: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    if symbol.is_null() || pfn.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the program vouches for its string.
    let name = unsafe { CStr::from_ptr(symbol) };
    let query = name
        .to_str()
        .map_or(Query::Unknown, |name| query(name, cudaVersion, flags));
    let (code, address) = match query {
        Query::Found(symbol) => (
            CUDA_SUCCESS,
            exported(symbol).unwrap_or(TABLE.address(symbol)).cast_mut(),
        ),
        _ => (CUDA_ERROR_NOT_FOUND, std::ptr::null_mut()),
    };
    // SAFETY: the program vouches for its pointers; the status is not wanted where it is null.
    unsafe {
        pfn.write(address);
        write(symbolStatus, query.into());
    }
    code
}
