//! Slices inside slices: what a `divvy run` inside a slice gets comes out of that slice. docs/adr/0012 says how.

use divvy_model::{Bytes, Code, DeviceRecord, Fault, Isolation};

use crate::admission::DeviceBook;
use crate::api::CreateSlice;
use crate::daemon::{Book, Daemon, Peer};
use crate::procs;
use crate::records::store;
use crate::slice::Slice;

impl Daemon {
    /// The slice that the caller runs in: by its ancestors, which no variable can hide; else, for one that has left
    /// its parents, by what its environment says.
    pub(crate) fn parent(book: &Book, peer: Peer, told: Option<&str>) -> Option<String> {
        let limits = |slice: &&Slice| slice.record.isolation != Isolation::Env;
        let mut pid = peer.pid;
        while let Some(above) = procs::parent(pid).filter(|above| *above > 1 && *above != pid) {
            pid = above;
            let mut slices = book.slices.values().filter(limits);
            if let Some(slice) = slices.find(|slice| slice.is_run_by(pid)) {
                return Some(slice.record.id.clone());
            }
        }
        let slice = book.slices.get(told?).filter(limits)?;
        (slice.record.uid == peer.uid).then(|| slice.record.id.clone())
    }

    /// Where a slice inside `parent` stands, and what it gets: a part of what is free there.
    pub(crate) fn place_inside(
        &self,
        book: &mut Book,
        parent: &str,
        ask: &CreateSlice,
    ) -> Result<(DeviceRecord, Bytes), Fault> {
        let chosen = match &ask.request.device {
            Some(selector) => Some(book.inventory.choose(selector)?),
            None => None,
        };
        let slice = book.slices.get_mut(parent).ok_or_else(gone)?;
        let usage = slice.usage();
        let record = slice.record.clone();
        if usage.unknown {
            return Err(Fault::new(
                Code::SliceGone,
                format!("what slice {} holds is not known", record.name),
            )
            .hint("`divvy inspect` says why"));
        }
        let device = book
            .inventory
            .devices
            .iter()
            .find(|device| device.uuid == record.device_uuid)
            .cloned()
            .ok_or_else(gone)?;
        if chosen.is_some_and(|chosen| chosen.uuid != device.uuid) || ask.request.whole {
            return Err(Fault::new(
                Code::OutsideSlice,
                format!("this runs inside slice {}, on {}", record.name, device.uuid),
            )
            .hint("leave --device and --whole out, or start it from a shell that is in no slice"));
        }
        // Shares are of the parent: it is the device that this one sees.
        let of_parent = DeviceRecord {
            memory_total_bytes: record.memory_limit_bytes,
            ..device.clone()
        };
        let view = DeviceBook {
            device: &of_parent,
            limits: self.settings.limits(device.kind),
            holds: Vec::new(),
            unmanaged: Bytes(0),
            asker: record.uid,
        };
        let share = view.share(
            ask.request
                .memory
                .unwrap_or(divvy_model::MemoryAmount::Share(10_000)),
        );
        let free = free(record.memory_limit_bytes, record.memory_lent_bytes, usage.used);
        view.check_least(share)?;
        room(&record.name, share, free, usage.used, record.memory_lent_bytes)?;
        Ok((device, share))
    }

    /// Whether slice `id`, inside `parent`, may go from `before` to `share`.
    pub(crate) fn regrow_inside(
        book: &mut Book,
        parent: &str,
        before: Bytes,
        share: Bytes,
    ) -> Result<(), Fault> {
        let more = Bytes(share.0.saturating_sub(before.0));
        if more == Bytes(0) {
            return Ok(());
        }
        let slice = book.slices.get_mut(parent).ok_or_else(gone)?;
        let used = slice.usage().used;
        let (limit, lent) = (slice.record.memory_limit_bytes, slice.record.memory_lent_bytes);
        room(&slice.record.name, more, free(limit, lent, used), used, lent)
    }

    /// Counts anew what `parent` lends to the slices inside it, and takes that off its page.
    ///
    /// # Errors
    /// [`Code::SliceFull`] when its programs have taken meanwhile what was to be lent. The page says what was lent all
    /// the same: the caller takes it back.
    pub(crate) fn relend(&self, book: &mut Book, parent: &str) -> Result<(), Fault> {
        let inside = book
            .slices
            .values()
            .filter(|slice| slice.record.parent_id.as_deref() == Some(parent));
        let lent = inside
            .map(Slice::hold)
            .fold(0_u64, |sum, hold| sum.saturating_add(hold.limit.0));
        let Some(slice) = book.slices.get_mut(parent) else {
            return Ok(());
        };
        if slice.record.memory_lent_bytes == Bytes(lent) {
            return Ok(());
        }
        let growing = slice.record.memory_lent_bytes < Bytes(lent);
        slice.record.memory_lent_bytes = Bytes(lent);
        // The page first, then a look: what the parent's programs reserve from now on is measured by the new limit.
        slice.write_grant();
        let record = slice.stored_form();
        store(&self.run, &record)?;
        let used = slice.usage().used;
        if growing && used > slice.granted() {
            return Err(full(&record.name, used, record.memory_lent_bytes));
        }
        Ok(())
    }
}

fn gone() -> Fault {
    Fault::new(Code::SliceGone, "the slice this runs in has ended")
}

fn free(limit: Bytes, lent: Bytes, used: Bytes) -> Bytes {
    Bytes(limit.0.saturating_sub(lent.0).saturating_sub(used.0))
}

fn room(name: &str, share: Bytes, free: Bytes, used: Bytes, lent: Bytes) -> Result<(), Fault> {
    if share <= free {
        return Ok(());
    }
    let mut fault = full(name, used, lent);
    fault.message = format!("cannot reserve {share} inside slice {name}");
    Err(fault.hint(format!("{free} is free in it; see divvy ps")))
}

fn full(name: &str, used: Bytes, lent: Bytes) -> Fault {
    Fault::new(
        Code::SliceFull,
        format!("slice {name} has no room for another inside it"),
    )
    .cause(format!("its programs hold {used}, slices inside it {lent}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_and_held_is_not_free() {
        let gib = |n: u64| Bytes(n << 30);
        assert_eq!(free(gib(8), gib(3), gib(2)), gib(3));
        assert_eq!(free(gib(8), gib(8), gib(2)), gib(0), "never below nothing");
        room("a", gib(3), gib(3), gib(2), gib(3)).expect("exactly");
        let refusal = room("a", gib(4), gib(3), gib(2), gib(3)).expect_err("too much");
        assert_eq!(refusal.message, "cannot reserve 4 GiB inside slice a");
        assert_eq!(
            refusal.causes,
            ["its programs hold 2 GiB, slices inside it 3 GiB"]
        );
    }
}
