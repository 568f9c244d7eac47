//! The limiter's NVML: a libnvidia-ml.so.1 that shows the slice, in front of another one.

divvy_abi::export_nvml_table!(divvy_limiter::nvml::TABLE);

/// The settings are read before the program runs, so that it may clean its environment.
#[used]
#[unsafe(link_section = ".init_array")]
static CAPTURE_ENVIRONMENT: extern "C" fn() = divvy_limiter::capture_environment;
