//! A fresh look: what the driver holds for a slice beside what calls show is a figure of the agent's, up to a second old. A
//! request that only this figure stands in the way of has the agent look anew before it is refused.
//!
//! A tenant raises a number in its ledger and rings; the agent looks, and writes into the grant the number as it was before.
//! Nobody waits long, and nobody at all for an agent that has not looked of late: it is dead, stopped, or of a version that
//! does not know this.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::time::Duration;

use rustix::thread::futex;

use crate::attach::Attached;
use crate::grant::Grant;
use crate::layout::monotonic_ns;
use crate::ledger::Ledger;

/// How long a tenant waits for a look. The agent looks within some milliseconds where it gets a processor; it looks at one device every
/// [`BETWEEN_LOOKS`] at most, whoever asks.
const PATIENCE: Duration = Duration::from_millis(500);
/// The shortest time between two looks at one device that tenants ask for.
pub const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// An agent looks about once a second by itself. One that has not for so long does not answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);
/// After a look that did not come, how long nobody of this process asks.
const REST: Duration = Duration::from_secs(1);

impl Attached {
    /// Has the agent look anew, if nothing but what the driver was last found to hold stands in the way of `bytes`; waits
    /// for it, half a second at most. Answers whether it has looked: then a refusal is worth another try.
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
        let asked = ledger.bell.looks.fetch_add(1, AcqRel).wrapping_add(1);
        ledger.ring();
        let until = now.saturating_add(PATIENCE.as_nanos() as u64);
        loop {
            let looked = grant.looked.load(Acquire);
            // Numbers wrap around: what is less than half of all behind is done.
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
            // Woken, too late, or timed out: the word itself says which.
            let _why = futex::wait(&grant.looked, futex::Flags::empty(), looked, Some(&left));
        }
    }
}

impl Ledger {
    /// How many looks the slice's processes have asked for: for [`Grant::note_look`]. Taken before the agent looks.
    #[must_use]
    pub fn looks_asked(&self) -> u32 {
        self.page().bell.looks.load(Acquire)
    }
}

impl Grant {
    /// Notes that the agent has looked at what the driver holds for the slice, after it had been asked so often.
    pub fn note_look(&self, asked: u32) {
        let page = self.page();
        page.looked_at_ns.store(monotonic_ns(), Relaxed);
        if page.looked.swap(asked, Release) != asked {
            // Nobody waiting is not an error.
            let _woken = futex::wake(&page.looked, futex::Flags::empty(), i32::MAX as u32);
        }
    }
}
