//! Ending slices.

use std::sync::Arc;
use std::time::Instant;

use divvy_model::{Code, Fault, LifetimeAnchor, SliceRecord, SliceState};
use rustix::process::Signal;

use crate::api::events::EventKind;
use crate::api::history::HistoryRecord;
use crate::api::{Kill, Killed};
use crate::decide::life::{Ending, ending};
use crate::journal::Journal;
use crate::journal::history::History;
use crate::life::grants::Grants;
use crate::life::members::{Member, Members};
use crate::life::records::{discard, store};
use crate::life::slice::Slice;
use crate::start::rundir::RunDir;
use crate::state::{Shared, State};
use crate::system::clock;
use crate::system::peer::Peer;

/// Ends slices.
pub(crate) struct Endings {
    pub run: RunDir,
    /// The agent's own user.
    pub uid: u32,
    pub state: Shared,
    pub journal: Arc<Journal>,
    pub members: Arc<Members>,
    pub grants: Arc<Grants>,
    pub history: Arc<History>,
}

impl Endings {
    /// Signals everything that runs in a slice: the program, its descendants, and what uses the device. What is to end
    /// goes on first where it is stopped, by its user or by the supervisor, as under a shell's `kill` or systemd: a
    /// stopped process does not notice the signal.
    ///
    /// # Errors
    /// [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::Usage`] for a number that is no signal,
    /// [`Code::Privilege`] where no process could be signalled without the helper.
    pub fn kill(&self, peer: Peer, which: &str, ask: &Kill) -> Result<Killed, Fault> {
        let signal = Signal::from_named_raw(ask.signal)
            .ok_or_else(|| Fault::new(Code::Usage, format!("{} is no signal", ask.signal)))?;
        let mut state = self.state.lock();
        let slice = state.find(which, peer)?;
        peer.may_change(slice.record.uid, self.uid)?;
        let uid = slice.record.uid;
        let shown = slice.shown();
        drop(state);
        let targets = match ask.dry_run {
            true => self.members.pinned(&shown),
            false => self.signal(&shown, uid, signal)?,
        };
        let pids: Vec<u32> = targets.iter().map(Member::pid).collect();
        if !ask.dry_run {
            let name = &shown.name;
            tracing::info!(slice = name, signal = ask.signal, targets = ?pids, by = peer.uid, "slice signalled");
        }
        Ok(Killed { slice: shown, pids })
    }

    /// Signals what runs in a slice of user `uid`; those that got the signal. The state is not to be locked.
    ///
    /// # Errors
    /// [`Code::Privilege`] where no process could be signalled without the helper.
    pub fn signal(&self, slice: &SliceRecord, uid: u32, signal: Signal) -> Result<Vec<Member>, Fault> {
        let mut targets = self.members.pinned(slice);
        let before = targets.len();
        targets.retain(|member| member.signal(uid, signal));
        if [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT].contains(&signal) {
            for member in &targets {
                let _runs_or_has_ended = member.signal(uid, Signal::CONT);
            }
        }
        if targets.is_empty()
            && before > 0
            && let Some(Err(silent)) = crate::system::privilege::helper_state()
        {
            return Err(silent);
        }
        Ok(targets)
    }

    /// The page server says that a slice's program has ended: the slice goes, unless something in it still uses the
    /// device. A lasting slice is deleted, if nothing runs in it.
    ///
    /// # Errors
    /// [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::SliceBusy`].
    pub fn end(&self, peer: Peer, which: &str) -> Result<(), Fault> {
        let mut state = self.state.lock();
        let slice = state.find(which, peer)?;
        peer.may_change(slice.record.changed_by(self.uid), self.uid)?;
        let id = slice.record.id.clone();
        if slice.record.lasting {
            let own = LifetimeAnchor::Process {
                pid: peer.pid,
                start_ticks: peer.since,
            };
            if slice.record.worker.is_some() && slice.record.lifetime_anchor == Some(own) {
                // The run that the slice goes with: its program has ended.
                slice.leave(peer.pid);
            }
            if slice.record.job.is_some() {
                // Root ends a job's slice: what joined it keeps it no longer, once no program of its is left.
                let shown = slice.shown();
                if self.members.pinned(&shown).is_empty() {
                    slice.end_runs();
                }
            }
            return self.delete(&mut state, &id, "deleted");
        }
        slice.set_page_server(None);
        self.settle(&mut state, &id);
        Ok(())
    }

    /// Removes a slice that has no page server and no process; notes one that is used without a page server.
    pub fn settle(&self, state: &mut State, id: &str) {
        let Some(slice) = state.slices.get_mut(id) else {
            return;
        };
        self.tell_refusals(slice);
        let (lasting, kept) = (slice.record.lasting, slice.is_kept());
        let ending = ending(lasting, kept, || slice.may_be_in_use());
        if ending == Ending::Ends {
            let shown = slice.shown();
            self.keep(&shown);
            let Some(slice) = state.slices.get(id) else {
                return;
            };
            if self.journal.may_log(slice.record.uid) {
                tracing::info!(slice = slice.record.name, "slice ended");
            }
            self.journal
                .tell(EventKind::SliceEnded, &slice.record, "nothing uses it any more");
            let parent = slice.record.parent_id.clone();
            state.slices.remove(id);
            state.ended_at = Some(Instant::now());
            discard(&self.run, id);
            self.grants.give_back(state, parent);
            self.grants.changed(state);
        } else if ending == Ending::Orphaned && slice.record.state != SliceState::Orphaned {
            slice.record.state = SliceState::Orphaned;
            if self.journal.may_log(slice.record.uid) {
                tracing::warn!(
                    slice = slice.record.name,
                    "the slice's page server is gone, its processes are not"
                );
            }
            let record = slice.stored_form();
            if let Err(fault) = store(&self.run, &record) {
                tracing::warn!("{fault}: {}", fault.causes.join(": "));
            }
        }
    }

    /// Ends the `divvy run`s of a slice, which keep it without a program in it. A slice that is not a lasting one is
    /// removed, as soon as no process uses it.
    pub fn take_back(&self, id: &str) {
        let mut state = self.state.lock();
        let Some(slice) = state.slices.get_mut(id) else {
            return;
        };
        if self.journal.may_log(slice.record.uid) {
            tracing::warn!(
                slice = slice.record.name,
                "the slice's time is over: what keeps it is ended"
            );
        }
        slice.end_runs();
        if !slice.record.lasting {
            self.settle(&mut state, id);
        }
    }

    /// Keeps what a slice that ends now has used.
    fn keep(&self, slice: &SliceRecord) {
        let views = self.grants.leasing.views();
        let charged = views.iter().filter(|view| view.slice_id == slice.id);
        let device_time = charged.map(|view| view.charged_ns).reduce(u64::saturating_add);
        let record = HistoryRecord::of(slice, device_time.filter(|ns| *ns > 0), clock::now());
        self.history.note(&record);
    }

    /// Reports allocations that did not fit.
    fn tell_refusals(&self, slice: &mut Slice) {
        for told in slice.new_refusals() {
            self.journal.tell(EventKind::Oom, &slice.record, told);
        }
    }

    /// Deletes a lasting slice in which nothing runs; the event says `why`.
    pub fn delete(&self, state: &mut State, id: &str, why: &str) -> Result<(), Fault> {
        let Some(slice) = state.slices.get_mut(id) else {
            return Ok(());
        };
        let shown = slice.shown();
        let busy = self.members.pinned(&shown).len().max(shown.runs.len());
        if busy > 0 {
            return Err(Fault::new(
                Code::SliceBusy,
                match busy {
                    1 => format!("a process lives in slice `{}`", shown.name),
                    _ => format!("{busy} processes live in slice `{}`", shown.name),
                },
            )
            .hint("`divvy ps` lists them; `divvy slice delete --yes` ends them first"));
        }
        if let Some(slice) = state.slices.get_mut(id) {
            if slice.may_be_in_use() {
                return Err(Fault::new(
                    Code::SliceBusy,
                    format!("processes may live in slice `{}`", shown.name),
                )
                .cause("the system does not tell")
                .hint("`divvy inspect` says more; try again"));
            }
            slice.end_page_server();
            slice.end_worker();
        }
        if self.journal.may_log(shown.uid) {
            tracing::info!(slice = shown.name, "slice deleted");
        }
        self.keep(&shown);
        self.journal.tell(EventKind::SliceEnded, &shown, why);
        state.slices.remove(id);
        state.ended_at = Some(Instant::now());
        discard(&self.run, id);
        self.grants.changed(state);
        Ok(())
    }

    /// Takes back a slice that was admitted and cannot be served.
    pub fn revoke(&self, id: &str) {
        let mut state = self.state.lock();
        let Some(slice) = state.slices.remove(id) else {
            return;
        };
        discard(&self.run, id);
        self.grants.give_back(&mut state, slice.record.parent_id.clone());
        self.grants.changed(&mut state);
    }
}
