//! The kernel's side: processes, peers, clocks, waiting, and the privileged helper.

pub(crate) mod allowance;
pub mod clock;
pub(crate) mod in_slice;
pub(crate) mod locks;
pub(crate) mod nodes;
pub(crate) mod nudge;
pub(crate) mod peer;
pub mod privilege;
pub(crate) mod procs;
pub(crate) mod watched;
