//! Time that never goes back and never leaps, made from a clock that may do both.

use crate::Nanos;

/// The caller's clock may jump: a laptop wakes up, a virtual machine is resumed, a user sets a wrong clock. Everything
/// inside is reckoned in time of its own, which follows the caller's except in jumps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    /// The arbiter's own time.
    now: Nanos,
    /// The caller's, when it was last told.
    outside: Nanos,
    started: bool,
}

impl Clock {
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Moves on to the caller's `outside`. A step of more than `longest` counts as `counted`, a step back as nothing.
    /// Returns how far a jump went by the caller's clock, nothing where it was none: times told to tenants before it mean
    /// something else now.
    pub fn advance(&mut self, outside: Nanos, longest: Nanos, counted: Nanos) -> Option<Nanos> {
        if !self.started {
            *self = Self {
                now: outside,
                outside,
                started: true,
            };
            return None;
        }
        let step = outside.checked_sub(self.outside);
        self.outside = outside;
        let (passed, jumped) = match step {
            None => (0, Some(0)),
            Some(step) if step > longest => (counted, Some(step)),
            Some(step) => (step, None),
        };
        self.now = self.now.saturating_add(passed);
        jumped
    }

    /// A time of the arbiter's own as the caller's clock will show it.
    pub fn outside(&self, time: Nanos) -> Nanos {
        if time == Nanos::MAX {
            return time;
        }
        if time >= self.now {
            self.outside.saturating_add(time - self.now)
        } else {
            self.outside.saturating_sub(self.now - time)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_steps_count_and_jumps_do_not() {
        let mut clock = Clock::default();
        assert_eq!(clock.advance(1_000, 100, 10), None);
        assert_eq!(clock.advance(1_100, 100, 10), None);
        assert_eq!(clock.now(), 1_100);
        assert_eq!(clock.advance(9_000, 100, 10), Some(7_900), "ahead");
        assert_eq!(clock.now(), 1_110);
        assert_eq!(clock.outside(1_120), 9_010);
        assert_eq!(clock.advance(500, 100, 10), Some(0), "back");
        assert_eq!(clock.now(), 1_110);
        assert_eq!(clock.advance(550, 100, 10), None);
        assert_eq!(clock.now(), 1_160);
        assert_eq!(clock.outside(1_150), 540);
        assert_eq!(clock.outside(Nanos::MAX), Nanos::MAX);
    }
}
