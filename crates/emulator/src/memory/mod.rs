//! What a program may touch: allocations by address, physical memory, reserved ranges, and what other processes and
//! APIs share.

pub mod allocation;
pub mod external;
pub mod imported;
pub mod physical;
pub mod registry;
pub mod virtual_range;
