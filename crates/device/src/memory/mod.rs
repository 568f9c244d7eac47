//! Device and host memory by identity addresses: a device pointer is the host address of its bytes.

pub mod charge;
pub mod file;
pub mod free_list;
pub mod heap;
pub mod mapping;
pub mod store;
pub mod zeros;
