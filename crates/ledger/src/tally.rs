//! The most that a slice ever had in use, and its refused allocations. Figures for people: a tenant can write any value.

use core::sync::atomic::Ordering::Relaxed;

use crate::accounting::{self, UNIT};
use crate::layout::{LedgerPage, UsageLine};

/// The allocations of a slice that were refused because they did not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// How many there were.
    pub count: u64,
    /// What the newest one asked for, in bytes.
    pub newest_bytes: u64,
    /// The process that asked, in the page server's pid namespace; 0 if it is not known.
    pub newest_pid: u32,
}

impl UsageLine {
    /// Notes an allocation that was refused, by the process `pid`. Of two at once, one may have the other's size.
    pub(crate) fn note_refusal(&self, bytes: u64, pid: u32) {
        self.refused_bytes.store(bytes, Relaxed);
        self.refused_pid.store(pid, Relaxed);
        self.refusals.fetch_add(1, Relaxed);
    }

    pub(crate) fn refusals(&self) -> Refusals {
        Refusals {
            count: self.refusals.load(Relaxed),
            newest_bytes: self.refused_bytes.load(Relaxed),
            newest_pid: self.refused_pid.load(Relaxed),
        }
    }
}

impl LedgerPage {
    /// Notes the present total after a reservation. It costs a load and a comparison, except at a new peak.
    #[inline]
    pub(crate) fn note_peak(&self) {
        let now = accounting::total(self);
        if now > self.usage.peak_units.load(Relaxed) {
            self.usage.peak_units.fetch_max(now, Relaxed);
        }
    }

    /// The most that was in use at once, in bytes.
    pub(crate) fn peak(&self) -> u64 {
        self.usage.peak_units.load(Relaxed).saturating_mul(UNIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backing, Ledger, Slot, SlotOwner};

    #[test]
    fn the_peak_stays_and_refusals_are_counted() {
        let ledger = Ledger::create().expect("a page");
        let claim = |host_pid| {
            let fd = ledger.share().expect("/proc");
            Slot::claim(fd, Backing::Sealed, SlotOwner { host_pid }).expect("a slot")
        };
        let (one, other) = (claim(11), claim(12));
        one.reserve(4096, 8192).expect("it fits");
        other.reserve(1024, 8192).expect("it fits");
        one.release(4096).expect("its own");
        one.reserve(512, 8192).expect("it fits");
        assert_eq!((ledger.total_used(), ledger.peak()), (1536, 5120));
        assert_eq!(ledger.refusals(), Refusals::default());
        one.note_refusal(1 << 40);
        other.note_refusal(9000);
        let told = ledger.refusals();
        assert_eq!((told.count, told.newest_bytes, told.newest_pid), (2, 9000, 12));
        // What a refusal asked for is no use.
        other.reserve(9000, 8192).expect_err("it does not fit");
        assert_eq!(ledger.peak(), 5120);
    }
}
