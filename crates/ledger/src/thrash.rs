//! What a slice's processes find out about thrashing (pages that move to and fro): hints, in a page that they can
//! write.

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use crate::layout::{ThrashLine, monotonic_ns};

/// The state of a slice that uses more memory than its share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thrash {
    /// How much of the memory that kernels could touch lies beyond the share, in parts of 10,000.
    pub pressure: u32,
    /// How long it has been thrashing, if it does.
    pub lasting: Option<Duration>,
    /// How often thrashing began.
    pub episodes: u64,
}

/// Thrashing that no process has confirmed for this long is over: processes check only when they launch.
const FRESH_NS: u64 = 2_000_000_000;

impl ThrashLine {
    fn is_fresh(&self) -> bool {
        monotonic_ns().saturating_sub(self.noted_at_ns.load(Relaxed)) < FRESH_NS
    }

    pub(crate) fn read(&self) -> Thrash {
        let since = match self.since_ns.load(Relaxed) {
            since if self.is_fresh() => since,
            _ => 0,
        };
        Thrash {
            pressure: self.pressure.load(Relaxed),
            lasting: (since != 0).then(|| Duration::from_nanos(monotonic_ns().saturating_sub(since))),
            episodes: self.episodes.load(Relaxed),
        }
    }

    pub(crate) fn note(&self, pressure: u32, thrashing: bool) {
        self.pressure.store(pressure, Relaxed);
        if !thrashing || !self.is_fresh() {
            self.since_ns.store(0, Relaxed);
        }
        self.noted_at_ns.store(monotonic_ns(), Relaxed);
        if thrashing
            && self
                .since_ns
                .compare_exchange(0, monotonic_ns().max(1), Relaxed, Relaxed)
                .is_ok()
        {
            self.episodes.fetch_add(1, Relaxed);
        }
    }
}
