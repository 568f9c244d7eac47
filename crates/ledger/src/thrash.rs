//! What a slice's processes find out about pages moving to and fro: hints, in a page that they can write.

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use crate::layout::{ThrashLine, monotonic_ns};

/// The state of a slice that uses more memory than its share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thrash {
    /// How much of what kernels could touch lies beyond the share, in parts of 10,000.
    pub pressure: u32,
    /// How long it has been thrashing, if it does.
    pub lasting: Option<Duration>,
    /// Times that it began to.
    pub episodes: u64,
}

impl ThrashLine {
    pub(crate) fn read(&self) -> Thrash {
        let since = self.since_ns.load(Relaxed);
        Thrash {
            pressure: self.pressure.load(Relaxed),
            lasting: (since != 0).then(|| Duration::from_nanos(monotonic_ns().saturating_sub(since))),
            episodes: self.episodes.load(Relaxed),
        }
    }

    pub(crate) fn note(&self, pressure: u32, thrashing: bool) {
        self.pressure.store(pressure, Relaxed);
        if !thrashing {
            self.since_ns.store(0, Relaxed);
        } else if self
            .since_ns
            .compare_exchange(0, monotonic_ns().max(1), Relaxed, Relaxed)
            .is_ok()
        {
            self.episodes.fetch_add(1, Relaxed);
        }
    }
}
