//! Waiting for a process to give memory back.
//!
//! A release without waiters costs one relaxed load, of the cache line whose word it has just exchanged. Nothing here
//! decides anything: a lost wake, or a flag that a process overwrites, costs a waiter one pause.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;

use rustix::thread::futex;

use crate::layout::{LedgerPage, UsageLine, monotonic_ns};

impl UsageLine {
    /// After a release: wakes its waiters.
    #[inline]
    pub(crate) fn tell_waiters(&self) {
        if self.waited_for.load(Relaxed) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        // Cleared first: a waiter that still lacks memory sets it again, and checks again after that.
        self.waited_for.store(0, Relaxed);
        self.releases.fetch_add(1, Release);
        // It is not an error that no thread waits.
        let _woken = futex::wake(&self.releases, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Announces a waiter. It checks the memory once more before it sleeps on the number that this returns.
    pub(crate) fn announce(&self) -> u32 {
        let releases = self.releases.load(Acquire);
        self.waited_for.store(1, Release);
        releases
    }

    /// Sleeps until a release after `releases`, or for `pause`. A spurious wake does no harm.
    pub(crate) fn sleep(&self, releases: u32, pause: Duration) {
        let pause = futex::Timespec {
            tv_sec: i64::try_from(pause.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(pause.subsec_nanos()) as _,
        };
        let _why = futex::wait(&self.releases, futex::Flags::empty(), releases, Some(&pause));
    }
}

impl LedgerPage {
    /// Notes that a thread of process slot `slot` begins to wait, unless one already waits. Returns since when.
    pub(crate) fn begin_waiting(&self, slot: usize) -> u64 {
        let now = monotonic_ns().max(1);
        let since = &self.slots.0[slot].waiting_since_ns;
        match since.compare_exchange(0, now, Relaxed, Relaxed) {
            Ok(_) => now,
            Err(earlier) => earlier,
        }
    }

    /// Notes that process slot `slot` no longer waits.
    pub(crate) fn end_waiting(&self, slot: usize) {
        self.slots.0[slot].waiting_since_ns.store(0, Relaxed);
    }

    /// How many processes other than process slot `slot` have been waiting since before `since`.
    pub(crate) fn waiting_longer(&self, slot: usize, since: u64) -> usize {
        (0..self.slots_in_use())
            .filter(|&other| other != slot)
            .map(|other| &self.slots.0[other])
            .filter(|place| place.claimed.load(Acquire) != 0)
            .map(|place| place.waiting_since_ns.load(Relaxed))
            .filter(|&theirs| theirs != 0 && theirs < since)
            .count()
    }

    /// How many processes wait for memory.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting_longer(usize::MAX, u64::MAX)
    }
}
