//! Effects of the ways of sharing: what one needs on a device before its first slice, and what is put back after its last.

pub(crate) mod keep;
pub(crate) mod on_demand;
pub(crate) mod prerequisites;
pub(crate) mod untidy;
