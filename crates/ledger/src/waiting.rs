//! Waiting for somebody to give memory back.
//!
//! A release that nobody waits for pays one relaxed load, of the cache line whose word it has just exchanged. Nothing
//! here decides anything: a wake that is lost, or a flag that somebody writes over, costs a waiter one pause.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;

use rustix::thread::futex;

use crate::layout::{BookLine, LedgerPage, monotonic_ns};

impl BookLine {
    /// After a release: wakes whoever waits for one.
    #[inline]
    pub(crate) fn tell_waiters(&self) {
        if self.waited_for.load(Relaxed) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        // Cleared first: who does not find what it needs sets it again, and looks again after that.
        self.waited_for.store(0, Relaxed);
        self.releases.fetch_add(1, Release);
        // Nobody waiting is not an error.
        let _woken = futex::wake(&self.releases, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Announces a waiter. It looks once more for room before it sleeps on the number this answers.
    pub(crate) fn announce(&self) -> u32 {
        let releases = self.releases.load(Acquire);
        self.waited_for.store(1, Release);
        releases
    }

    /// Sleeps until a release after `releases`, or for `pause`. Woken for nothing is as good.
    pub(crate) fn sleep(&self, releases: u32, pause: Duration) {
        let pause = futex::Timespec {
            tv_sec: i64::try_from(pause.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(pause.subsec_nanos()) as _,
        };
        let _why = futex::wait(&self.releases, futex::Flags::empty(), releases, Some(&pause));
    }
}

impl LedgerPage {
    /// Notes that a thread of process slot `slot` begins to wait, unless one of it does already; answers since when.
    pub(crate) fn begin_waiting(&self, slot: usize) -> u64 {
        let now = monotonic_ns().max(1);
        let since = &self.slots.0[slot].waiting_since_ns;
        match since.compare_exchange(0, now, Relaxed, Relaxed) {
            Ok(_) => now,
            Err(earlier) => earlier,
        }
    }

    /// Notes that process slot `slot` waits no more.
    pub(crate) fn end_waiting(&self, slot: usize) {
        self.slots.0[slot].waiting_since_ns.store(0, Relaxed);
    }

    /// Processes that have been waiting for longer than since `since`, other than process slot `slot`.
    pub(crate) fn waiting_longer(&self, slot: usize, since: u64) -> usize {
        (0..self.slots_in_use())
            .filter(|&other| other != slot)
            .map(|other| &self.slots.0[other])
            .filter(|place| place.claimed.load(Acquire) != 0)
            .map(|place| place.waiting_since_ns.load(Relaxed))
            .filter(|&theirs| theirs != 0 && theirs < since)
            .count()
    }

    /// Processes that wait for room.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting_longer(usize::MAX, u64::MAX)
    }
}
