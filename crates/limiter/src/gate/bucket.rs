//! A slice's share without an agent: a token bucket of time that fills at the share's rate and empties while the
//! process is busy.

/// Its capacity in nanoseconds.
const DEPTH_NS: u64 = 5_000_000;
/// The whole device, as the grant counts shares.
const WHOLE: u64 = 10_000;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bucket {
    level_ns: i64,
    filled_ns: u64,
    busy_ns: u64,
}

impl Bucket {
    /// Advances the bucket to `now`; `busy_ns` is the total time for which the process has been busy. Returns 0 if it
    /// may launch, else after how many nanoseconds it may.
    pub fn wait_ns(&mut self, now: u64, busy_ns: u64, share: u64) -> u64 {
        let share = match share {
            // No share was set.
            0 => return 0,
            share => share.min(WHOLE),
        };
        if self.filled_ns == 0 {
            // Time that was busy before was for the agent to charge.
            self.busy_ns = busy_ns;
        } else {
            let passed = now.saturating_sub(self.filled_ns);
            let gained = u128::from(passed) * u128::from(share) / u128::from(WHOLE);
            let gained = i64::try_from(gained).unwrap_or(i64::MAX);
            let used = i64::try_from(busy_ns.saturating_sub(self.busy_ns)).unwrap_or(i64::MAX);
            self.level_ns = self
                .level_ns
                .saturating_add(gained)
                .saturating_sub(used)
                .min(DEPTH_NS as i64);
            self.busy_ns = self.busy_ns.max(busy_ns);
        }
        self.filled_ns = now;
        if self.level_ns >= 0 {
            0
        } else {
            self.level_ns.unsigned_abs().saturating_mul(WHOLE) / share + 1
        }
    }

    /// The agent decides again.
    pub fn rest(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn use_comes_to_the_share() {
        let mut bucket = Bucket::default();
        let (mut now, mut busy) = (MS, 77 * MS);
        let start = busy;
        while now < 10_000 * MS {
            match bucket.wait_ns(now, busy, 2_500) {
                0 => {
                    now += 3 * MS;
                    busy += 3 * MS;
                }
                wait => now += wait,
            }
        }
        let share = (busy - start) as f64 / 10_000e6;
        assert!((0.249..0.252).contains(&share), "{share}");
    }

    #[test]
    fn a_pause_saves_up_no_more_than_the_bucket_holds() {
        let mut bucket = Bucket::default();
        assert_eq!(bucket.wait_ns(1, 0, 1_000), 0);
        assert_eq!(bucket.wait_ns(u64::MAX / 2, 0, 1_000), 0);
        assert!(bucket.wait_ns(u64::MAX / 2 + 1, DEPTH_NS + 1_000, 1_000) >= 9_000);
        bucket.rest();
        assert_eq!(bucket.wait_ns(5, u64::MAX, 1_000), 0);
        assert_eq!(bucket.wait_ns(6, u64::MAX, 0), 0, "no share is set");
    }
}
