//! Effects of sharing modes: the preparation of a device before its first slice, and its undoing after the last.

pub(crate) mod keep;
pub(crate) mod on_demand;
pub(crate) mod prerequisites;
pub(crate) mod untidy;
