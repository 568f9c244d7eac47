//! The device plugin for clusters before DRA: NVIDIA's configuration file as it is, with slices behind the replicas.
//!
//! - [`config`]: the file.
//! - [`resources`]: which resources the node's devices are then, and the ids that the kubelet counts.
//! - [`prefer`]: which of them a pod had better get.
//! - [`allocate`]: makes the slice of an allocation, and ends it.
//! - [`granted`]: slices of pods that the scheduler extender placed.
//! - [`left`]: what a plugin left behind on a node that has claims now.
//! - [`serve`]: the sockets, and the registration with the kubelet.

pub mod allocate;
pub mod config;
pub mod granted;
pub mod left;
pub mod prefer;
pub mod resources;
pub mod serve;
