//! The gate over a device that is only a clock; the test plays the agent.

#[path = "../device/mod.rs"]
mod device;
mod ends;
mod kit;
mod launches;
mod leases;
mod long;
mod streams;
#[path = "../support/mod.rs"]
mod support;

const MS: u64 = 1_000_000;
/// The report that no work is in flight comes at most this long before its end, so that the next process's first kernel
/// comes in time. A kernel may also be shorter than measured.
const AHEAD_NS: u64 = MS / 2;
const ROLE: &str = "DIVVY_TEST_ROLE";
