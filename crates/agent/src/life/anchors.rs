//! Lasting slices with a lifetime anchor, which are deleted when that is gone. docs/adr/0031.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use divvy_model::{Fault, LifetimeAnchor, SliceRecord};

use crate::api::Attend;
use crate::decide::life::{Sight, missed_rounds, sight_of};
use crate::life::anchor::{of_path, of_process, unix_seconds};
use crate::life::described::PRELOAD;
use crate::life::ending::Endings;
use crate::life::records::store;
use crate::life::slice::Slice;
use crate::lookout::openings::Openings;
use crate::start::rundir::{CONTAINERS, RunDir};
use crate::state::{Shared, State};
use crate::system::nudge::Nudge;
use crate::system::peer::Peer;

/// The lifetime anchors of lasting slices.
pub(crate) struct LifetimeAnchors {
    pub run: RunDir,
    /// The agent's own user.
    pub uid: u32,
    pub state: Shared,
    pub endings: Arc<Endings>,
    /// The moments at which containers take the slices that wait for one.
    pub openings: Openings,
    /// This is set when a container has taken one: what the auditor saw of a process before it had its mounts is no
    /// evidence against it.
    pub opened: AtomicBool,
    /// This is raised then, so that the auditor looks for the container.
    pub unmanaged: Arc<Nudge>,
}

impl LifetimeAnchors {
    /// Sets a lasting slice's lifetime anchor from now on.
    ///
    /// # Errors
    /// [`divvy_model::Code::UnknownSlice`], [`divvy_model::Code::NotAllowed`], [`divvy_model::Code::NotLasting`];
    /// [`divvy_model::Code::Usage`] for a process that has ended and for a path that does not exist.
    pub fn set(&self, peer: Peer, which: &str, ask: &Attend) -> Result<SliceRecord, Fault> {
        let anchor = match ask {
            Attend::Process(pid) => of_process(*pid)?,
            Attend::Path(path) => {
                // A user who may not look at that path must not learn from the slice's end whether it exists.
                peer.may_change(self.uid, self.uid)?;
                of_path(path)?
            }
        };
        let mut state = self.state.lock();
        let slice = state.find(which, peer)?;
        peer.may_change(slice.record.changed_by(self.uid), self.uid)?;
        slice.record.require_lasting("it ends with its program")?;
        slice.go_with(Some(anchor));
        let record = slice.stored_form();
        store(&self.run, &record)?;
        Ok(slice.shown())
    }

    /// Deletes the slices whose lifetime anchors are gone. Where something still runs in one, it is tried again.
    pub fn delete_unanchored(&self, state: &mut State) {
        let slices = state.slices.values().filter(|slice| slice.has_lost_anchor());
        let ids: Vec<String> = slices.map(|slice| slice.record.id.clone()).collect();
        for id in ids {
            let _busy = self.endings.delete(state, &id, "what it went with is gone");
        }
    }

    /// Takes the auditor's list of slices that have a container. Slices that go with their containers are noted as
    /// taken. They are deleted when the last container is gone, or when none came in time. Returns whether another
    /// round should make sure of that soon.
    pub fn note_containers(&self, seen: &HashSet<String>) -> bool {
        let now = unix_seconds();
        let mut state = self.state.lock();
        let mut missed = Vec::new();
        for slice in state.slices.values_mut() {
            let Some(anchor) = &slice.record.lifetime_anchor else {
                continue;
            };
            match sight_of(anchor, seen.contains(&slice.record.id), now) {
                Sight::Nothing => {}
                Sight::Taken => self.take(slice),
                Sight::Missed => missed.push(slice.record.id.clone()),
            }
        }
        let rounds = missed_rounds(&state.missed, missed);
        state.missed = rounds.missed;
        for id in rounds.over {
            let _busy = self.endings.delete(&mut state, &id, "its containers are gone");
        }
        rounds.is_unsure
    }

    /// Notes the slices that a container took since the last call, even if it is gone again, and has the auditor look
    /// for it.
    pub fn note_openings(&self, state: &mut State) {
        let opened = self.openings.take();
        for id in &opened {
            let Some(slice) = state.slices.get_mut(id) else {
                continue;
            };
            self.take(slice);
        }
        if !opened.is_empty() {
            self.opened.store(true, Ordering::Relaxed);
            self.unmanaged.give();
        }
    }

    /// Waits for the first containers of those slices that an agent before this one made.
    pub fn watch_for_containers(&self) {
        let slices: Vec<SliceRecord> = {
            let state = self.state.lock();
            state.slices.values().map(|slice| slice.record.clone()).collect()
        };
        for slice in &slices {
            self.watch_for_container(slice);
        }
    }

    /// Notes that a container has the slice.
    fn take(&self, slice: &mut Slice) {
        let Some(LifetimeAnchor::Containers { taken, .. }) = &mut slice.record.lifetime_anchor else {
            return;
        };
        *taken = true;
        let record = slice.stored_form();
        if let Err(fault) = store(&self.run, &record) {
            tracing::warn!("{fault}: {}", fault.causes.join(": "));
        }
    }

    /// Waits for the first container of a slice that goes with its containers.
    pub fn watch_for_container(&self, slice: &SliceRecord) {
        if let Some(LifetimeAnchor::Containers { taken: false, .. }) = &slice.lifetime_anchor
            && let Ok(folder) = self
                .run
                .folder()
                .and_then(|run| run.below(CONTAINERS)?.below(&slice.id))
        {
            self.openings.watch(&folder, PRELOAD, &slice.id);
        }
    }
}
