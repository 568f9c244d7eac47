//! Devices and slices in containers.
//!
//! - [`cdi`]: files that tell any engine with CDI what a device or a slice is made of.
//! - [`inject`]: what a container of a slice has mounted, and why nothing more.
//! - [`engine`]: podman's and docker's command lines.
//! - [`oci`]: what an engine without CDI hands to its runtime, and what is added to it.
//! - [`configure`]: engines' configuration files.
//! - [`nri`]: a plugin of containerd's and CRI-O's.
//! - [`running`]: which container a process is in.
//! - [`unlimited`]: programs that the limiter is not loaded into.
//!
//! docs/adr/0028 to 0030 say what was decided and why.
#![forbid(unsafe_code)]

pub mod cdi;
pub mod configure;
pub mod engine;
pub mod inject;
pub mod nri;
pub mod oci;
pub mod running;
pub mod unlimited;
