//! More than one instruction: control flow, barriers, warps, memory spaces, atomics, faults, refusals.

#[path = "../support/mod.rs"]
mod support;

mod alignment;
mod async_copy;
mod atomics;
mod barrier;
mod branches;
mod calls;
mod cooperative;
mod faults;
mod foreign;
mod memory;
mod probe;
mod programs;
mod refusals;
mod registers;
mod shuffle;
mod timing;
mod vote;
