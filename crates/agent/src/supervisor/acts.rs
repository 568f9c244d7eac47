//! What the supervisor does to a slice that has too much: it ends or stops processes, and tells of it.

use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

use divvy_model::Bytes;
use rustix::process::Signal;

use super::sight::OfSlice;
use super::turn::Turn;
use crate::api::events::EventKind;
use crate::decide::supervise::ProcessId;
use crate::decide::supervise::memory::{Held, Target};
use crate::leasing::monotonic;
use crate::system::procs;

/// How often the processes of a slice that is to be ended as a whole are looked for.
const ROUNDS: usize = 16;
/// A killed process that is not on its way out after so long is held by its tracer, in nanoseconds.
const HELD: u64 = 150_000_000;

impl Turn<'_> {
    pub fn end(&mut self, target: Target, beyond: Bytes, processes: &[Held]) {
        let limit = self.account.limit;
        let why =
            format!("is ended: its slice held {beyond} beyond its limit of {limit} for more than a second");
        match target {
            Target::One(id) => self.end_these(vec![id], &why),
            Target::Holders(ids) => self.end_these(ids, &why),
            Target::All => {
                // What is stopped starts no other.
                let using: Vec<ProcessId> = processes.iter().map(|held| held.id).collect();
                self.freezer.stop(self.record, self.register, self.slices, &using);
                // A killed process is there for a moment more.
                let mut ended: HashSet<ProcessId> = HashSet::new();
                for _ in 0..ROUNDS {
                    let mut all = self.register.members(self.record, self.slices);
                    let known: HashSet<ProcessId> = all.iter().copied().collect();
                    all.extend(using.iter().filter(|id| !known.contains(id)));
                    all.retain(|id| ended.insert(*id) && procs::start_ticks(id.pid) == Some(id.start_ticks));
                    if all.is_empty() {
                        break;
                    }
                    self.end_these(all, &why);
                    self.slices.renew();
                }
                self.freezer.release(&self.record.id);
            }
        }
    }

    /// Ends these processes. The event comes first: a `divvy run` that waits for one of them asks as soon as that ends.
    pub fn end_these(&mut self, ids: Vec<ProcessId>, why: &str) {
        let known: HashSet<ProcessId> = ids
            .iter()
            .filter(|id| self.account.memory.is_ending(**id))
            .copied()
            .collect();
        self.account.memory.note_end(ids.iter().copied(), monotonic());
        for id in ids {
            // It was told of, and is signalled at each look.
            if known.contains(&id) {
                continue;
            }
            // One that has become another user's is told of as one that does not end.
            let may = self
                .register
                .get(id)
                .is_some_and(|vouched| vouched.may_be_signalled(id));
            if !may {
                continue;
            }
            let message = format!("process {} ({}) {why}", id.pid, procs::command(id.pid));
            self.tell(EventKind::OveruseEnded, Some(id), message);
            let ended = self
                .register
                .get(id)
                .is_some_and(|vouched| vouched.signal(id, Signal::KILL));
            if ended {
                self.supervisor.ended.fetch_add(1, Relaxed);
            }
        }
    }

    /// Ends what was to be ended and is there still, and what holds it: a tracer keeps a killed process before its end for
    /// as long as it likes, with all its memory. Only a tracer of this slice is ended.
    pub fn end_again(&mut self) {
        for (id, since) in self.account.memory.ending() {
            let _sent = self
                .register
                .get(id)
                .is_some_and(|vouched| vouched.signal(id, Signal::KILL));
            if self.at.saturating_sub(since) <= HELD || procs::is_leaving(id.pid) {
                continue;
            }
            let mut found: Vec<ProcessId> = Vec::new();
            for tracer in procs::tracers(id.pid) {
                let tracer = self.register.find(tracer, self.slices);
                let is_ours = |tracer: &ProcessId| {
                    let vouched = self.register.get(*tracer);
                    vouched.is_some_and(|vouched| vouched.slice == self.record.id)
                        && !self.account.memory.is_ending(*tracer)
                };
                found.extend(tracer.filter(is_ours));
            }
            if !found.is_empty() {
                let why = format!("is ended: it traces process {}, which was to be ended", id.pid);
                self.end_these(found, &why);
            }
        }
    }

    /// Stops its processes, and those that came since the last look.
    pub fn freeze(&mut self, reason: usize, seen: &OfSlice) {
        self.account.is_frozen[reason] = true;
        let using: Vec<ProcessId> = seen.used.iter().map(|(id, _)| *id).collect();
        self.freezer.stop(self.record, self.register, self.slices, &using);
    }

    /// Reports once that it has too much memory, or time.
    pub fn report(&mut self, which: usize, message: String) {
        if !std::mem::replace(&mut self.account.is_told[which], true) {
            self.tell(EventKind::OveruseReported, None, message);
        }
    }

    /// Reports once that the driver gives no figure of one of its processes.
    pub fn note_blind(&mut self, is_blind: bool) {
        if is_blind && !std::mem::replace(&mut self.account.is_blind, true) {
            let message = "the device's driver does not say what its processes hold: they are not supervised";
            self.tell(EventKind::OveruseReported, None, message.into());
        }
    }

    pub fn tell(&self, kind: EventKind, id: Option<ProcessId>, message: String) {
        let journal = &self.supervisor.journal;
        if journal.may_log(self.record.uid) {
            tracing::warn!(slice = self.record.name, kind = kind.name(), "{message}");
        }
        let run = id.and_then(|id| self.register.get(id)?.run);
        journal.tell_run(kind, self.record, run, message);
    }
}
