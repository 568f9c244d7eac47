//! What looking at one slice may cost the agent in the long run, whatever the slice's pages say: a part of a processor.

use std::time::{Duration, Instant};

/// The agent has this part of a processor for each slice's pages.
const PART: u32 = 50;
/// So much may be used at once, after a while without use.
const SAVED: Duration = Duration::from_millis(40);

/// Processor time that is left for a slice. Where it is used up the system is asked nothing until there is more.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowance {
    /// What was used, less what the time since has earned.
    used: Duration,
    at: Option<Instant>,
}

impl Allowance {
    /// Whether there is any left at `now`.
    pub fn is_left(&mut self, now: Instant) -> bool {
        let passed = self
            .at
            .map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.used = self.used.saturating_sub(passed / PART);
        self.at = Some(now);
        self.used < SAVED
    }

    /// Takes what was used.
    pub fn take(&mut self, used: Duration) {
        self.used = self.used.saturating_add(used);
    }

    /// Does something, and takes the processor time that it took.
    pub fn charge<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = thread_time();
        let answer = work();
        self.take(thread_time().saturating_sub(before));
        answer
    }
}

/// Processor time that this thread has used: what others had of the processor meanwhile is not in it.
fn thread_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(used).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much of ten seconds looks take that come ten times a second and each need so much.
    fn used(each: Duration) -> Duration {
        let (mut allowance, begin) = (Allowance::default(), Instant::now());
        let looks = (0..100).filter(|look| {
            let may = allowance.is_left(begin + *look * Duration::from_millis(100));
            if may {
                allowance.take(each);
            }
            may
        });
        each * u32::try_from(looks.count()).expect("few")
    }

    #[test]
    fn honest_looks_are_all_made_and_dear_ones_now_and_then() {
        let cheap = Duration::from_millis(1);
        assert_eq!(used(cheap), 100 * cheap);
        for dear in [5, 20, 70, 200].map(Duration::from_millis) {
            let used = used(dear);
            assert!(used >= dear, "it is looked at");
            assert!(
                used <= Duration::from_secs(10) / PART + SAVED + dear,
                "{dear:?}: {used:?}"
            );
        }
    }
}
