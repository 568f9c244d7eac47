//! Descriptions of NVML's results, as nvmlErrorString gives them.

use core::ffi::CStr;

use super::*;

// In the header's order, which is by number.
const DESCRIPTIONS: &[(nvmlReturn_t, &CStr)] = &[
    (NVML_SUCCESS, c"Success"),
    (NVML_ERROR_UNINITIALIZED, c"Uninitialized"),
    (NVML_ERROR_INVALID_ARGUMENT, c"Invalid Argument"),
    (NVML_ERROR_NOT_SUPPORTED, c"Not Supported"),
    (NVML_ERROR_NO_PERMISSION, c"Insufficient Permissions"),
    (NVML_ERROR_ALREADY_INITIALIZED, c"Already Initialized"),
    (NVML_ERROR_NOT_FOUND, c"Not Found"),
    (NVML_ERROR_INSUFFICIENT_SIZE, c"Insufficient Size"),
    (NVML_ERROR_INSUFFICIENT_POWER, c"Insufficient External Power"),
    (NVML_ERROR_DRIVER_NOT_LOADED, c"Driver Not Loaded"),
    (NVML_ERROR_TIMEOUT, c"Timeout"),
    (NVML_ERROR_IRQ_ISSUE, c"Interrupt Request Issue"),
    (NVML_ERROR_LIBRARY_NOT_FOUND, c"NVML Shared Library Not Found"),
    (NVML_ERROR_FUNCTION_NOT_FOUND, c"Function Not Found"),
    (NVML_ERROR_CORRUPTED_INFOROM, c"Corrupted infoROM"),
    (NVML_ERROR_GPU_IS_LOST, c"GPU is lost"),
    (NVML_ERROR_RESET_REQUIRED, c"GPU requires reset"),
    (
        NVML_ERROR_OPERATING_SYSTEM,
        c"GPU access blocked by the operating system",
    ),
    (
        NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        c"Driver/library version mismatch",
    ),
    (NVML_ERROR_IN_USE, c"In use by another client"),
    (NVML_ERROR_MEMORY, c"Insufficient Memory"),
    (NVML_ERROR_NO_DATA, c"No data"),
    (NVML_ERROR_VGPU_ECC_NOT_SUPPORTED, c"vGPU ECC not supported"),
    (NVML_ERROR_INSUFFICIENT_RESOURCES, c"Insufficient Resources"),
    (NVML_ERROR_FREQ_NOT_SUPPORTED, c"Invalid Frequency"),
    (NVML_ERROR_ARGUMENT_VERSION_MISMATCH, c"Argument version mismatch"),
    (
        NVML_ERROR_DEPRECATED,
        c"Requested functionality has been deprecated",
    ),
    (NVML_ERROR_NOT_READY, c"System is not in ready state"),
    (NVML_ERROR_GPU_NOT_FOUND, c"No GPUs found"),
    (
        NVML_ERROR_INVALID_STATE,
        c"Resource not in correct state to perform requested operation",
    ),
    (NVML_ERROR_RESET_TYPE_NOT_SUPPORTED, c"Reset type not supported"),
];

impl nvmlReturn_t {
    /// What nvmlErrorString says of this result; of a code it does not know, "Unknown Error".
    pub fn description(self) -> &'static CStr {
        DESCRIPTIONS
            .iter()
            .find(|(code, _)| *code == self)
            .map_or(c"Unknown Error", |(_, text)| text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_header_is_described() {
        let known = (0..1000).map(nvmlReturn_t).filter(|code| code.label().is_some());
        for code in known.filter(|code| *code != NVML_ERROR_UNKNOWN) {
            assert_ne!(code.description(), c"Unknown Error", "{code:?}");
        }
        assert_eq!(NVML_ERROR_UNKNOWN.description(), c"Unknown Error");
        assert_eq!(nvmlReturn_t(4711).description(), c"Unknown Error");
    }
}
