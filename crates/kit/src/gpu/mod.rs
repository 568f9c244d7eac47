//! The driver as a program has it: libcuda.so.1 from wherever the loader finds it, behind safe functions.

mod answers;
mod driver;
mod graphs;
mod kernels;
mod memory;
mod programs;
mod shared;

pub use driver::{CudaError, Gpu};
pub use graphs::Graph;
pub use kernels::{Kernel, Module, SPAN_PTX, Shape};
pub use memory::{Held, Pool, Way};
pub use programs::PROGRAMS;
pub use shared::{Exported, InGraph};
