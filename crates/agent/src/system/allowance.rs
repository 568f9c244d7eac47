//! The limit on the agent's long-term cost of looks at one slice, whatever its pages contain: a part of a processor.

use std::time::{Duration, Instant};

/// The part of a processor that the agent may use for each slice's pages.
const PART: u32 = 50;
/// The burst that may be used at once, after a while without use.
const SAVED: Duration = Duration::from_millis(40);

/// Processor time that is left for a slice. Where it is used up the system is asked nothing until more has accrued.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowance {
    /// The used time, less what the time since has earned.
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

    /// Takes off the used time.
    pub fn take(&mut self, used: Duration) {
        self.used = self.used.saturating_add(used);
    }

    /// Calls a function, and takes off the processor time that it took.
    pub fn charge<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = thread_time();
        let answer = work();
        self.take(thread_time().saturating_sub(before));
        answer
    }
}

/// Processor time that this thread has used: other threads' time is not in it.
fn thread_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(used).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fraction of ten seconds for looks that come ten times a second and each need so much.
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
