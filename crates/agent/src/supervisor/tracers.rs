//! What keeps a killed process from its end. A tracer may hold one just before that, for as long as it likes, and the
//! process has all its memory still. So the tracer is ended, and where another traces that one, what is above it too.
//!
//! Only processes in slices of the same user are ended: in this slice or in another one. A tracer of root's or of another
//! user's is none of the tenant's making, and one outside of all slices is nothing that the agent may touch.

use std::collections::{HashMap, HashSet};

use super::register::Register;
use super::slices::Slices;
use crate::decide::supervise::ProcessId;
use crate::system::procs;

/// A killed process that is not on its way out after so long is held by its tracer, in nanoseconds. An honest tracer lets
/// it end within a moment.
const HELD: u64 = 150_000_000;
/// The same of a tracer that was killed for that.
const TRACER_HELD: u64 = 75_000_000;
/// For how long looks come fast after a process was killed, in nanoseconds.
const AWAITED: u64 = 1_000_000_000;

/// The processes that were signalled to end, of late or that are there still.
#[derive(Debug, Default)]
pub(super) struct Killed {
    /// Since when, in nanoseconds.
    since: HashMap<ProcessId, u64>,
}

impl Killed {
    /// Forgets those that ended some time ago. `at` is now, in nanoseconds.
    pub fn settle(&mut self, at: u64) {
        self.since.retain(|id, since| {
            at.saturating_sub(*since) < AWAITED || procs::start_ticks(id.pid) == Some(id.start_ticks)
        });
    }

    /// The tracers that are to be ended so that `killed`, which was signalled at `since`, ends: those of user `uid`'s slices.
    /// The first time it is the process's own tracer. Where that one was killed and is held as well, it is all above it at
    /// once, however many there are.
    pub fn tracers(
        &self,
        (killed, since): (ProcessId, u64),
        (uid, at): (u32, u64),
        register: &mut Register,
        slices: &Slices<'_>,
    ) -> Vec<ProcessId> {
        let mut found = Vec::new();
        if at.saturating_sub(since) <= HELD || procs::is_leaving(killed.pid) {
            return found;
        }
        let mut seen = HashSet::from([killed]);
        // Each with the question whether its tracers are above one that was killed.
        let mut below = vec![(killed.pid, false)];
        while let Some((pid, is_above)) = below.pop() {
            for tracer in procs::tracers(pid) {
                let Some(id) = register.find(tracer, slices) else {
                    continue;
                };
                let is_users = register.get(id).is_some_and(|vouched| vouched.owner().0 == uid);
                if !is_users || !seen.insert(id) {
                    continue;
                }
                match self.since.get(&id) {
                    None => {
                        found.push(id);
                        if is_above {
                            below.push((id.pid, true));
                        }
                    }
                    Some(since) if at.saturating_sub(*since) > TRACER_HELD && !procs::is_leaving(id.pid) => {
                        below.push((id.pid, true));
                    }
                    Some(_) => {}
                }
            }
        }
        found
    }

    /// Notes that this one was signalled to end.
    pub fn note(&mut self, id: ProcessId, at: u64) {
        self.since.entry(id).or_insert(at);
    }

    pub fn has(&self, id: ProcessId) -> bool {
        self.since.contains_key(&id)
    }

    /// Whether one was signalled a moment ago: looks come fast, to see what becomes of its memory.
    pub fn is_awaited(&self, at: u64) -> bool {
        let mut all = self.since.values();
        all.any(|since| at.saturating_sub(*since) < AWAITED)
    }
}
