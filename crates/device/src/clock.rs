//! The device clock: one source of time for events, %globaltimer and whatever reports it.
//!
//! It is the machine's monotonic clock, and before it where a device's time is modelled without waiting for it
//! (`fast-forward`): by the *leap*, which only grows.

use std::sync::atomic::{AtomicU64, Ordering};

/// How far the device clock is before the machine's, in nanoseconds, as far as this process has heard.
static LEAP: AtomicU64 = AtomicU64::new(0);

/// Nanoseconds now. Monotonic, so that an event's elapsed time is never negative; its zero is the epoch of
/// CLOCK_MONOTONIC, the same for every process of the host.
pub fn now_ns() -> u64 {
    real_ns().saturating_add(LEAP.load(Ordering::Relaxed))
}

/// The machine's clock, in nanoseconds.
pub fn real_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Hears of a leap; the largest one so far. More than thirty years is rubbish.
pub fn leap(heard: u64) -> u64 {
    if heard < 1 << 60 {
        LEAP.fetch_max(heard, Ordering::AcqRel).max(heard)
    } else {
        LEAP.load(Ordering::Relaxed)
    }
}

/// Time of the CPU that the calling thread has used, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}
