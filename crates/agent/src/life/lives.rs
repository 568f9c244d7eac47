//! Which processes of a ledger live, by the system's last answers. A tenant may have two thousand slots in use, so one
//! look asks about some of them, and the next goes on from there.

use std::collections::HashMap;

use divvy_ledger::Process;

/// The answers about the processes of one ledger, by their slots.
#[derive(Debug, Default)]
pub struct Lives {
    told: HashMap<usize, SlotLife>,
    next: usize,
}

/// The answer about the process that had a slot.
#[derive(Clone, Copy, Debug)]
struct SlotLife {
    pid: u32,
    claimed_at_ns: u64,
    lives: bool,
}

impl SlotLife {
    fn is_of(&self, process: &Process) -> bool {
        (self.pid, self.claimed_at_ns) == (process.pid, process.claimed_at_ns)
    }
}

impl Lives {
    /// Asks about these processes, as long as `may_ask` says so. The next look begins with those that this one did not
    /// reach.
    pub fn look(
        &mut self,
        processes: &[Process],
        mut may_ask: impl FnMut() -> bool,
        lives: impl Fn(usize) -> bool,
    ) {
        self.told.retain(|slot, told| {
            let place = processes.binary_search_by_key(slot, |process| process.slot);
            place.is_ok_and(|place| processes.get(place).is_some_and(|process| told.is_of(process)))
        });
        let first = processes.partition_point(|process| process.slot < self.next);
        let (before, after) = processes.split_at(first);
        self.next = 0;
        for process in after.iter().chain(before) {
            if !may_ask() {
                self.next = process.slot;
                return;
            }
            let told = SlotLife {
                pid: process.pid,
                claimed_at_ns: process.claimed_at_ns,
                lives: lives(process.slot),
            };
            self.told.insert(process.slot, told);
        }
    }

    /// Whether a process lives, as far as is known. A process that was not asked about lives.
    pub fn has(&self, process: &Process) -> bool {
        let told = self.told.get(&process.slot).filter(|told| told.is_of(process));
        told.is_none_or(|told| told.lives)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd(count: usize) -> Vec<Process> {
        (0..count)
            .map(|slot| Process {
                slot,
                pid: 100 + slot as u32,
                host_pid: 0,
                claimed_at_ns: 1,
                used_bytes: 0,
                spilled_bytes: 0,
                alive: true,
            })
            .collect()
    }

    /// One look of so many questions; returns which slots were asked about.
    fn look(lives: &mut Lives, crowd: &[Process], mut questions: usize, dead: usize) -> Vec<usize> {
        let asked = std::cell::RefCell::new(Vec::new());
        let may_ask = || {
            let may = questions > 0;
            questions = questions.saturating_sub(1);
            may
        };
        lives.look(crowd, may_ask, |slot| {
            asked.borrow_mut().push(slot);
            slot != dead
        });
        asked.into_inner()
    }

    #[test]
    fn a_crowd_is_asked_about_in_turns_and_no_process_is_left_out() {
        let (crowd, mut lives) = (crowd(100), Lives::default());
        let looks: Vec<Vec<usize>> = (0..4).map(|_| look(&mut lives, &crowd, 30, 95)).collect();
        assert!(looks.iter().all(|asked| asked.len() == 30), "no more than it may");
        assert_eq!(looks[1], (30..60).collect::<Vec<_>>());
        let around: Vec<usize> = (90..100).chain(0..20).collect();
        assert_eq!(looks[3], around);
        assert!(!lives.has(&crowd[95]) && lives.has(&crowd[94]));
        // The answers are remembered at looks that ask about other processes.
        look(&mut lives, &crowd, 30, 95);
        assert!(!lives.has(&crowd[95]));
    }

    #[test]
    fn few_are_asked_about_at_each_look_and_a_newcomer_is_another() {
        let (mut crowd, mut lives) = (crowd(3), Lives::default());
        assert_eq!(look(&mut lives, &crowd, 30, 1), [0, 1, 2]);
        assert_eq!(
            look(&mut lives, &crowd, 30, 1),
            [0, 1, 2],
            "what was told may be so no more"
        );
        assert!(!lives.has(&crowd[1]));
        crowd[1].claimed_at_ns = 2;
        assert!(lives.has(&crowd[1]), "another who took the dead one's place");
        look(&mut lives, &crowd, 0, 1);
        assert!(!lives.told.contains_key(&1), "nothing is kept of the dead");
    }
}
