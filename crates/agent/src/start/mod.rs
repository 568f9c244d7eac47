//! Where an agent lives, what it is told, and how one is started on demand.

pub(crate) mod log;
pub(crate) mod on_demand;
pub(crate) mod rundir;
pub(crate) mod settings;
pub(crate) mod trust;
