//! Slices whose processes are stopped. What is stopped is written down first, so that the [`super::watchdog`], or the next
//! agent, lets it go on where this one dies. A process that its user has stopped is not among them.

use std::collections::{HashMap, HashSet};

use rustix::process::Signal;

use super::register::Register;
use super::slices::Slices;
use super::stopped::Stopped;
use super::watchdog::Watchdog;
use crate::decide::supervise::ProcessId;
use crate::life::records;
use crate::start::rundir::RunDir;
use crate::system::procs::Stat;

/// How often new processes are looked for while a slice is being stopped. Each look finds the children of what the look
/// before has not stopped.
const ROUNDS: usize = 16;

/// The stopped processes of each slice, by the slice's id, parents first.
#[derive(Debug)]
pub(super) struct Freezer {
    run: RunDir,
    stopped: HashMap<String, Vec<Stopped>>,
    watchdog: Watchdog,
}

impl Freezer {
    /// Lets all go on that an earlier agent stopped.
    pub fn open(run: RunDir, watchdog: Watchdog) -> Self {
        let left = records::stored_frozen::<Stopped>(&run);
        left.iter().rev().for_each(Stopped::release);
        let freezer = Self {
            run,
            stopped: HashMap::new(),
            watchdog,
        };
        if !left.is_empty() {
            tracing::warn!(
                count = left.len(),
                "processes that an earlier agent had stopped go on"
            );
            freezer.store();
        }
        freezer
    }

    /// The slices that are frozen.
    pub fn ids(&self) -> Vec<String> {
        self.stopped.keys().cloned().collect()
    }

    /// Stops the slice's processes, and those that came since, until no other is found. Returns how many are stopped.
    pub fn stop(
        &mut self,
        slice: &divvy_model::SliceRecord,
        register: &mut Register,
        slices: &Slices<'_>,
        users: &[ProcessId],
    ) -> usize {
        self.watchdog.keep_up(&self.run);
        self.stopped.entry(slice.id.clone()).or_default();
        // A signal takes effect a moment later.
        let mut signalled: HashSet<ProcessId> = HashSet::new();
        for round in 0..ROUNDS {
            if round > 0 {
                slices.renew();
            }
            let mut found = register.members(slice, slices);
            // A `divvy run` that uses the device itself is a program like any other.
            let known: HashSet<ProcessId> = found.iter().copied().collect();
            // A start is told in hundredths of a second: a number that was passed on within one may be another slice's.
            let is_own = |id: &&ProcessId| {
                register
                    .get(**id)
                    .is_some_and(|vouched| vouched.slice == slice.id)
            };
            found.extend(users.iter().filter(|id| !known.contains(id)).filter(is_own));
            let running: Vec<ProcessId> = found
                .into_iter()
                .filter(|id| !signalled.contains(id) && runs(*id))
                .collect();
            if running.is_empty() {
                break;
            }
            let of_slice = self.stopped.entry(slice.id.clone()).or_default();
            let before = of_slice.len();
            let noted: HashSet<ProcessId> = of_slice.iter().map(Stopped::id).collect();
            for id in running.iter().filter(|id| !noted.contains(id)) {
                let Some(vouched) = register.get(*id) else {
                    continue;
                };
                let (uid, in_container) = vouched.owner();
                of_slice.push(Stopped {
                    pid: id.pid,
                    start_ticks: id.start_ticks,
                    uid,
                    in_container,
                });
            }
            if of_slice.len() > before && !self.store() {
                // What is not written down might stay stopped for ever.
                self.stopped.entry(slice.id.clone()).or_default().truncate(before);
                break;
            }
            let mut refused: Vec<ProcessId> = Vec::new();
            for id in running {
                let is_sent = register
                    .get(id)
                    .is_some_and(|vouched| vouched.signal(id, Signal::STOP));
                signalled.insert(id);
                if !is_sent {
                    refused.push(id);
                }
            }
            self.strike(&slice.id, before, &refused);
        }
        self.stopped.get(&slice.id).map_or(0, Vec::len)
    }

    /// Whether one that was stopped runs again, by another's word than the agent's.
    pub fn went_on(&self, slice: &str) -> bool {
        let of_slice = self.stopped.get(slice);
        of_slice.is_some_and(|stopped| stopped.iter().any(|stopped| is_continued(stopped.id())))
    }

    /// Removes those that were noted behind the first `before` and not stopped: only what this agent has stopped may go on
    /// by its word.
    fn strike(&mut self, slice: &str, before: usize, refused: &[ProcessId]) {
        let Some(of_slice) = self.stopped.get_mut(slice).filter(|_| !refused.is_empty()) else {
            return;
        };
        let mut noted = of_slice.split_off(before.min(of_slice.len()));
        let found = noted.len();
        noted.retain(|stopped| !refused.iter().any(|id| stopped.is(*id)));
        let is_changed = noted.len() < found;
        of_slice.append(&mut noted);
        if is_changed {
            self.store();
        }
    }

    /// Lets the slice's processes go on, children first: a shell then finds no child stopped.
    pub fn release(&mut self, slice: &str) {
        if let Some(stopped) = self.stopped.remove(slice) {
            stopped.iter().rev().for_each(Stopped::release);
            self.store();
        }
    }

    /// Lets all go on.
    pub fn release_all(&mut self) {
        for slice in self.ids() {
            self.release(&slice);
        }
    }

    fn store(&self) -> bool {
        let all: Vec<Stopped> = self.stopped.values().flatten().copied().collect();
        let stored = records::store_frozen(&self.run, &all);
        if let Err(fault) = &stored {
            tracing::warn!("{fault}: {}", fault.causes.join(": "));
        }
        stored.is_ok()
    }
}

/// Whether it is neither stopped, by us or by its user, nor ended. One whose main thread a tracer holds runs in others.
fn runs(id: ProcessId) -> bool {
    Stat::of(id.pid)
        .is_ok_and(|stat| stat.start_ticks == id.start_ticks && !stat.has_ended() && stat.state != 'T')
}

/// Whether it runs, or waits in a way that a stop would end. One that waits in the kernel stops later.
fn is_continued(id: ProcessId) -> bool {
    Stat::of(id.pid).is_ok_and(|stat| stat.start_ticks == id.start_ticks && matches!(stat.state, 'R' | 'S'))
}
