//! What the agent decides, as pure functions of what it knows: no I/O, no clock, no locks. Times and looks at the host
//! are handed in.

pub(crate) mod admission;
pub(crate) mod compute;
pub(crate) mod modes;
pub(crate) mod nesting;
pub(crate) mod placement;
pub(crate) mod policy;
pub(crate) mod quota;
