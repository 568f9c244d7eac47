//! The longest of late: a maximum that is forgotten with time.

use crate::{Nanos, SECOND};

/// The longest time of late. What was noted halves every `HALF_LIFE` seconds, in one straight line from half to half, so
/// that a long launch now and then is remembered, whatever runs in between.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Longest<const HALF_LIFE: u64> {
    value: Nanos,
    at: Nanos,
}

/// How far a device's leases were outlasted: it deepens hard caps' buckets, so it is soon forgotten.
pub(crate) type OfDevice = Longest<10>;
/// How far a tenant outlasts its leases: it is waited for accordingly, though a minute had only short launches.
pub(crate) type OfTenant = Longest<60>;

impl<const HALF_LIFE: u64> Longest<HALF_LIFE> {
    /// Notes a time of `value` at `now`.
    pub fn note(&mut self, value: Nanos, now: Nanos) {
        self.value = self.at(now).max(value);
        self.at = self.at.max(now);
    }

    /// The longest time of late, as seen at `now`.
    pub fn at(&self, now: Nanos) -> Nanos {
        let passed = now.saturating_sub(self.at);
        let half_life = HALF_LIFE * SECOND;
        let halves = passed / half_life;
        let value = self.value.checked_shr(halves.min(64) as u32).unwrap_or(0);
        let part = u128::from(value) * u128::from(passed % half_life) / u128::from(2 * half_life);
        value - part as Nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MILLISECOND;

    #[test]
    fn the_longest_counts_and_is_forgotten_by_halves() {
        let mut longest = OfDevice::default();
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
