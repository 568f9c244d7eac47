//! The agent's view of devices and processes, and its comparison with what slices report.

pub(crate) mod audit;
pub mod bypass;
pub(crate) mod devices;
pub(crate) mod meter;
pub(crate) mod opened;
pub(crate) mod openings;
pub(crate) mod requests;
pub(crate) mod silence;
pub(crate) mod wanted;
