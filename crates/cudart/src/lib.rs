//! The CUDA runtime API over the driver API: what stands behind libcudart.so.12 and libcudart.so.13.
//!
//! Everything goes through the libcuda.so.1 that the loader finds: the emulated device's, a limiter's, a stub's of a
//! worker, or NVIDIA's own. See docs/adr/0058.
//!
//! * [`TABLE_12`] and [`TABLE_13`]: the runtimes of CUDA 12 and of CUDA 13. What is not implemented answers
//!   `cudaErrorNotSupported`.
//!
//! Functions of the C interface are in `api/`, one file for each area. What they share is here: the driver, a thread's
//! device and last error, and what nvcc's code registers.
// Names are C's. A body of `entry!` is a closure that is called at once, so that `?` works in it; a few have nothing unsafe.
#![allow(
    non_snake_case,
    non_upper_case_globals,
    missing_docs,
    unused_unsafe,
    clippy::redundant_closure_call,
    clippy::too_many_arguments,
    clippy::missing_safety_doc
)]

#[macro_use]
mod macros;
mod api;
mod context;
mod driver;
mod error;
mod registry;
mod unsupported;

/// What every file of the interface uses.
mod prelude {
    pub use crate::context::{context, device_count};
    pub use crate::error::{Result, refuse};
    pub use divvy_abi::runtime::*;
    pub use divvy_abi::*;
}

pub use api::table::{TABLE_12, TABLE_13};
