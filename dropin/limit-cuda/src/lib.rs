//! The limiter's library: a libcuda.so.1 that stands in front of another one.

divvy_abi::export_table_unguarded!(divvy_limiter::TABLE);

/// The settings are read before the program runs, so that it may clean its environment.
#[used]
#[unsafe(link_section = ".init_array")]
static CAPTURE_ENVIRONMENT: extern "C" fn() = divvy_limiter::capture_environment;
