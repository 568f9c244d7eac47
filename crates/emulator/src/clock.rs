//! The device clock: one source of time for events, %globaltimer and whatever reports it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds now. Monotonic, so that an event's elapsed time is never negative; its zero is the epoch of
/// CLOCK_MONOTONIC, the same for every process of the host.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds since 1970, for lines in the log.
pub fn wall_ns() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos())
}
