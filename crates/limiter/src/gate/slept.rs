//! Whether the machine was suspended meanwhile. The monotonic clock stands still then, and a device's clock may go on: a
//! launch that was in flight seems to have taken an hour.

use rustix::time::{ClockId, clock_gettime};

/// Suspended for less than this, in nanoseconds, is no matter: it is within what two looks at clocks differ by.
const LEAST_NS: u64 = 1_000_000;

/// For how long the machine has been suspended since it started, within limits: the clocks are read one after another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slept {
    least_ns: u64,
    most_ns: u64,
}

impl Slept {
    /// As of now.
    pub fn now() -> Self {
        let read = |clock| {
            let now = clock_gettime(clock);
            (now.tv_sec as u64)
                .saturating_mul(1_000_000_000)
                .saturating_add(now.tv_nsec as u64)
        };
        let before = read(ClockId::Monotonic);
        let boot = read(ClockId::Boottime);
        Self::of(before, boot, read(ClockId::Monotonic))
    }

    /// By the monotonic clock before and after a look at the one that goes on in a suspended machine.
    fn of(before: u64, boot: u64, after: u64) -> Self {
        Self {
            least_ns: boot.saturating_sub(after),
            most_ns: boot.saturating_sub(before),
        }
    }

    /// Whether the machine was suspended since that look.
    pub fn since(self, earlier: Self) -> bool {
        self.least_ns > earlier.most_ns.saturating_add(LEAST_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    #[test]
    fn an_hour_in_which_only_one_clock_went_on_was_slept() {
        let before = Slept::of(1_000, 5_000, 1_100);
        let after = Slept::of(9_000, HOUR + 13_000, 9_100);
        assert!(after.since(before) && !before.since(after));
    }

    #[test]
    fn a_thread_that_stood_still_between_two_looks_is_no_sleep() {
        let before = Slept::of(0, 4_000, 50);
        let late = Slept::of(10_000, 10_000 + HOUR, 10_000 + HOUR);
        assert!(!late.since(before), "both clocks went on");
        assert!(!Slept::now().since(Slept::now()));
    }
}
