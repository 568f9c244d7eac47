//! Tokens of a hard cap: they accrue at the share, and running spends them.
//!
//! Any window's use is what the bucket held at its start, plus the share of the window, minus what it holds at the end.
//! So the cap is passed by no more than the distance between the highest and the lowest level. That is the bucket's
//! depth plus the amount by which a kernel that outlasts its lease goes below zero.

use crate::Nanos;
use crate::terms::Share;

/// A level in nanoseconds × 10 000, so that accrual is exact.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    share: Share,
    level: i128,
    at: Nanos,
}

const SCALE: i128 = 10_000;

fn level_of(nanos: Nanos) -> i128 {
    i128::from(nanos) * SCALE
}

impl Bucket {
    /// A bucket that holds one lease's worth.
    pub fn new(share: Share, now: Nanos, depth: Nanos) -> Self {
        Self {
            share,
            level: level_of(depth),
            at: now,
        }
    }

    /// Lets tokens accrue to `now`, never above `depth`.
    pub fn refill(&mut self, now: Nanos, depth: Nanos) {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        let full = level_of(depth);
        if self.level < full {
            self.level = (self.level + i128::from(passed) * i128::from(self.share.parts())).min(full);
        }
    }

    /// Spends `run` nanoseconds of one device of `devices`. The level may go below zero: that is repaid before the next
    /// lease.
    pub fn spend(&mut self, run: Nanos, devices: usize) {
        self.level = self
            .level
            .saturating_sub(level_of(run) / (devices.max(1) as i128));
    }

    /// Gives back `run` nanoseconds of what was spent on one device of `devices`; the level does not pass `depth`.
    pub fn give_back(&mut self, run: Nanos, devices: usize, depth: Nanos) {
        let back = level_of(run) / (devices.max(1) as i128);
        let full = level_of(depth).max(self.level);
        self.level = self.level.saturating_add(back).min(full);
    }

    /// How long a lease may last before the level, still accruing, reaches zero.
    pub fn lasts(&self) -> Nanos {
        let drain = SCALE - i128::from(self.share.parts());
        if drain == 0 {
            return Nanos::MAX;
        }
        (self.level.max(0) / drain).try_into().unwrap_or(Nanos::MAX)
    }

    /// Whether at least `nanos` of tokens are there.
    pub fn holds(&self, nanos: Nanos) -> bool {
        self.level >= level_of(nanos)
    }

    /// When at least `nanos` of tokens will be there.
    pub fn holds_at(&self, nanos: Nanos) -> Nanos {
        let missing = (level_of(nanos) - self.level).max(0);
        let parts = i128::from(self.share.parts());
        let wait = (missing + parts - 1) / parts;
        self.at.saturating_add(wait.try_into().unwrap_or(Nanos::MAX))
    }

    /// Device time that is missing to `depth`.
    pub fn missing(&self, depth: Nanos) -> Nanos {
        let missing = (level_of(depth) - self.level).max(0) / SCALE;
        missing.try_into().unwrap_or(Nanos::MAX)
    }

    /// Device time owed.
    pub fn debt(&self) -> Nanos {
        (-self.level / SCALE).max(0).try_into().unwrap_or(Nanos::MAX)
    }

    /// Another share from now on; tokens and debt stay.
    pub fn resize(&mut self, share: Share) {
        self.share = share;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MILLISECOND;

    #[test]
    fn tokens_accrue_at_the_share_and_debt_is_repaid_at_it() {
        let share = Share::new(2500).expect("a quarter");
        let mut bucket = Bucket::new(share, 0, 5 * MILLISECOND);
        assert_eq!(bucket.lasts(), 5 * MILLISECOND * 4 / 3);
        bucket.spend(20 * MILLISECOND, 1);
        assert_eq!(bucket.debt(), 15 * MILLISECOND);
        assert_eq!(bucket.lasts(), 0);
        assert_eq!(bucket.holds_at(MILLISECOND), 64 * MILLISECOND);
        bucket.refill(64 * MILLISECOND - 1, 5 * MILLISECOND);
        assert!(!bucket.holds(MILLISECOND));
        bucket.refill(64 * MILLISECOND, 5 * MILLISECOND);
        assert!(bucket.holds(MILLISECOND));
        bucket.refill(Nanos::MAX, 5 * MILLISECOND);
        assert!(bucket.holds(5 * MILLISECOND) && !bucket.holds(5 * MILLISECOND + 1));
    }

    #[test]
    fn time_that_goes_back_takes_nothing() {
        let mut bucket = Bucket::new(Share::WHOLE, 100, 10);
        bucket.spend(10, 1);
        bucket.refill(50, 10);
        assert!(bucket.holds(0) && !bucket.holds(1));
        assert_eq!(bucket.lasts(), Nanos::MAX);
    }

    #[test]
    fn a_shallower_bucket_keeps_what_it_holds() {
        let mut bucket = Bucket::new(Share::WHOLE, 0, 10);
        bucket.refill(5, 4);
        assert!(bucket.holds(10));
    }

    #[test]
    fn running_on_one_of_a_gangs_devices_spends_its_part() {
        let mut bucket = Bucket::new(Share::WHOLE, 0, 30);
        bucket.spend(60, 3);
        assert!(bucket.holds(10) && !bucket.holds(11));
        bucket.spend(4, 0);
        assert!(bucket.holds(6) && !bucket.holds(7));
    }

    #[test]
    fn what_is_given_back_fills_the_bucket_and_no_more() {
        let mut bucket = Bucket::new(Share::WHOLE, 0, 10);
        bucket.spend(30, 1);
        bucket.give_back(20, 2, 10);
        assert_eq!(bucket.debt(), 10);
        bucket.give_back(30, 1, 10);
        assert!(bucket.holds(10) && !bucket.holds(11));
        bucket.give_back(30, 1, 5);
        assert!(bucket.holds(10) && !bucket.holds(11));
    }

    #[test]
    fn another_share_changes_what_accrues_and_not_what_is_there() {
        let mut bucket = Bucket::new(Share::WHOLE, 0, 10);
        bucket.spend(10, 1);
        bucket.resize(Share::new(1000).expect("a tenth"));
        assert!(bucket.holds(0) && !bucket.holds(1));
        bucket.refill(20, 10);
        assert!(bucket.holds(2) && !bucket.holds(3));
        assert_eq!(bucket.holds_at(3), 30);
    }
}
