//! Resizing live slices: their memory, and their promise of compute.

use std::sync::Arc;

use divvy_model::{Bytes, Code, ComputeTerms, DeviceShare, Fault, MemoryAmount, Shares, SliceRecord};

use crate::admission::home::Homes;
use crate::api::Resize;
use crate::api::events::EventKind;
use crate::decide::nesting::{Parent, gone};
use crate::decide::resize::{Change, check_whole, compute_resized};
use crate::decide::rules::Rules;
use crate::journal::Journal;
use crate::life::adopt::Adoption;
use crate::life::grants::Grants;
use crate::life::names::user_name;
use crate::life::pages::Usage;
use crate::life::records::store;
use crate::lookout::audit::MemoryAudit;
use crate::lookout::silence::DriverWatch;
use crate::start::rundir::RunDir;
use crate::start::settings::{Current, Settings};
use crate::state::{Shared, State};
use crate::system::peer::Peer;

/// Changes live slices.
pub(crate) struct Resizing {
    pub run: RunDir,
    /// The agent's own user.
    pub uid: u32,
    pub settings: Arc<Current>,
    pub state: Shared,
    pub journal: Arc<Journal>,
    pub grants: Arc<Grants>,
    pub adoption: Arc<Adoption>,
    pub homes: Arc<Homes>,
    pub audit: Arc<MemoryAudit>,
    pub driver: Arc<DriverWatch>,
}

impl Resizing {
    /// Changes a live slice's memory limit or its promise of compute. A program sees its new limit with its next
    /// allocation, and its new share with its next lease.
    ///
    /// # Errors
    /// [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::OutsideSlice`], [`Code::BadMemory`], [`Code::BadCompute`]
    /// and the refusals of admission.
    pub fn resize(&self, peer: Peer, which: &str, ask: &Resize) -> Result<SliceRecord, Fault> {
        self.homes.members.ask_page_servers(&self.state, peer.uid);
        let missing = self.state.lock().find(which, peer)?.missing.is_some();
        if missing {
            self.adoption.recall_missing();
        }
        let mut state = self.state.lock();
        let slice = state.find(which, peer)?;
        peer.may_change(slice.record.changed_by(self.uid), self.uid)?;
        self.settings.get().least().check_existing(&slice.record)?;
        let id = slice.record.id.clone();
        self.homes.check_reach(&state, peer, &id)?;
        let slice = state.find(&id, peer)?;
        if let Some(missing) = &slice.missing {
            let hint = match slice.record.page_server_pid.filter(|_| slice.is_kept()) {
                Some(page_server) => {
                    format!("process {page_server} keeps it: if that is stopped, let it go on and try again")
                }
                None => "it ends with its processes; `divvy kill` ends them".into(),
            };
            let message = format!("the pages of `{which}` cannot be had");
            return Err(Fault::new(Code::SliceGone, message).after(missing).hint(hint));
        }
        if let Some(damage) = &slice.damage {
            return Err(
                Fault::new(Code::SliceGone, format!("the pages of `{which}` cannot be used"))
                    .after(damage)
                    .hint("end it (`divvy slice delete` where it is a lasting one, else `divvy kill`) and make it again"),
            );
        }
        let (before, parent) = (slice.record.shares.clone(), slice.record.parent_id.clone());
        let terms_before = slice.record.terms.compute;
        let terms = self.compute_resized(&mut state, peer, &id, ask)?;
        let after = self.resized(&mut state, peer, &id, ask)?;
        let slice = state.find(&id, peer)?;
        slice.record.shares = after.clone();
        slice.record.terms.compute = terms;
        if ask.dry_run {
            let shown = slice.shown();
            slice.record.shares = before;
            slice.record.terms.compute = terms_before;
            return Ok(shown);
        }
        // The record is written first: after a crash in between, the restarted agent grants what was recorded.
        let record = slice.stored_form();
        if let Err(fault) = store(&self.run, &record) {
            slice.record.shares = before;
            slice.record.terms.compute = terms_before;
            return Err(fault);
        }
        // A slice that grows inside another takes from that one first; one that shrinks gives back last.
        let pages = slice.pages.iter().flat_map(|pages| pages.iter());
        for (pages, (before, after)) in pages.zip(before.iter().zip(after.iter())) {
            let less = before.granted().min(after.granted());
            pages.grant.set_memory_limit_bytes(less.0);
        }
        if let Some(parent) = parent
            && let Err(fault) = self.grants.relend(&mut state, &parent)
        {
            let slice = state.find(&id, peer)?;
            slice.record.shares = before;
            slice.record.terms.compute = terms_before;
            slice.write_grants();
            let record = slice.stored_form();
            store(&self.run, &record)?;
            let _back = self.grants.relend(&mut state, &parent);
            return Err(fault);
        }
        state.find(&id, peer)?.write_grants();
        if terms != terms_before {
            self.grants.changed(&mut state);
        }
        let slice = state.find(&id, peer)?;
        let limits =
            |shares: &Shares| -> Vec<u64> { shares.iter().map(|share| share.memory_limit_bytes.0).collect() };
        if self.journal.may_log(peer.uid) {
            tracing::info!(
                slice = slice.record.name,
                before = ?limits(&before),
                after = ?limits(&after),
                compute = %terms,
                "slice resized"
            );
        }
        let message = format!(
            "{} of memory, compute {terms}",
            slice.record.shares.first.memory_limit_bytes
        );
        self.journal.tell(EventKind::SliceResized, &slice.record, message);
        Ok(slice.shown())
    }

    fn rules<'a>(settings: &'a Settings, state: &State, asker: u32) -> Rules<'a> {
        Rules {
            settings,
            asker,
            account: state.accounts.one(asker),
            name_of: user_name,
        }
    }

    /// A slice's new share of each of its devices, if it may have all of them.
    fn resized(&self, state: &mut State, peer: Peer, id: &str, ask: &Resize) -> Result<Shares, Fault> {
        let record = state.find(id, peer)?.record.clone();
        check_whole(&record)?;
        let mut shares = record.shares.clone();
        let Some(memory) = ask.memory else {
            return Ok(shares);
        };
        for share in shares.iter_mut() {
            share.memory_limit_bytes = self.resized_on(state, peer, &record, share, memory)?;
        }
        Ok(shares)
    }

    /// A slice's new share of one of its devices.
    fn resized_on(
        &self,
        state: &mut State,
        peer: Peer,
        record: &SliceRecord,
        share: &DeviceShare,
        ask: MemoryAmount,
    ) -> Result<Bytes, Fault> {
        let device = state.device(&share.device_uuid)?;
        // Memory that it took before it was resized below its use is still its own.
        let slice = state.slices.get(&record.id);
        let hold = slice.and_then(|slice| slice.hold_on(&device.uuid));
        let before = hold.map_or(share.memory_limit_bytes, |hold| hold.limit);
        let used = self.audit.used_on(state, &device);
        let parent = record
            .parent_id
            .as_ref()
            .filter(|id| state.slices.contains_key(*id));
        let parent = match parent {
            None => None,
            Some(parent) => {
                let slice = state.slices.get_mut(parent).ok_or_else(gone)?;
                Some((slice.record.clone(), slice.usages()))
            }
        };
        let settings = self.settings.get();
        let change = Change {
            rules: Self::rules(&settings, state, peer.uid),
            record,
            device: &device,
            share,
            before,
            used,
            tenants: &state.tenants(),
        };
        match &parent {
            Some((parent, usages)) => change.inside(&as_parent(parent, usages), ask),
            None => change.outside(ask, || self.driver.require_answers(&device)),
        }
    }

    /// A slice's new promise of compute: its present terms, changed by the request.
    fn compute_resized(
        &self,
        state: &mut State,
        peer: Peer,
        id: &str,
        ask: &Resize,
    ) -> Result<ComputeTerms, Fault> {
        let record = state.find(id, peer)?.record.clone();
        let terms = ask.compute_terms(record.terms.compute);
        let settings = self.settings.get();
        let rules = Self::rules(&settings, state, peer.uid);
        compute_resized(
            &rules,
            self.uid,
            &state.inventory,
            &state.family(),
            &state.tenants(),
            &record,
            terms,
        )
    }
}

fn as_parent<'a>(record: &'a SliceRecord, usages: &[Usage]) -> Parent<'a> {
    Parent {
        record,
        used: usages.iter().map(|usage| usage.used).collect(),
        is_unknown: usages.iter().any(|usage| usage.unknown),
    }
}
