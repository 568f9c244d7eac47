//! The system's answers about the processes in a slice's ledger: their names, and whether they live.
//!
//! A tenant writes the numbers, as many as a ledger has slots. So the system is asked few questions at once, and recent
//! answers are used again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::system::procs::{self, Life};

/// The number of processes that are looked at in each [`SPAN`].
const MOST: u32 = 64;
const SPAN: Duration = Duration::from_millis(250);
/// The time for which an answer is used without another question.
const FRESH: Duration = Duration::from_secs(1);
/// The number of processes that are remembered; twice as many as a ledger has.
const REMEMBERED: usize = 4096;

/// The known processes of one slice.
#[derive(Debug, Default)]
pub struct Known {
    processes: HashMap<u32, KnownProcess>,
    span: Option<(Instant, u32)>,
}

/// The system's answer about a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownProcess {
    /// The program's name.
    pub command: String,
    /// No such process exists.
    pub gone: bool,
    at: Instant,
}

impl Known {
    /// The answer about process `pid`; none where it has to wait for another look.
    pub fn of(&mut self, pid: u32) -> Option<&KnownProcess> {
        self.of_at(pid, Instant::now(), |pid| {
            let gone = procs::life(pid) == Life::Gone;
            (procs::command(pid), gone)
        })
    }

    /// The last answer about process `pid`, however old.
    pub fn told(&self, pid: u32) -> Option<&KnownProcess> {
        self.processes.get(&pid)
    }

    fn of_at(
        &mut self,
        pid: u32,
        now: Instant,
        ask: impl FnOnce(u32) -> (String, bool),
    ) -> Option<&KnownProcess> {
        let fresh = |told: &KnownProcess| now.saturating_duration_since(told.at) < FRESH;
        if !self.processes.get(&pid).is_some_and(fresh) && self.may_ask(now) {
            if self.processes.len() >= REMEMBERED {
                self.processes.clear();
            }
            let (command, gone) = ask(pid);
            let told = KnownProcess {
                command,
                gone,
                at: now,
            };
            self.processes.insert(pid, told);
        }
        self.processes.get(&pid)
    }

    fn may_ask(&mut self, now: Instant) -> bool {
        let (begin, asked) = match self.span {
            Some((begin, asked)) if now.saturating_duration_since(begin) < SPAN => (begin, asked),
            _ => (now, 0),
        };
        let may = asked < MOST;
        self.span = Some((begin, asked + u32::from(may)));
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_of_numbers_cost_a_few_questions_at_a_time() {
        let mut known = Known::default();
        let begin = Instant::now();
        let mut asked = 0;
        let mut look = |now: Instant| {
            let mut told = 0;
            for pid in 1..=2000 {
                let ask = |pid: u32| {
                    asked += 1;
                    (pid.to_string(), false)
                };
                told += usize::from(known.of_at(pid, now, ask).is_some());
            }
            told
        };
        // As many looks as there may be in a second.
        let told: Vec<usize> = (0..100)
            .map(|look_number| look(begin + look_number * Duration::from_millis(10)))
            .collect();
        assert_eq!((told[0], told[99]), (64, 256), "more are known with time");
        assert!(asked <= 4 * MOST, "{asked}");
    }

    #[test]
    fn few_processes_are_asked_for_once_a_second() {
        let mut known = Known::default();
        let begin = Instant::now();
        let mut asked = 0;
        for tick in 0..30 {
            let now = begin + tick * Duration::from_millis(100);
            let told = known.of_at(7, now, |_| {
                asked += 1;
                (format!("name {asked}"), asked == 3)
            });
            assert_eq!(
                told.expect("asked for").command,
                format!("name {}", 1 + tick / 10)
            );
        }
        assert_eq!(asked, 3);
        assert!(known.of_at(7, begin, |_| unreachable!()).expect("known").gone);
    }
}
