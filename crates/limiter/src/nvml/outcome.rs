//! What a hook comes to, as Rust and as C say it.

use divvy_abi::nvml::{NVML_SUCCESS, nvmlReturn_t};

/// What a call comes to: an NVML error is its code.
pub(super) type Result<T = ()> = core::result::Result<T, nvmlReturn_t>;

/// A hook's outcome as C expects it.
pub(super) fn code(outcome: Result) -> nvmlReturn_t {
    match outcome {
        Ok(()) => NVML_SUCCESS,
        Err(code) => code,
    }
}

/// The answer of the library below as a hook's outcome.
pub(super) fn done(answer: nvmlReturn_t) -> Result {
    if answer == NVML_SUCCESS {
        Ok(())
    } else {
        Err(answer)
    }
}
