//! How much one look at a ledger may cost: a number of questions to the system, and processor time.
//!
//! A tenant decides how many places its ledger has in use, and what a question about one of them costs: the kernel walks
//! through all locks of a file. So whoever looks at many tenants' ledgers stops here, and goes on at the next look.

use std::time::{Duration, Instant};

/// What is left for one look.
#[derive(Clone, Debug)]
pub struct Effort {
    questions: u32,
    begun: Instant,
    used_before: Duration,
    most: Duration,
}

impl Effort {
    /// Questions that a look at one ledger is for. Few slices have as many processes.
    pub const QUESTIONS: u32 = 128;
    /// Processor time that it is for: a hundred times what honest pages need.
    pub const TIME: Duration = Duration::from_millis(2);

    /// So many questions, as long as they take so much processor time together.
    #[must_use]
    pub fn new(questions: u32, most: Duration) -> Self {
        Self {
            questions,
            begun: Instant::now(),
            used_before: thread_time(),
            most,
        }
    }

    /// What one look is for.
    #[must_use]
    pub fn of_a_look() -> Self {
        Self::new(Self::QUESTIONS, Self::TIME)
    }

    /// Whether one more question may be asked; counts it.
    pub fn may_ask(&mut self) -> bool {
        if self.questions == 0 || self.is_late() {
            self.questions = 0;
            return false;
        }
        self.questions -= 1;
        true
    }

    /// The clock on the wall first, which costs nothing: it tells too much where others had the processor.
    fn is_late(&self) -> bool {
        self.begun.elapsed() > self.most && thread_time().saturating_sub(self.used_before) > self.most
    }
}

/// Processor time that this thread has used.
fn thread_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(used).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_ends_with_its_questions_or_with_its_time() {
        let mut effort = Effort::new(3, Duration::MAX);
        let asked = (0..10).filter(|_| effort.may_ask()).count();
        assert_eq!(asked, 3);

        let mut effort = Effort::new(u32::MAX, Duration::ZERO);
        let mut asked = 0_u64;
        while effort.may_ask() {
            asked += 1;
        }
        assert!(asked < u64::from(u32::MAX), "its time was over first");
        assert!(!effort.may_ask(), "and stays over");
    }
}
