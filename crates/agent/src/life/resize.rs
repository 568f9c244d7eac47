//! Resizing live slices: their memory, and what they are promised of compute.

use divvy_model::{
    Bytes, Class, Code, ComputeTerms, DeviceRecord, DeviceShare, Fault, Isolation, MemoryAmount, Mode,
    SliceRecord,
};

use crate::api::Resize;
use crate::api::events::EventKind;
use crate::daemon::{Daemon, State};
use crate::decide::compute;
use crate::life::records::store;
use crate::life::slice::Slice;
use crate::system::peer::Peer;

impl Daemon {
    /// Changes a live slice's memory limit or what it is promised of compute. A program sees its new limit with its next
    /// allocation, and its new share with its next lease.
    ///
    /// # Errors
    /// [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::OutsideSlice`], [`Code::BadMemory`], [`Code::BadCompute`] and
    /// the refusals of admission.
    pub fn resize(&self, peer: Peer, which: &str, ask: &Resize) -> Result<SliceRecord, Fault> {
        self.look_at_members_of(peer.uid);
        let missing = self.state().find(which, peer)?.missing.is_some();
        if missing {
            self.recall_missing();
        }
        let mut state = self.state();
        let slice = state.find(which, peer)?;
        peer.may_change(slice.record.uid, self.uid)?;
        let id = slice.record.id.clone();
        self.check_reach(&state, peer, &id)?;
        let slice = state.find(&id, peer)?;
        if let Some(missing) = &slice.missing {
            let hint = match slice.record.keeper_pid.filter(|_| slice.is_kept()) {
                Some(keeper) => {
                    format!("process {keeper} keeps it: if that is stopped, let it go on and try again")
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
                    .hint("end it (`divvy slice delete` where it is a lasting one, else `divvy kill`) and make it anew"),
            );
        }
        let (before, parent) = (slice.record.shares(), slice.record.parent_id.clone());
        let terms_before = slice.record.compute_terms();
        let terms = self.compute_resized(&mut state, peer, &id, ask)?;
        let after = self.resized(&mut state, peer, &id, ask)?;
        let slice = state.find(&id, peer)?;
        slice.record.set_shares(after.clone());
        slice.record.set_compute_terms(terms);
        if ask.dry_run {
            let shown = slice.shown();
            slice.record.set_shares(before);
            slice.record.set_compute_terms(terms_before);
            return Ok(shown);
        }
        // The record first: after a crash in between, the restarted agent grants what was recorded.
        let record = slice.stored_form();
        if let Err(fault) = store(&self.run, &record) {
            slice.record.set_shares(before);
            slice.record.set_compute_terms(terms_before);
            return Err(fault);
        }
        // What grows inside another slice is taken from that one first; what shrinks gives back last.
        let pages = slice.pages.iter().flat_map(|pages| pages.iter());
        for (pages, (before, after)) in pages.zip(before.iter().zip(&after)) {
            let less = before.granted().min(after.granted());
            pages.grant.set_memory_limit_bytes(less.0);
        }
        if let Some(parent) = parent
            && let Err(fault) = self.relend(&mut state, &parent)
        {
            let slice = state.find(&id, peer)?;
            slice.record.set_shares(before);
            slice.record.set_compute_terms(terms_before);
            slice.write_grants();
            let record = slice.stored_form();
            store(&self.run, &record)?;
            let _back = self.relend(&mut state, &parent);
            return Err(fault);
        }
        state.find(&id, peer)?.write_grants();
        if terms != terms_before {
            self.compute_changed(&mut state);
        }
        let slice = state.find(&id, peer)?;
        let limits = |shares: &[DeviceShare]| -> Vec<u64> {
            shares.iter().map(|share| share.memory_limit_bytes.0).collect()
        };
        if self.may_log(peer.uid) {
            tracing::info!(
                slice = slice.record.name,
                before = ?limits(&before),
                after = ?limits(&after),
                compute = %terms,
                "slice resized"
            );
        }
        let message = format!("{} of memory, compute {terms}", slice.record.memory_limit_bytes);
        self.journal.tell(EventKind::SliceResized, &slice.record, message);
        Ok(slice.shown())
    }

    /// What a slice is to have of each of its devices, if it may have all of that.
    fn resized(
        &self,
        state: &mut State,
        peer: Peer,
        id: &str,
        ask: &Resize,
    ) -> Result<Vec<DeviceShare>, Fault> {
        let record = state.find(id, peer)?.record.clone();
        if record.whole {
            return Err(
                Fault::new(Code::BadMemory, "a whole device cannot be more or less")
                    .hint("start the program in a slice of a given size instead"),
            );
        }
        let mut shares = record.shares();
        let Some(memory) = ask.memory else {
            return Ok(shares);
        };
        for share in &mut shares {
            share.memory_limit_bytes = self.resized_on(state, peer, &record, share, memory)?;
        }
        Ok(shares)
    }

    /// What a slice is to have of one of its devices.
    fn resized_on(
        &self,
        state: &mut State,
        peer: Peer,
        record: &SliceRecord,
        share: &DeviceShare,
        ask: MemoryAmount,
    ) -> Result<Bytes, Fault> {
        let device = state.device(&share.device_uuid)?;
        // Room that it took before it was resized below its use is its own still.
        let hold = state
            .slices
            .get(&record.id)
            .and_then(|slice| slice.hold_on(&device.uuid));
        let before = hold.map_or(share.memory_limit_bytes, |hold| hold.limit);
        let parent = record
            .parent_id
            .as_ref()
            .and_then(|parent| state.slices.get(parent));
        // Shares are of what the slice sees as its device.
        let whole = parent.map_or(device.memory_usable_bytes(), |parent| {
            let mut of_parent = parent.record.shares().into_iter();
            let there = of_parent.find(|share| share.device_uuid == device.uuid);
            there.map_or(device.memory_usable_bytes(), |share| share.memory_limit_bytes)
        });
        let seen = DeviceRecord {
            memory_total_bytes: whole,
            memory_reserved_bytes: Bytes(0),
            ..device.clone()
        };
        let inside = parent.map(|parent| parent.record.id.clone());
        let used = self.used_on(state, &device);
        let device_view = self.device_view(state, &seen, used, peer.uid);
        let lent = share.memory_lent_bytes;
        let share = device_view.share(ask);
        device_view.check_least(share)?;
        if share < lent {
            return Err(
                Fault::new(Code::BadMemory, format!("slices inside it have {lent} of it"))
                    .hint("resize or end those first; see divvy ps"),
            );
        }
        if let Some(parent) = inside {
            Self::regrow_inside(state, &parent, &device.uuid, before, share)?;
            return Ok(share);
        }
        device_view.readmit(before, share)?;
        if share > before {
            self.require_answers(&device)?;
            self.quota().check_size(record.uid, &device, share)?;
            let more = Bytes(share.0 - before.0);
            self.check_quota(state, record.uid, &device, more, 0)?;
        }
        Ok(share)
    }

    /// What a slice is to be promised of compute: what it is promised now, with what is asked for put in.
    fn compute_resized(
        &self,
        state: &mut State,
        peer: Peer,
        id: &str,
        ask: &Resize,
    ) -> Result<ComputeTerms, Fault> {
        let record = state.find(id, peer)?.record.clone();
        let before = record.compute_terms();
        let terms = ask.compute_terms(before);
        compute::check(&terms)?;
        if terms == before {
            return Ok(terms);
        }
        if record.isolation == Isolation::Env {
            let message = format!(
                "slice {} runs without the limiter, which keeps to shares",
                record.name
            );
            return Err(Fault::new(Code::NotEnforceable, message)
                .hint("start the program in a slice of the cooperative rung instead"));
        }
        if record.share_mode != Mode::Lease {
            let message = format!("slice {} shares its device by {}", record.name, record.share_mode);
            return Err(Fault::new(Code::BadCompute, message).hint(
                "such a part is fixed when the slice is made; --share lease gives shares that change",
            ));
        }
        self.may_weigh(peer, &terms)?;
        if let Some(parent) = &record.parent_id
            && state.slices.contains_key(parent)
        {
            return state.compute_inside(parent, terms, Some(id));
        }
        compute::check_promise(&terms)?;
        Self::keeps_what_is_inside(state, &record, terms)?;
        for share in record.shares() {
            let device = state.device(&share.device_uuid)?;
            self.quota().check_compute(record.uid, &device, terms.share)?;
            self.check_compute(state, record.uid, &device, &terms, Some(id))?;
        }
        Ok(terms)
    }

    /// Whether the slices inside this one could keep what they have.
    fn keeps_what_is_inside(state: &State, record: &SliceRecord, terms: ComputeTerms) -> Result<(), Fault> {
        let refused = |slice: &Slice, what: &str| {
            let message = format!("slice {} inside it {what}", slice.record.name);
            Err(Fault::new(Code::BadCompute, message).hint("resize or end that first; see divvy ps"))
        };
        for slice in state.inside(&record.id) {
            if slice.record.compute_class == Class::Latency && terms.class != Class::Latency {
                return refused(slice, "is latency-critical");
            }
        }
        Ok(())
    }
}
