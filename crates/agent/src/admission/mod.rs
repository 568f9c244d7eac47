//! A request on its way to a slice: what it resolves to, which devices it gets, and which requests wait.

pub(crate) mod admit;
pub(crate) mod asked;
pub(crate) mod claims;
pub(crate) mod create;
pub(crate) mod home;
pub(crate) mod owner;
pub(crate) mod place;
pub(crate) mod queue;
pub(crate) mod waiters;
pub(crate) mod wanted;
