//! The agent's decisions, as pure functions of what it knows: no I/O, no clock, no locks. Times and looks at the host
//! are passed in.

pub(crate) mod admission;
pub(crate) mod compute;
pub(crate) mod family;
pub(crate) mod held;
pub(crate) mod in_use;
pub(crate) mod life;
pub(crate) mod mig;
pub(crate) mod modes;
pub(crate) mod nesting;
pub(crate) mod overhead;
pub(crate) mod placement;
pub(crate) mod policy;
pub(crate) mod queue;
pub(crate) mod quota;
pub(crate) mod record;
pub(crate) mod resize;
pub(crate) mod rules;
pub(crate) mod supervise;

#[cfg(test)]
mod tests;
