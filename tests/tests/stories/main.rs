//! End-to-end scenarios: what a user does with Divvy, on the real binaries and real clients.
//!
//! Each scenario has a host of its own (`divvy_tests::host::Host`): a run directory, an agent and emulated devices that
//! no other scenario sees, so they run side by side.

mod accounts;
mod agent;
mod attach;
mod audit;
mod clients;
mod cluster;
mod coexistence;
mod command;
mod compute;
mod containers;
mod day;
mod death;
mod devices;
mod emulate;
mod enforced;
mod engines;
mod examples;
mod fallback;
mod frameworks;
// The suite that `attacks` names is the other one, which is to be quick.
mod holder;
#[path = "attacks.rs"]
mod images;
mod kubernetes;
mod lasting;
mod leases;
mod lives;
mod machines;
mod memory;
mod metrics;
mod mig;
mod nesting;
mod nri;
mod nvcc;
mod opencl;
mod passthrough;
mod remote;
mod remote_hosts;
mod restart;
mod rootless;
mod shortage;
mod slurm;
mod supervised;
mod tools;
mod trouble;
mod unlimited;
mod vm_restore;
mod vm_run;
mod workers;
mod wrapper;
