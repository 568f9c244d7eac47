//! Slices inside slices: what a `divvy run` inside a slice gets comes out of that slice. docs/adr/0012 says how.

use divvy_model::{Bytes, Code, DeviceRecord, DeviceShare, Fault, Isolation, MemoryAmount, SliceRecord};

use crate::api::CreateSlice;
use crate::daemon::{Daemon, State};
use crate::decide::admission::DeviceView;
use crate::decide::placement::{Ahead, Refusals, chosen, shown_inside};
use crate::life::records::store;
use crate::life::slice::Slice;
use crate::system::peer::Peer;
use crate::system::procs;

impl Daemon {
    /// The slice that the caller runs in: by its ancestors, which no variable can hide, and to which a process that
    /// loses its parents goes over; by who attached, as the kernel told; else by what its environment says.
    ///
    /// # Errors
    /// [`Code::NotAllowed`] for a caller that has ended, and where the processes above it cannot be told for sure.
    pub(crate) fn parent(
        &self,
        state: &State,
        peer: Peer,
        told: Option<&str>,
    ) -> Result<Option<String>, Fault> {
        let found = self.parent_by(state, peer, told, &peer.ancestors()?);
        // What was found is of a caller that still lives: of one that has ended it would be anything.
        peer.require_life()?;
        Ok(found)
    }

    fn parent_by(&self, state: &State, peer: Peer, told: Option<&str>, ancestors: &[u32]) -> Option<String> {
        let limits = |slice: &&Slice| slice.record.isolation != Isolation::Env;
        // Whoever attached to another user's slice is in it by a container, and not here.
        let own = |slice: &&Slice| limits(slice) && slice.record.uid == peer.uid;
        let found = |slice: &Slice| Some(slice.record.id.clone());
        let attached = |pid: u32| {
            let mut slices = state.slices.values().filter(own);
            slices.find(|slice| self.roster.has(&slice.record.id, pid))
        };
        if let Some(slice) = attached(peer.pid) {
            return found(slice);
        }
        for pid in ancestors.iter().copied() {
            let mut slices = state.slices.values().filter(limits);
            let run = slices.find(|slice| slice.is_run_by(pid));
            if let Some(slice) = run.or_else(|| attached(pid)) {
                return found(slice);
            }
        }
        let slice = state.slices.get(told?).filter(limits)?;
        (slice.record.uid == peer.uid).then(|| slice.record.id.clone())
    }

    /// The slice and the `divvy run`, by its process id, that process `pid` is nearest to.
    pub(crate) fn nearest_run(state: &State, pid: u32) -> Option<(String, u32)> {
        let ancestors = procs::ancestors(pid, procs::start_ticks(pid)?).ok()?;
        ancestors.into_iter().find_map(|above| {
            let mut slices = state.slices.values();
            let slice = slices.find(|slice| slice.is_run_by(above))?;
            Some((slice.record.id.clone(), above))
        })
    }

    /// Whether the caller may change the limits of slice `id`: whoever runs in a slice changes only what is inside that.
    ///
    /// # Errors
    /// [`Code::OutsideSlice`]; those of [`Self::parent`].
    pub(crate) fn check_reach(&self, state: &State, peer: Peer, id: &str) -> Result<(), Fault> {
        let Some(home) = self.parent(state, peer, None)? else {
            return Ok(());
        };
        let around = |id: &str| {
            state
                .slices
                .get(id)
                .and_then(|slice| slice.record.parent_id.clone())
        };
        let mut above = around(id);
        while let Some(next) = above {
            if next == home {
                return Ok(());
            }
            above = around(&next);
        }
        let name = state.slices.get(&home).map_or("", |slice| &slice.record.name);
        Err(
            Fault::new(Code::OutsideSlice, format!("this runs inside slice {name}"))
                .hint("its limits are changed from outside: use a shell that is in no slice"),
        )
    }

    /// Where a slice inside `parent` stands, and what it gets: a part of what is free there.
    pub(crate) fn place_inside(
        &self,
        state: &mut State,
        parent: &str,
        ask: &CreateSlice,
        ahead: &Ahead,
    ) -> Result<Vec<(DeviceRecord, Bytes)>, Fault> {
        let chosen = chosen(state, &ask.request)?;
        let slice = state.slices.get_mut(parent).ok_or_else(gone)?;
        let usages = slice.usages();
        let record = slice.record.clone();
        if usages.iter().any(|usage| usage.unknown) {
            return Err(Fault::new(
                Code::SliceGone,
                format!("what slice {} holds is not known", record.name),
            )
            .hint("`divvy inspect` says why"));
        }
        let shares = record.shares();
        if chosen
            .iter()
            .any(|device| record.place_of(&device.uuid).is_none())
            || ask.request.whole
        {
            let uuids: Vec<&str> = shares.iter().map(|share| share.device_uuid.as_str()).collect();
            return Err(Fault::new(
                Code::OutsideSlice,
                format!(
                    "this runs inside slice {}, on {}",
                    record.name,
                    uuids.join(" and ")
                ),
            )
            .hint("leave --device and --whole out, or start it from a shell that is in no slice"));
        }
        let placed = |devices: &[DeviceRecord]| {
            let mut placed = Vec::with_capacity(devices.len());
            for device in devices {
                let place = record.place_of(&device.uuid).ok_or_else(gone)?;
                let share = shares.get(place).ok_or_else(gone)?;
                placed.push((
                    device.clone(),
                    self.part_of(device, &record, share, ask.request.memory)?,
                ));
            }
            if ahead.parents.contains(parent) {
                return Err(Fault::new(Code::SliceFull, "others wait for room in this slice")
                    .hint("--wait stands in line behind them"));
            }
            for (device, memory) in &placed {
                let place = record.place_of(&device.uuid).ok_or_else(gone)?;
                let (share, usage) = shares.iter().zip(&usages).nth(place).ok_or_else(gone)?;
                let (limit, lent) = (share.memory_limit_bytes, share.memory_lent_bytes);
                let free = free(limit, lent, usage.used);
                room(&record.name, *memory, free, usage.used, lent)?;
            }
            Ok(placed)
        };
        if !chosen.is_empty() {
            return placed(&chosen);
        }
        // Without a choice it gets one device: the first with room of the parent's that it sees.
        let mut refusals = Refusals::default();
        let own: Vec<String> = shares.iter().map(|share| share.device_uuid.clone()).collect();
        for uuid in shown_inside(state, ask, &own)? {
            match placed(&[state.device(&uuid)?]) {
                Ok(placed) => return Ok(placed),
                Err(refusal) => refusals.add(refusal),
            }
        }
        Err(refusals.tell().unwrap_or_else(gone))
    }

    /// What a slice inside `record` gets of its `share` of a device, if that can ever be.
    fn part_of(
        &self,
        device: &DeviceRecord,
        record: &SliceRecord,
        share: &DeviceShare,
        asked: Option<MemoryAmount>,
    ) -> Result<Bytes, Fault> {
        // Shares are of the parent: it is the device that this one sees.
        let of_parent = DeviceRecord {
            memory_total_bytes: share.memory_limit_bytes,
            memory_reserved_bytes: Bytes(0),
            ..device.clone()
        };
        let view = DeviceView {
            device: &of_parent,
            limits: self.settings.limits(device),
            holds: Vec::new(),
            unmanaged: Bytes(0),
            unheld: Bytes(0),
            asker: record.uid,
        };
        let memory = view.share(asked.unwrap_or(MemoryAmount::Share(10_000)));
        view.check_least(memory)?;
        check_size(&record.name, memory, share.memory_limit_bytes)?;
        Ok(memory)
    }

    /// Whether a slice inside `parent` may go from `before` to `share` of a device.
    pub(crate) fn regrow_inside(
        state: &mut State,
        parent: &str,
        device_uuid: &str,
        before: Bytes,
        share: Bytes,
    ) -> Result<(), Fault> {
        let more = Bytes(share.0.saturating_sub(before.0));
        if more == Bytes(0) {
            return Ok(());
        }
        let slice = state.slices.get_mut(parent).ok_or_else(gone)?;
        let place = slice.record.place_of(device_uuid).ok_or_else(gone)?;
        let used = slice.usages().get(place).map_or(Bytes(0), |usage| usage.used);
        let of_parent = slice.record.shares().into_iter().nth(place).ok_or_else(gone)?;
        let (limit, lent) = (of_parent.memory_limit_bytes, of_parent.memory_lent_bytes);
        check_size(&slice.record.name, share, limit)?;
        room(&slice.record.name, more, free(limit, lent, used), used, lent)
    }

    /// Counts anew what `parent` lends of each device to the slices inside it, and takes that off its pages.
    ///
    /// # Errors
    /// [`Code::SliceFull`] when its programs have taken meanwhile what was to be lent. The page says what was lent all
    /// the same: the caller takes it back.
    pub(crate) fn relend(&self, state: &mut State, parent: &str) -> Result<(), Fault> {
        let lent_of = |device_uuid: &str| {
            let inside = state
                .slices
                .values()
                .filter(|slice| slice.record.parent_id.as_deref() == Some(parent));
            let holds = inside.filter_map(|slice| slice.hold_on(device_uuid));
            Bytes(holds.fold(0_u64, |sum, hold| sum.saturating_add(hold.limit.0)))
        };
        let Some(before) = state.slices.get(parent).map(|slice| slice.record.shares()) else {
            return Ok(());
        };
        let mut shares = before.clone();
        for share in &mut shares {
            share.memory_lent_bytes = lent_of(&share.device_uuid);
        }
        let Some(slice) = state.slices.get_mut(parent).filter(|_| shares != before) else {
            return Ok(());
        };
        slice.record.set_shares(shares.clone());
        // The pages first, then a look: what the parent's programs reserve from now on is measured by the new limits.
        slice.write_grants();
        let record = slice.stored_form();
        store(&self.run, &record)?;
        for ((share, before), usage) in shares.iter().zip(&before).zip(slice.usages()) {
            let growing = before.memory_lent_bytes < share.memory_lent_bytes;
            if growing && usage.used > share.granted() {
                return Err(full(&record.name, usage.used, share.memory_lent_bytes));
            }
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

/// Whether a slice of `memory` could be inside one of `limit` if nothing else were.
fn check_size(name: &str, memory: Bytes, limit: Bytes) -> Result<(), Fault> {
    if memory <= limit {
        return Ok(());
    }
    Err(Fault::new(
        Code::OverSlice,
        format!("{memory} is more than slice {name} has ({limit}), inside which this runs"),
    )
    .hint(format!(
        "ask for at most {} B ({limit}), or for `100%`; or `divvy resize {name}` first, from a shell outside it",
        limit.0
    )))
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
        check_size("a", gib(8), gib(8)).expect("all of it, once it is empty");
        let refusal = check_size("a", gib(9), gib(8)).expect_err("never");
        assert_eq!(refusal.code, Code::OverSlice);
        room("a", gib(3), gib(3), gib(2), gib(3)).expect("exactly");
        let refusal = room("a", gib(4), gib(3), gib(2), gib(3)).expect_err("too much");
        assert_eq!(refusal.message, "cannot reserve 4 GiB inside slice a");
        assert_eq!(
            refusal.causes,
            ["its programs hold 2 GiB, slices inside it 3 GiB"]
        );
    }
}
