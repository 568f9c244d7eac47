//! Measurements on request. The agent measures what the driver holds for a slice beside what calls show, so that figure
//! may be a second old. If only this figure stands in the way of a request, the agent measures again before the request
//! is refused.
//!
//! A tenant increases a number in its ledger and rings the doorbell. The agent measures, and writes the number that it
//! read before into the grant. The wait is short, and there is none if the agent has not measured recently: such an
//! agent is dead, stopped, or of a version without this feature.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::time::Duration;

use rustix::thread::futex;

use crate::attach::Attached;
use crate::grant::Grant;
use crate::layout::monotonic_ns;
use crate::ledger::Ledger;

/// How long a tenant waits for a measurement. The agent answers within some milliseconds if it gets a processor. It
/// measures one device every [`BETWEEN_LOOKS`] at most, however many tenants ask.
const TIMEOUT: Duration = Duration::from_millis(500);
/// The shortest time between two measurements of one device on request.
pub const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// An agent measures about once a second by itself. An agent that has not for this long does not answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);
/// After a measurement that did not come, how long this process makes no new request.
const REST: Duration = Duration::from_secs(1);

impl Attached {
    /// Has the agent measure again, if only the last known figure of what the driver holds stands in the way of
    /// `bytes`. Waits for half a second at most. Returns true if the agent has measured: then the reservation is worth
    /// another try.
    #[cold]
    #[must_use]
    pub fn look_afresh(&self, bytes: u64) -> bool {
        let (Some(ledger), Some(used)) = (self.slot().page(), self.total_used()) else {
            return false;
        };
        let (grant, now) = (self.page(), monotonic_ns());
        let looked_at = grant.looked_at_ns.load(Relaxed);
        let of_no_use = used.saturating_add(bytes) > grant.memory_limit_bytes();
        let silent = looked_at == 0 || now.saturating_sub(looked_at) > ANSWERS_WITHIN.as_nanos() as u64;
        if of_no_use || silent || now < self.rests_until_ns.load(Relaxed) {
            return false;
        }
        let asked = ledger.doorbell.looks.fetch_add(1, AcqRel).wrapping_add(1);
        ledger.ring();
        let until = now.saturating_add(TIMEOUT.as_nanos() as u64);
        loop {
            let looked = grant.looked.load(Acquire);
            // Numbers wrap around: a request less than half of the range behind is done.
            if looked.wrapping_sub(asked) < 1 << 31 {
                return true;
            }
            let now = monotonic_ns();
            let Some(left) = until.checked_sub(now).filter(|left| *left > 0) else {
                let rest = now.saturating_add(REST.as_nanos() as u64);
                self.rests_until_ns.store(rest, Relaxed);
                return false;
            };
            let left = futex::Timespec {
                tv_sec: 0,
                tv_nsec: left as _,
            };
            // Woken, too late, or timed out: the word itself tells which.
            let _why = futex::wait(&grant.looked, futex::Flags::empty(), looked, Some(&left));
        }
    }
}

impl Ledger {
    /// How many measurements the slice's processes have requested: for [`Grant::note_look`]. Read before the agent
    /// measures.
    #[must_use]
    pub fn looks_asked(&self) -> u32 {
        self.page().doorbell.looks.load(Acquire)
    }
}

impl Grant {
    /// Notes that the agent has measured what the driver holds for the slice, after so many requests.
    pub fn note_look(&self, asked: u32) {
        let page = self.page();
        page.looked_at_ns.store(monotonic_ns(), Relaxed);
        if page.looked.swap(asked, Release) != asked {
            // It is not an error that no thread waits.
            let _woken = futex::wake(&page.looked, futex::Flags::empty(), i32::MAX as u32);
        }
    }
}
