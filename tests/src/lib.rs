//! What the end-to-end tests stand on: a host of their own for each test, tenants that can be talked to, and the real
//! clients. The scenarios themselves are in `tests/stories`.
#![forbid(unsafe_code)]

pub mod api_server;
pub mod booted;
pub mod build;
pub mod bundles;
pub mod clients;
pub mod cluster;
pub mod containerd;
pub mod containers;
pub mod dra;
pub mod golden;
pub mod host;
pub mod hostile;
pub mod isolation;
pub mod kubelet;
pub mod machine;
pub mod old_cluster;
pub mod passthrough;
pub mod plugin_host;
pub mod pod_resources;
pub mod processes;
pub mod rootless;
pub(crate) mod scheduler;
pub mod slurm;
pub mod slurm_accounts;
pub mod system;
pub mod tenant;
pub mod users;
pub mod wait;
pub mod walker;

/// Bytes in a mebibyte.
pub const MIB: u64 = 1 << 20;
/// Bytes in a gibibyte.
pub const GIB: u64 = 1 << 30;
