//! The longest of late: a maximum that is forgotten with time.

use crate::{Nanos, SECOND};

/// Half of a longest time is forgotten in this time.
const HALF_LIFE: Nanos = 10 * SECOND;

/// The longest time of late. What was noted halves every ten seconds, in one straight line from half to half, so that
/// a long launch now and then is remembered, whatever runs in between.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Longest {
    value: Nanos,
    at: Nanos,
}

impl Longest {
    /// Notes a time of `value` at `now`.
    pub fn note(&mut self, value: Nanos, now: Nanos) {
        self.value = self.at(now).max(value);
        self.at = self.at.max(now);
    }

    /// The longest time of late, as seen at `now`.
    pub fn at(&self, now: Nanos) -> Nanos {
        let passed = now.saturating_sub(self.at);
        let halves = passed / HALF_LIFE;
        let value = self.value.checked_shr(halves.min(64) as u32).unwrap_or(0);
        let part = u128::from(value) * u128::from(passed % HALF_LIFE) / u128::from(2 * HALF_LIFE);
        value - part as Nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MILLISECOND;

    #[test]
    fn the_longest_counts_and_is_forgotten_by_halves() {
        let mut longest = Longest::default();
        assert_eq!(longest.at(5), 0);
        longest.note(400 * MILLISECOND, SECOND);
        longest.note(MILLISECOND, SECOND);
        assert_eq!(longest.at(SECOND), 400 * MILLISECOND);
        assert_eq!(longest.at(6 * SECOND), 300 * MILLISECOND);
        assert_eq!(longest.at(11 * SECOND), 200 * MILLISECOND);
        longest.note(MILLISECOND, 11 * SECOND);
        assert_eq!(longest.at(21 * SECOND), 100 * MILLISECOND);
        longest.note(200 * MILLISECOND, 21 * SECOND);
        assert_eq!(longest.at(21 * SECOND), 200 * MILLISECOND);
        assert_eq!(longest.at(Nanos::MAX), 0);
        assert_eq!(
            longest.at(0),
            200 * MILLISECOND,
            "time that goes back forgets nothing"
        );
    }
}
