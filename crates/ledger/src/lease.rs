//! The lease in a grant: whether the slice may launch on its device now. The agent writes it, the gate reads it.
//!
//! A launch needs to read one word only. As long as the word is the one that the process last saw, what the process
//! found then still holds. The agent writes the lease before the word, so a process that sees a new word sees no older
//! lease. A process that reads in the middle of a change looks again at the next launch. Times are of CLOCK_MONOTONIC.
//! docs/adr/0023.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;

use rustix::thread::futex;

use crate::layout::{LeaseLine, monotonic_ns};

/// The state in the gate word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// No other slice wants the device and the slice has no cap: everything may be launched, and nothing is counted.
    Open,
    /// Nothing may be launched.
    Closed,
    /// Launches within the lease are allowed.
    Leased,
}

/// The gate word: a [`Gate`], and a number that each decision of the agent increases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateWord(u32);

const STATES: u32 = 4;

impl GateWord {
    /// The word as it lies in the page.
    #[inline]
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// A word that was saved earlier.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The gate's state. A value that no version of Divvy writes counts as closed.
    #[inline]
    #[must_use]
    pub fn gate(self) -> Gate {
        match self.0 % STATES {
            0 => Gate::Open,
            2 => Gate::Leased,
            _ => Gate::Closed,
        }
    }

    /// Whether it is `other`, or a later one of the same slice. Numbers wrap around: two words that lie half of the
    /// range apart cannot be ordered.
    #[must_use]
    pub fn is_since(self, other: Self) -> bool {
        // Moved up to the top bit, a number that wraps does so at 2^32.
        let ahead = (self.0 - self.0 % STATES).wrapping_sub(other.0 - other.0 % STATES);
        ahead < 1 << 31
    }

    fn next(self, gate: Gate) -> Self {
        let state = match gate {
            Gate::Open => 0,
            Gate::Closed => 1,
            Gate::Leased => 2,
        };
        Self((self.0 - self.0 % STATES).wrapping_add(STATES) | state)
    }
}

/// A lease as its holder sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// Its number; the next lease has a greater one. The same number means that this lease was changed.
    pub epoch: u64,
    /// No launches are allowed from then on: nanoseconds of CLOCK_MONOTONIC, or [`u64::MAX`] for no end.
    pub until_ns: u64,
    /// Nanoseconds of work that may be in flight; [`u64::MAX`] for any amount.
    pub in_flight_ns: u64,
}

impl LeaseLine {
    #[inline]
    pub(crate) fn word(&self) -> GateWord {
        GateWord(self.gate.load(Acquire))
    }

    pub(crate) fn lease(&self) -> Lease {
        Lease {
            epoch: self.epoch.load(Relaxed),
            until_ns: self.until_ns.load(Relaxed),
            in_flight_ns: self.in_flight_ns.load(Relaxed),
        }
    }

    /// Writes the new state of the gate, and wakes its waiters. Returns the new word.
    pub(crate) fn set(&self, gate: Gate, lease: Option<Lease>) -> GateWord {
        if let Some(lease) = lease {
            self.epoch.store(lease.epoch, Relaxed);
            self.until_ns.store(lease.until_ns, Relaxed);
            self.in_flight_ns.store(lease.in_flight_ns, Relaxed);
        }
        // Only one agent writes a grant.
        let word = self.word().next(gate);
        self.gate.store(word.0, Release);
        self.wake();
        word
    }

    /// Wakes the waiters. This needs no write access.
    pub(crate) fn wake(&self) {
        // It is not an error that no thread waits.
        let _woken = futex::wake(&self.gate, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Continues from the predecessor's lease, whose writer is dead. An open gate stays open; everything else waits for
    /// a decision. The numbers continue too, because they are compared with what processes have acknowledged.
    pub(crate) fn succeed(&self, old: &Self) {
        let gate = match old.word().gate() {
            Gate::Open => Gate::Open,
            Gate::Closed | Gate::Leased => Gate::Closed,
        };
        self.gate.store(old.word().next(gate).0, Relaxed);
        self.fallback_share
            .store(old.fallback_share.load(Relaxed), Relaxed);
        self.epoch.store(old.epoch.load(Relaxed), Relaxed);
        self.clock_mhz.store(old.clock_mhz.load(Relaxed), Relaxed);
        if old.beat_ns.load(Relaxed) != 0 {
            self.beat_ns.store(monotonic_ns(), Relaxed);
        }
    }

    pub(crate) fn wait(&self, seen: GateWord, limit: Duration) -> GateWord {
        let limit = futex::Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()) as _,
        };
        // Woken, too late, or timed out: the word itself tells which.
        let _why = futex::wait(&self.gate, futex::Flags::empty(), seen.0, Some(&limit));
        self.word()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_decision_makes_another_word() {
        let mut word = GateWord::default();
        assert_eq!(word.gate(), Gate::Open, "a fresh page has an open gate");
        for gate in [Gate::Closed, Gate::Closed, Gate::Leased, Gate::Leased, Gate::Open] {
            let next = word.next(gate);
            assert_ne!(next, word);
            assert_eq!(next.gate(), gate);
            assert!(next.is_since(word) && !word.is_since(next) && next.is_since(next));
            word = next;
        }
        let last = GateWord(u32::MAX);
        assert!(last.next(Gate::Open).is_since(last), "over the wrap");
        assert_eq!(
            GateWord(u32::MAX).gate(),
            Gate::Closed,
            "an unknown word lets no launch through"
        );
        assert_eq!(
            GateWord(u32::MAX).next(Gate::Leased).gate(),
            Gate::Leased,
            "wraps"
        );
    }
}
