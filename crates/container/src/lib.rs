//! Devices and slices in containers.
//!
//! - [`cdi`]: files that tell any engine with CDI what a device or a slice is made of.
//! - [`inject`]: what a container of a slice has mounted, and why nothing more.
//!
//! docs/adr/0028 says what was decided and why.
#![forbid(unsafe_code)]

pub mod cdi;
pub mod inject;
