//! The result of a hook, in Rust's form and in C's.

use divvy_abi::nvml::{NVML_SUCCESS, nvmlReturn_t};

/// The result of a call: an error is NVML's code.
pub(super) type Result<T = ()> = core::result::Result<T, nvmlReturn_t>;

/// A hook's result as C expects it.
pub(super) fn code(outcome: Result) -> nvmlReturn_t {
    match outcome {
        Ok(()) => NVML_SUCCESS,
        Err(code) => code,
    }
}

/// The return value of the library below as a hook's result.
pub(super) fn done(answer: nvmlReturn_t) -> Result {
    if answer == NVML_SUCCESS {
        Ok(())
    } else {
        Err(answer)
    }
}
