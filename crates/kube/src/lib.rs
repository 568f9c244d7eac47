//! Slices for pods: the DRA driver `gpu.divvy.dev` of a node.
//!
//! - [`devices`]: the node's devices as ResourceSlices.
//! - [`publish`]: brings them to the API server, and reads back what it kept.
//! - [`claim`], [`parameters`]: what a claim was allocated, and the terms that its author wrote.
//! - [`node`]: prepares claims, each with its slice, and takes them back.
//! - [`server`]: the two sockets that the kubelet dials.
//! - [`cluster`]: what is asked of the API server, behind a trait; [`live`] asks a real one.
//!
//! docs/kubernetes.md says what works, docs/adr/0051 why it is so.
#![forbid(unsafe_code)]

pub mod authority;
pub mod claim;
pub mod cluster;
pub mod devices;
mod grpc;
pub mod live;
pub mod node;
pub mod parameters;
pub mod publish;
pub mod quantity;
pub mod server;
pub mod state;

/// The driver's name.
pub const DRIVER: &str = "gpu.divvy.dev";
