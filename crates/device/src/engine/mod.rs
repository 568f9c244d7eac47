//! The device's engine: one for all processes, on the one device clock.
//!
//! - `schedule`: the time line, pure
//! - `page`: the line as all processes share it
//! - `copy`: what is read of it by those who only look
//! - `mps`: processes that run on it together
//! - `usage`: who kept it busy
//! - `scribble`: what the fuzz target does with the page
//! - `line`: this process's part: kernels executed ahead of the clock, their ends signalled when the clock is there
//!
//! docs/adr/0024 has the decisions.

mod copy;
pub mod line;
pub mod mps;
pub mod page;
pub mod schedule;
pub mod scribble;
pub mod usage;
