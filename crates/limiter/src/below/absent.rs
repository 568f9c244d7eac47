//! The results without a driver below: the codes of a machine without a GPU, and never a crash.

use core::ffi::c_char;

use divvy_abi::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NO_DEVICE, CUDA_ERROR_NOT_INITIALIZED, CUDA_SUCCESS, CUresult, Table,
};

macro_rules! not_initialized {
    ([] $($name:ident ($public:literal, $since:literal, $stream:ident) ($($parameter:ident: $of:ty),*);)*) => {
        #[allow(non_snake_case)]
        mod uninitialized {
            $(
                pub unsafe extern "C-unwind" fn $name($(_: $of),*) -> divvy_abi::CUresult {
                    super::not_initialized()
                }
            )*
        }

        const UNINITIALIZED: Table = Table { $($name: uninitialized::$name),* };
    };
}

divvy_abi::driver_functions! { [not_initialized] }

/// The driver of a machine without one.
pub(super) const TABLE: Table = Table {
    cuInit: init,
    cuGetErrorName: error_name,
    cuGetErrorString: error_string,
    ..UNINITIALIZED
};

fn not_initialized() -> CUresult {
    CUDA_ERROR_NOT_INITIALIZED
}

unsafe extern "C-unwind" fn init(_flags: u32) -> CUresult {
    CUDA_ERROR_NO_DEVICE
}

unsafe extern "C-unwind" fn error_name(result: CUresult, out: *mut *const c_char) -> CUresult {
    // SAFETY: the program vouches for its out-parameter.
    unsafe { put(out, result.name().map(core::ffi::CStr::as_ptr)) }
}

unsafe extern "C-unwind" fn error_string(result: CUresult, out: *mut *const c_char) -> CUresult {
    // SAFETY: as above.
    unsafe { put(out, result.description().map(core::ffi::CStr::as_ptr)) }
}

/// # Safety
/// `out` is null or valid for writing.
unsafe fn put(out: *mut *const c_char, text: Option<*const c_char>) -> CUresult {
    if out.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    unsafe { out.write(text.unwrap_or(core::ptr::null())) };
    if text.is_some() {
        CUDA_SUCCESS
    } else {
        CUDA_ERROR_INVALID_VALUE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::CStr;

    #[test]
    fn without_a_driver_there_is_no_device_and_results_have_names() {
        let mut text = core::ptr::null();
        // SAFETY: valid out-parameters.
        unsafe {
            assert_eq!((TABLE.cuInit)(0), CUDA_ERROR_NO_DEVICE);
            assert_eq!(
                (TABLE.cuDeviceGetCount)(core::ptr::null_mut()),
                CUDA_ERROR_NOT_INITIALIZED
            );
            assert_eq!(
                (TABLE.cuGetErrorName)(CUDA_ERROR_NO_DEVICE, &raw mut text),
                CUDA_SUCCESS
            );
            assert_eq!(CStr::from_ptr(text), c"CUDA_ERROR_NO_DEVICE");
            assert_eq!(
                (TABLE.cuGetErrorString)(CUresult(4711), &raw mut text),
                CUDA_ERROR_INVALID_VALUE
            );
            assert!(text.is_null());
        }
    }
}
