//! How late a driver's figures are. A driver that was late once is not late for ever: what was seen is forgotten by halves.

const SECOND: u64 = 1_000_000_000;
/// The longest delay that is believed.
const LONGEST: u64 = 5 * SECOND;
/// In how long half of a delay is forgotten, in one straight line. A driver that tells each few seconds shows its delay again long before.
const HALF_LIFE: u64 = 30 * SECOND;

/// The longest delay of late, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lateness {
    longest: u64,
    seen_at: u64,
}

impl Lateness {
    /// Notes a delay that was seen at `now`.
    pub fn note(&mut self, delay: u64, now: u64) {
        if delay > 0 {
            (self.longest, self.seen_at) = (self.at(now).max(delay.min(LONGEST)), now);
        }
    }

    /// The longest of late, as of `now`.
    pub fn at(&self, now: u64) -> u64 {
        let passed = now.saturating_sub(self.seen_at);
        let half = u32::try_from(passed / HALF_LIFE).unwrap_or(u32::MAX);
        let longest = self.longest.checked_shr(half).unwrap_or(0);
        let part = u128::from(longest) * u128::from(passed % HALF_LIFE) / u128::from(2 * HALF_LIFE);
        longest - u64::try_from(part).unwrap_or(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_late_once_is_forgotten_by_halves_and_what_is_late_again_is_not() {
        let mut late = Lateness::default();
        assert_eq!(late.at(SECOND), 0);
        late.note(4 * SECOND, SECOND);
        assert_eq!(late.at(16 * SECOND), 3 * SECOND);
        assert_eq!(late.at(31 * SECOND), 2 * SECOND);
        late.note(SECOND, 31 * SECOND);
        assert_eq!(late.at(61 * SECOND), SECOND, "a smaller one changes nothing");
        late.note(3600 * SECOND, 61 * SECOND);
        assert_eq!(late.at(61 * SECOND), LONGEST);
        assert_eq!(late.at(u64::MAX), 0);
    }
}
