//! Ending slices, and what has to be done now and then.

use std::time::{Duration, Instant};

use divvy_model::{Code, Fault, SliceRecord, SliceState};
use rustix::process::Signal;

use crate::api::events::EventKind;
use crate::api::{Kill, Killed};
use crate::daemon::{Daemon, State};
use crate::life::members::Member;
use crate::life::records::{discard, store};
use crate::life::slice::Slice;
use crate::system::peer::Peer;

/// How often the devices are asked what each process holds.
const AUDIT: Duration = Duration::from_secs(1);

impl Daemon {
    /// Signals everything that runs in a slice: the program, its descendants, and what uses the device.
    ///
    /// # Errors
    /// [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::Usage`] for a number that is no signal, [`Code::Privilege`] where
    /// nothing could be signalled for want of the helper.
    pub fn kill(&self, peer: Peer, which: &str, ask: &Kill) -> Result<Killed, Fault> {
        let signal = Signal::from_named_raw(ask.signal)
            .ok_or_else(|| Fault::new(Code::Usage, format!("{} is no signal", ask.signal)))?;
        let mut state = self.state();
        let slice = state.find(which, peer)?;
        peer.may_change(slice.record.uid, self.uid)?;
        let uid = slice.record.uid;
        let shown = slice.shown();
        drop(state);
        let mut targets = self.pinned_members(&shown);
        if !ask.dry_run {
            let before = targets.len();
            targets.retain(|member| member.signal(uid, signal));
            if targets.is_empty()
                && before > 0
                && let Some(Err(silent)) = crate::system::privilege::helper_state()
            {
                return Err(silent);
            }
        }
        let pids: Vec<u32> = targets.iter().map(Member::pid).collect();
        if !ask.dry_run {
            let name = &shown.name;
            tracing::info!(slice = name, signal = ask.signal, targets = ?pids, by = peer.uid, "slice signalled");
        }
        Ok(Killed { slice: shown, pids })
    }

    /// A slice's program has ended, says its keeper: the slice goes, unless something in it still uses the device. A
    /// lasting slice is deleted, if nothing runs in it.
    ///
    /// # Errors
    /// [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::SliceBusy`].
    pub fn end(&self, peer: Peer, which: &str) -> Result<(), Fault> {
        let mut state = self.state();
        let slice = state.find(which, peer)?;
        peer.may_change(slice.record.uid, self.uid)?;
        let id = slice.record.id.clone();
        if slice.record.lasting {
            return self.delete(&mut state, &id);
        }
        slice.set_keeper(None);
        self.settle(&mut state, &id);
        Ok(())
    }

    /// Removes a slice that nobody keeps and nothing uses; notes one that is used without a keeper.
    pub(crate) fn settle(&self, state: &mut State, id: &str) {
        let Some(slice) = state.slices.get_mut(id) else {
            return;
        };
        if slice.record.lasting || slice.is_kept() {
            return;
        }
        if !slice.may_be_in_use() {
            if self.may_log(slice.record.uid) {
                tracing::info!(slice = slice.record.name, "slice ended");
            }
            self.journal
                .tell(EventKind::SliceEnded, &slice.record, "nothing uses it any more");
            let parent = slice.record.parent_id.clone();
            state.slices.remove(id);
            state.ended_at = Some(Instant::now());
            discard(&self.run, id);
            self.give_back(state, parent);
            self.compute_changed(state);
        } else if slice.record.state != SliceState::Orphaned {
            slice.record.state = SliceState::Orphaned;
            if self.may_log(slice.record.uid) {
                tracing::warn!(
                    slice = slice.record.name,
                    "the slice's keeper is gone, its processes are not"
                );
            }
            let record = slice.stored_form();
            if let Err(fault) = store(&self.run, &record) {
                tracing::warn!("{fault}: {}", fault.causes.join(": "));
            }
        }
    }

    /// A slice inside `parent` has ended.
    pub(crate) fn give_back(&self, state: &mut State, parent: Option<String>) {
        if let Some(parent) = parent
            && let Err(fault) = self.relend(state, &parent)
        {
            tracing::warn!("{fault}: {}", fault.causes.join(": "));
        }
    }

    /// What has to be done now and then: return what the dead held, end what has ended. Says whether anything lives.
    pub fn tick(&self) -> bool {
        let mut state = self.state();
        if state.audited_at.is_none_or(|looked| looked.elapsed() >= AUDIT) {
            let shown: Vec<SliceRecord> = state.slices.values_mut().map(Slice::shown).collect();
            drop(state);
            self.look_at_members(&shown);
            state = self.state();
        }
        let ids: Vec<String> = state.slices.keys().cloned().collect();
        for id in ids {
            // Between two slices whoever waits for the state has a turn.
            drop(state);
            state = self.state();
            if let Some(slice) = state.slices.get_mut(&id) {
                let _reaps = Slice::usages(slice);
            }
            self.settle(&mut state, &id);
        }
        self.note_openings(&mut state);
        self.delete_unattended(&mut state);
        if state.audited_at.is_none_or(|looked| looked.elapsed() >= AUDIT) {
            state.audited_at = Some(Instant::now());
            self.audit(&mut state);
        }
        self.listen_to_driver();
        self.serve_queue(&mut state);
        self.store_queue_in_time(&mut state);
        let alive = !state.slices.is_empty() || !state.queue.is_empty() || self.is_untidy();
        drop(state);
        self.look_after_log();
        alive
    }
}
