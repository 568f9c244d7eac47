//! The device clock: one source of time for events, %globaltimer and whatever reports it.

/// Nanoseconds now. Monotonic, so that an event's elapsed time is never negative; its zero is the epoch of
/// CLOCK_MONOTONIC, the same for every process of the host.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
