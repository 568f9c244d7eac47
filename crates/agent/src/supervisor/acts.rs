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
use crate::system::procs;

/// How often the processes of a slice that is to be ended as a whole are looked for.
const ROUNDS: usize = 16;

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
        let (mut signalled, mut refused) = (Vec::new(), Vec::new());
        for id in ids {
            // One that was signalled before was told of then, and a KILL cannot be undone.
            // A start is told in hundredths of a second: a number that was passed on within one may be another slice's.
            let vouched = self.register.get(id);
            let is_own = vouched.is_none_or(|vouched| vouched.slice == self.record.id);
            match self.killed.has(id) || is_own && self.end_one(id, why) {
                true => signalled.push(id),
                false => refused.push(id),
            }
        }
        let now = (self.supervisor.clock)();
        self.account.memory.note_end(&signalled, &refused, now);
    }

    /// Returns whether it was signalled. One that has become another user's is not: what it holds is looked at again before
    /// it is asked for another time, and it is told of as one that does not end.
    fn end_one(&mut self, id: ProcessId, why: &str) -> bool {
        let vouched = self.register.get(id);
        if !vouched.is_some_and(|vouched| vouched.may_be_signalled(id)) {
            return false;
        }
        let message = format!("process {} ({}) {why}", id.pid, procs::command(id.pid));
        self.tell(EventKind::OveruseEnded, Some(id), message);
        let vouched = self.register.get(id);
        let is_sent = vouched.is_some_and(|vouched| vouched.signal(id, Signal::KILL));
        if is_sent {
            self.killed.note(id, (self.supervisor.clock)());
            self.supervisor.ended.fetch_add(1, Relaxed);
        }
        is_sent
    }

    /// Ends what keeps killed processes from their end.
    pub fn end_tracers(&mut self) {
        for killed in self.account.memory.ending() {
            let now = (self.record.uid, self.at);
            let found = self.killed.tracers(killed, now, self.register, self.slices);
            for id in found {
                let why = format!(
                    "is ended: as a tracer it keeps process {} from its end",
                    killed.0.pid
                );
                let _refused_as_another_users = self.end_one(id, &why);
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

    /// Tells of it, or of a process of another slice of its user's, if `id` is one.
    pub fn tell(&self, kind: EventKind, id: Option<ProcessId>, message: String) {
        let vouched = id.and_then(|id| self.register.get(id));
        let other = vouched.filter(|vouched| vouched.slice != self.record.id);
        let other = other.and_then(|vouched| {
            let mut records = self.slices.records.iter();
            records.find(|record| record.id == vouched.slice)
        });
        let record = other.unwrap_or(self.record);
        let journal = &self.supervisor.journal;
        if journal.may_log(record.uid) {
            tracing::warn!(slice = record.name, kind = kind.name(), "{message}");
        }
        journal.tell_run(kind, record, vouched.and_then(|vouched| vouched.run), message);
    }
}
