//! What the agent sees of devices and processes, and compares with what slices say.

pub(crate) mod audit;
pub mod bypass;
pub(crate) mod devices;
pub(crate) mod meter;
pub(crate) mod openings;
pub(crate) mod requests;
pub(crate) mod silence;
pub(crate) mod wanted;
