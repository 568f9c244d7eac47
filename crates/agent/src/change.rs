//! Changing live slices: resize, kill, end.

use std::time::{Duration, Instant};

use divvy_model::{Bytes, Code, DeviceRecord, DeviceShare, Fault, SliceRecord, SliceState};
use rustix::process::Signal;

use crate::api::{Kill, Killed, Resize};
use crate::daemon::{Book, Daemon, Peer};
use crate::procs;
use crate::records::{discard, store};
use crate::slice::Slice;

/// How often the devices are asked what each process holds.
const AUDIT: Duration = Duration::from_secs(1);

impl Daemon {
    /// Changes a live slice's memory limit. It takes effect with the program's next allocation.
    ///
    /// # Errors
    /// [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::BadMemory`] and the refusals of admission.
    pub fn resize(&self, peer: Peer, which: &str, ask: &Resize) -> Result<SliceRecord, Fault> {
        let missing = self.book().find(which, peer)?.missing.is_some();
        if missing {
            self.recall_missing();
        }
        let mut book = self.book();
        let slice = book.find(which, peer)?;
        peer.may_change(slice.record.uid, self.uid)?;
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
                    .hint("end the slice with `divvy kill` and start it again"),
            );
        }
        let id = slice.record.id.clone();
        let (before, parent) = (slice.record.shares(), slice.record.parent_id.clone());
        let after = self.resized(&mut book, peer, &id, ask)?;
        let slice = book.find(&id, peer)?;
        slice.record.set_shares(after.clone());
        if ask.dry_run {
            let shown = slice.shown();
            slice.record.set_shares(before);
            return Ok(shown);
        }
        // The record first: after a crash in between, the restarted agent grants what was recorded.
        let record = slice.stored_form();
        if let Err(fault) = store(&self.run, &record) {
            slice.record.set_shares(before);
            return Err(fault);
        }
        // What grows inside another slice is taken from that one first; what shrinks gives back last.
        let pages = slice.pages.iter().flat_map(|pages| pages.iter());
        for (pages, (before, after)) in pages.zip(before.iter().zip(&after)) {
            let less = before.granted().min(after.granted());
            pages.grant.set_memory_limit_bytes(less.0);
        }
        if let Some(parent) = parent
            && let Err(fault) = self.relend(&mut book, &parent)
        {
            let slice = book.find(&id, peer)?;
            slice.record.set_shares(before);
            slice.write_grants();
            let record = slice.stored_form();
            store(&self.run, &record)?;
            let _back = self.relend(&mut book, &parent);
            return Err(fault);
        }
        let slice = book.find(&id, peer)?;
        slice.write_grants();
        let limits = |shares: &[DeviceShare]| -> Vec<u64> {
            shares.iter().map(|share| share.memory_limit_bytes.0).collect()
        };
        tracing::info!(
            slice = slice.record.name,
            before = ?limits(&before),
            after = ?limits(&after),
            "slice resized"
        );
        Ok(slice.shown())
    }

    /// What a slice is to have of each of its devices, if it may have all of that.
    fn resized(
        &self,
        book: &mut Book,
        peer: Peer,
        id: &str,
        ask: &Resize,
    ) -> Result<Vec<DeviceShare>, Fault> {
        let record = book.find(id, peer)?.record.clone();
        if record.whole {
            return Err(
                Fault::new(Code::BadMemory, "a whole device cannot be more or less")
                    .hint("start the program in a slice of a given size instead"),
            );
        }
        let mut shares = record.shares();
        for share in &mut shares {
            share.memory_limit_bytes = self.resized_on(book, peer, &record, share, ask)?;
        }
        Ok(shares)
    }

    /// What a slice is to have of one of its devices.
    fn resized_on(
        &self,
        book: &mut Book,
        peer: Peer,
        record: &SliceRecord,
        share: &DeviceShare,
        ask: &Resize,
    ) -> Result<Bytes, Fault> {
        let device = book.device(&share.device_uuid)?;
        // Room that it took before it was resized below its use is its own still.
        let hold = book
            .slices
            .get(&record.id)
            .and_then(|slice| slice.hold_on(&device.uuid));
        let before = hold.map_or(share.memory_limit_bytes, |hold| hold.limit);
        let parent = record
            .parent_id
            .as_ref()
            .and_then(|parent| book.slices.get(parent));
        // Shares are of what the slice sees as its device.
        let whole = parent.map_or(device.memory_total_bytes, |parent| {
            let mut of_parent = parent.record.shares().into_iter();
            let there = of_parent.find(|share| share.device_uuid == device.uuid);
            there.map_or(device.memory_total_bytes, |share| share.memory_limit_bytes)
        });
        let seen = DeviceRecord {
            memory_total_bytes: whole,
            ..device.clone()
        };
        let inside = parent.map(|parent| parent.record.id.clone());
        let unmanaged = self.used_on(book, &device).unmanaged;
        let device_book = self.device_book(book, &seen, unmanaged, peer.uid);
        let lent = share.memory_lent_bytes;
        let share = device_book.share(ask.memory);
        device_book.check_least(share)?;
        if share < lent {
            return Err(
                Fault::new(Code::BadMemory, format!("slices inside it have {lent} of it"))
                    .hint("resize or end those first; see divvy ps"),
            );
        }
        if let Some(parent) = inside {
            Self::regrow_inside(book, &parent, &device.uuid, before, share)?;
            return Ok(share);
        }
        device_book.readmit(before, share)?;
        if share > before {
            let more = Bytes(share.0 - before.0);
            self.check_quota(book, record.uid, &device, more, 0)?;
        }
        Ok(share)
    }

    /// Signals everything that runs in a slice: the program, its descendants, and what uses the device.
    ///
    /// # Errors
    /// [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::Usage`] for a number that is no signal.
    pub fn kill(&self, peer: Peer, which: &str, ask: &Kill) -> Result<Killed, Fault> {
        let signal = Signal::from_named_raw(ask.signal)
            .ok_or_else(|| Fault::new(Code::Usage, format!("{} is no signal", ask.signal)))?;
        let mut book = self.book();
        let slice = book.find(which, peer)?;
        peer.may_change(slice.record.uid, self.uid)?;
        let uid = slice.record.uid;
        let shown = slice.shown();
        drop(book);
        let mut targets = members(&shown);
        if !ask.dry_run {
            targets.retain(|pid| procs::signal(*pid, uid, signal).is_ok());
            tracing::info!(
                slice = shown.name,
                signal = ask.signal,
                ?targets,
                by = peer.uid,
                "slice signalled"
            );
        }
        Ok(Killed {
            slice: shown,
            pids: targets,
        })
    }

    /// A slice's program has ended, says its keeper: the slice goes, unless something in it still uses the device. A
    /// lasting slice is deleted, if nothing runs in it.
    ///
    /// # Errors
    /// [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::SliceBusy`].
    pub fn end(&self, peer: Peer, which: &str) -> Result<(), Fault> {
        let mut book = self.book();
        let slice = book.find(which, peer)?;
        peer.may_change(slice.record.uid, self.uid)?;
        let id = slice.record.id.clone();
        if slice.record.lasting {
            return self.delete(&mut book, &id);
        }
        slice.set_keeper(None);
        self.settle(&mut book, &id);
        Ok(())
    }

    /// Removes a slice that nobody keeps and nothing uses; notes one that is used without a keeper.
    pub(crate) fn settle(&self, book: &mut Book, id: &str) {
        let Some(slice) = book.slices.get_mut(id) else {
            return;
        };
        if slice.record.lasting || slice.is_kept() {
            return;
        }
        if slice.processes().is_empty() {
            tracing::info!(slice = slice.record.name, "slice ended");
            let parent = slice.record.parent_id.clone();
            book.slices.remove(id);
            book.ended_at = Some(Instant::now());
            discard(&self.run, id);
            self.give_back(book, parent);
        } else if slice.record.state != SliceState::Orphaned {
            slice.record.state = SliceState::Orphaned;
            tracing::warn!(
                slice = slice.record.name,
                "the slice's keeper is gone, its processes are not"
            );
            let record = slice.stored_form();
            if let Err(fault) = store(&self.run, &record) {
                tracing::warn!("{fault}: {}", fault.causes.join(": "));
            }
        }
    }

    /// A slice inside `parent` has ended.
    pub(crate) fn give_back(&self, book: &mut Book, parent: Option<String>) {
        if let Some(parent) = parent
            && let Err(fault) = self.relend(book, &parent)
        {
            tracing::warn!("{fault}: {}", fault.causes.join(": "));
        }
    }

    /// What has to be done now and then: return what the dead held, end what has ended. Says whether anything lives.
    pub fn tick(&self) -> bool {
        let mut book = self.book();
        let ids: Vec<String> = book.slices.keys().cloned().collect();
        for id in ids {
            if let Some(slice) = book.slices.get_mut(&id) {
                let _reaps = Slice::usages(slice);
            }
            self.settle(&mut book, &id);
        }
        if book.audited_at.is_none_or(|looked| looked.elapsed() >= AUDIT) {
            book.audited_at = Some(Instant::now());
            self.audit(&mut book);
        }
        self.serve_queue(&mut book);
        let alive = !book.slices.is_empty() || !book.queue.is_empty();
        drop(book);
        self.keep_all_up();
        alive
    }
}

/// The processes of a slice, parents first: what its keeper or the runs in it started, and what is in its ledger.
pub(crate) fn members(slice: &SliceRecord) -> Vec<u32> {
    let roots: Vec<u32> = match (slice.lasting, slice.state, slice.keeper_pid) {
        (true, ..) => slice.runs.iter().map(|run| run.pid).collect(),
        (false, SliceState::Orphaned, _) | (false, _, None) => Vec::new(),
        (false, _, Some(keeper)) => vec![keeper],
    };
    let mut pids: Vec<u32> = Vec::new();
    for root in roots {
        // The agent may be a child of the very `divvy run` that started it, and the keepers are the agent's children.
        pids.extend(procs::tree(root, std::process::id()).split_off(1));
    }
    for process in &slice.processes {
        if !pids.contains(&process.pid) {
            pids.push(process.pid);
        }
    }
    pids
}
