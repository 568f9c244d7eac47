//! Slices for pods: the DRA driver `gpu.divvy.dev` of a node.
//!
//! - [`devices`]: the node's devices as ResourceSlices; [`order`] says which come first, [`split`] which are another driver's,
//!   and [`rivals`] which another driver publishes all the same.
//! - [`publish`]: brings them to the API server, and reads back what it kept.
//! - [`claim`], [`parameters`]: what a claim was allocated, and the terms that its author wrote.
//! - [`node`]: prepares claims, each with its slice, and takes them back; [`kept`]: the slices and their records.
//! - [`health`], [`pods`]: how devices are, and which pods have them.
//! - [`server`]: the two sockets that the kubelet dials.
//! - [`cluster`]: what is asked of the API server, behind a trait; [`live`] asks a real one.
//!
//! - [`names`]: what pods ask for by names of extended resources, Divvy's and others'.
//! - [`webhook`], [`templates`]: such pods get claims, or the extender's resources.
//! - [`extender`]: the scheduler extender, for clusters without DRA; [`grants`] are what it signs, and [`device_plugin`] makes slices
//!   of. [`https`] is the server of extender and webhook.
//! - [`migrate`]: the same for manifests in files.
//!
//! docs/kubernetes.md says what works, docs/adr/0051 why it is so.
#![forbid(unsafe_code)]

pub mod authority;
pub mod bites;
pub mod claim;
pub mod cluster;
pub mod counters;
pub mod device_plugin;
pub mod devices;
mod dial;
pub mod extender;
pub mod grants;
mod grpc;
pub mod health;
pub mod https;
pub mod kept;
pub mod live;
pub mod migrate;
pub mod names;
pub mod node;
pub mod order;
pub mod parameters;
pub mod pods;
mod points;
pub mod publish;
pub mod quantity;
pub mod rivals;
pub mod server;
pub mod split;
pub mod state;
pub mod templates;
pub mod webhook;

/// The driver's name.
pub const DRIVER: &str = "gpu.divvy.dev";
