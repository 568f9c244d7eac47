//! The device's engine: one for all processes, on the one device clock.
//!
//! - `schedule`: the timeline, pure
//! - `page`: the timeline as all processes share it
//! - `copy`: what processes that only look read of it
//! - `mps`: processes that run on it together
//! - `usage`: which processes kept it busy
//! - `corruption`: what the fuzz target does with the page
//! - `client`: this process's part: kernels executed ahead of the clock, their ends signalled when the clock is there
//!
//! docs/adr/0024 has the decisions.

pub mod client;
mod copy;
pub mod corruption;
pub mod mps;
pub mod page;
pub mod schedule;
pub mod usage;
