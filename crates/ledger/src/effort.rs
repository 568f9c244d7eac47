//! How much one pass over a ledger may cost: a number of system calls, and processor time.
//!
//! A tenant decides how many slots its ledger has in use, and what a question about one of them costs: the kernel walks
//! through all locks of a file. So a process that checks many tenants' ledgers stops at this bound, and continues in
//! the next pass.

use std::time::{Duration, Instant};

/// The remaining budget of one pass.
#[derive(Clone, Debug)]
pub struct Effort {
    questions: u32,
    begun: Instant,
    used_before: Duration,
    most: Duration,
}

impl Effort {
    /// System calls that a pass over one ledger may make. Few slices have as many processes.
    pub const QUESTIONS: u32 = 128;
    /// Processor time that a pass may take: a hundred times what honest pages need.
    pub const TIME: Duration = Duration::from_millis(2);

    /// A budget of so many calls, as long as they take no more than this processor time together.
    #[must_use]
    pub fn new(questions: u32, most: Duration) -> Self {
        Self {
            questions,
            begun: Instant::now(),
            used_before: thread_time(),
            most,
        }
    }

    /// The budget of one pass.
    #[must_use]
    pub fn of_a_look() -> Self {
        Self::new(Self::QUESTIONS, Self::TIME)
    }

    /// Whether one more call may be made; counts it.
    pub fn may_ask(&mut self) -> bool {
        if self.questions == 0 || self.is_late() {
            self.questions = 0;
            return false;
        }
        self.questions -= 1;
        true
    }

    /// The wall clock is read first, since that is cheap. It overestimates when other threads had the processor.
    fn is_late(&self) -> bool {
        self.begun.elapsed() > self.most && thread_time().saturating_sub(self.used_before) > self.most
    }
}

/// Processor time of this thread.
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
