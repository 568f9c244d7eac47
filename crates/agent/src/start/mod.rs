//! The agent's run directory and settings, and its start on demand.

pub(crate) mod log;
pub(crate) mod on_demand;
pub(crate) mod rundir;
pub(crate) mod settings;
pub(crate) mod trust;
