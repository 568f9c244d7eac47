//! Clusters without DRA: what pods ask for by extended resources, and what the scheduler extender counts and decides.

pub mod ask;
pub mod choose;
pub mod ledger;

pub use ask::{Ask, Prefer};
pub use ledger::{Gpu, Grant, Ledger, Refused};
