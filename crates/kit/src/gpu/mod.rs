//! The driver as a program has it: libcuda.so.1 from wherever the loader finds it, behind safe functions.

mod driver;
mod kernels;
mod memory;

pub use driver::{CudaError, Gpu};
pub use kernels::{Kernel, SPAN_PTX};
pub use memory::{Held, Pool, Way};
