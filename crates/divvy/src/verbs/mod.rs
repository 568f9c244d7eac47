//! One file per verb: its flags, and what it does.

pub mod agent;
pub mod cdi;
pub mod completions;
pub mod compute;
pub mod config;
pub mod devices;
pub mod doctor;
pub mod enter;
pub mod environment;
pub mod events;
pub mod explain;
pub mod inspect;
pub mod keep;
pub mod kill;
pub mod man;
pub mod mig;
pub mod mps;
pub mod partition;
pub mod ps;
pub mod resize;
pub mod run;
pub mod sharing;
pub mod slice;
pub mod top;
pub mod topology;
pub mod vgpu;
