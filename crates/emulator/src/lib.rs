//! An emulated device that really computes: memory, streams, modules, launches.

pub mod clock;
pub mod device;
pub mod exec;
pub mod image;
pub mod memory;
