//! One file per verb: its flags, and what it does. The verbs of devices and of containers have folders.

pub mod accelerators;
pub mod agent;
pub mod completions;
pub mod config;
pub mod container;
pub mod devices;
pub mod doctor;
pub mod enter;
pub mod environment;
pub mod events;
pub mod explain;
pub mod gpu;
pub mod guest;
pub mod inspect;
pub mod k8s;
pub mod keep;
pub mod kill;
pub mod man;
pub mod ps;
pub mod remote;
pub mod resize;
pub mod run;
pub mod selftest;
pub mod slice;
pub mod top;
