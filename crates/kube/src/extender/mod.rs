//! The scheduler extender, for clusters without DRA: filter, prioritize and bind.
//!
//! - [`wire`]: what kube-scheduler sends, and gets.
//! - [`objects`]: devices of nodes and grants of pods, as annotations have them.
//! - [`cluster`]: what is asked of the API server, behind a trait.
//! - [`service`]: the answers; [`watching`] keeps the ledger as the API server has it.
//!
//! docs/adr/0053 says why a bind needs no lock and no time limit.

pub mod cluster;
pub mod objects;
pub mod service;
pub mod watching;
pub mod wire;
