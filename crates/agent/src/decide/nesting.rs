//! Slices inside slices: what a `divvy run` inside a slice gets comes out of that slice. docs/adr/0012 says how.

use divvy_host::Inventory;
use divvy_model::{Bytes, Code, DeviceRecord, DeviceShare, Fault, Isolation, MemoryAmount, SliceRecord};

use crate::decide::admission::DeviceView;
use crate::decide::family::Family;
use crate::decide::placement::{Placed, PlacementRequest, Refusals, device_of, shown_inside};
use crate::decide::queue::Ahead;
use crate::decide::rules::Rules;

/// The caller's data that decide in which slice it runs.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// Its user.
    pub uid: u32,
    /// Its number.
    pub pid: u32,
    /// The processes above it, the nearest first.
    pub ancestors: &'a [u32],
    /// The slice that its environment names.
    pub named: Option<&'a str>,
}

/// Membership of processes in slices, by what the kernel says.
pub trait Membership {
    /// Whether process `pid` is a `divvy run` of slice `id`.
    fn is_run(&self, id: &str, pid: u32) -> bool;
    /// Whether process `pid` attached to slice `id`, and lives.
    fn is_attached(&self, id: &str, pid: u32) -> bool;
}

/// The slice that the caller runs in, by id. Its ancestors decide first: no variable can hide them, but a process can
/// lose them when its parents end. Then the processes that attached decide, by what the kernel says; and last the
/// caller's environment.
#[must_use]
pub fn home<'a>(family: &Family<'a>, caller: Caller<'_>, of: &dyn Membership) -> Option<&'a SliceRecord> {
    let limits = |record: &&SliceRecord| record.terms.isolation != Isolation::Env;
    // A process that attached to another user's slice is in that slice by a container, and does not count here.
    let own = |record: &&SliceRecord| limits(record) && record.uid == caller.uid;
    let attached = |pid: u32| {
        let mut own = family.all().filter(own);
        own.find(|record| of.is_attached(&record.id, pid))
    };
    if let Some(record) = attached(caller.pid) {
        return Some(record);
    }
    for pid in caller.ancestors.iter().copied() {
        let mut slices = family.all().filter(limits);
        let run = slices.find(|record| of.is_run(&record.id, pid));
        if let Some(record) = run.or_else(|| attached(pid)) {
            return Some(record);
        }
    }
    family.get(caller.named?).filter(own)
}

/// Refuses a caller that runs in slice `home` to change the limits of slice `id`, which is not inside that one.
///
/// # Errors
/// [`Code::OutsideSlice`].
pub fn check_reach(family: &Family<'_>, home: Option<&str>, id: &str) -> Result<(), Fault> {
    let Some(home) = home.filter(|home| !family.is_within(id, home)) else {
        return Ok(());
    };
    let name = family.get(home).map_or("", |record| &record.name);
    Err(
        Fault::new(Code::OutsideSlice, format!("this runs inside slice {name}"))
            .hint("its limits are changed from outside: use a shell that is in no slice"),
    )
}

/// A slice in which others are to be nested.
#[derive(Clone, Debug)]
pub struct Parent<'a> {
    /// Its record.
    pub record: &'a SliceRecord,
    /// The bytes that its own programs hold of each of its devices, in order.
    pub used: Vec<Bytes>,
    /// The figure is not known.
    pub is_unknown: bool,
}

impl Parent<'_> {
    /// The place of a nested slice and its amounts: a part of what is free in the parent.
    ///
    /// # Errors
    /// [`Code::SliceGone`], [`Code::OutsideSlice`], [`Code::OverSlice`], [`Code::SliceFull`].
    pub fn place(
        &self,
        rules: &Rules<'_>,
        inventory: &Inventory,
        asked: &PlacementRequest<'_>,
        ahead: &Ahead,
    ) -> Result<Placed, Fault> {
        let record = self.record;
        if self.is_unknown {
            return Err(Fault::new(
                Code::SliceGone,
                format!("what slice {} holds is not known", record.name),
            )
            .hint("`divvy inspect` says why"));
        }
        let shares = &record.shares;
        let mut chosen = asked.chosen.iter();
        if chosen.any(|device| shares.on(&device.uuid).is_none()) || asked.request.terms.whole {
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
        if !asked.chosen.is_empty() {
            return self.place_on(&asked.chosen, rules, asked.request.memory, ahead);
        }
        // Without a choice it gets one device: the first visible one where the parent has space left.
        let mut refusals = Refusals::default();
        let own: Vec<String> = shares.iter().map(|share| share.device_uuid.clone()).collect();
        for uuid in shown_inside(inventory, asked, &own)? {
            let device = device_of(inventory, &uuid)?;
            match self.place_on(&[device], rules, asked.request.memory, ahead) {
                Ok(placed) => return Ok(placed),
                Err(refusal) => refusals.add(refusal),
            }
        }
        Err(refusals.tell().unwrap_or_else(gone))
    }

    fn place_on(
        &self,
        devices: &[DeviceRecord],
        rules: &Rules<'_>,
        memory: Option<MemoryAmount>,
        ahead: &Ahead,
    ) -> Result<Placed, Fault> {
        let record = self.record;
        let mut placed = Vec::with_capacity(devices.len());
        for device in devices {
            let (share, _) = self.share_of(&device.uuid)?;
            placed.push((device.clone(), self.part_of(device, rules, share, memory)?));
        }
        if ahead.parents.contains(&record.id) {
            return Err(Fault::new(Code::SliceFull, "others wait for room in this slice")
                .hint("--wait stands in line behind them"));
        }
        for (device, memory) in &placed {
            let (share, used) = self.share_of(&device.uuid)?;
            let (limit, lent) = (share.memory_limit_bytes, share.memory_lent_bytes);
            check_room(&record.name, *memory, free(limit, lent, used), used, lent)?;
        }
        Ok(placed)
    }

    /// Its share of a device, and how much of it its programs hold.
    fn share_of(&self, device_uuid: &str) -> Result<(&DeviceShare, Bytes), Fault> {
        let place = self.record.shares.place_of(device_uuid).ok_or_else(gone)?;
        let share = self.record.shares.on(device_uuid).ok_or_else(gone)?;
        Ok((share, self.used.get(place).copied().ok_or_else(gone)?))
    }

    /// What a slice inside it gets of its `share` of a device, if that is possible at all.
    fn part_of(
        &self,
        device: &DeviceRecord,
        rules: &Rules<'_>,
        share: &DeviceShare,
        asked: Option<MemoryAmount>,
    ) -> Result<Bytes, Fault> {
        // Shares are of the parent: the nested slice sees that as its device.
        let of_parent = DeviceRecord {
            memory_total_bytes: share.memory_limit_bytes,
            memory_reserved_bytes: Bytes(0),
            ..device.clone()
        };
        let view = DeviceView {
            device: &of_parent,
            limits: rules.settings.limits(device),
            holds: Vec::new(),
            unmanaged: Bytes(0),
            unheld: Bytes(0),
            asker: self.record.uid,
            name_of: rules.name_of,
        };
        let memory = view.share(asked.unwrap_or(MemoryAmount::Share(10_000)));
        view.check_least(memory)?;
        check_size(&self.record.name, memory, share.memory_limit_bytes)?;
        Ok(memory)
    }

    /// Whether a slice inside it may go from `before` to `share` bytes of a device.
    ///
    /// # Errors
    /// [`Code::SliceGone`], [`Code::OverSlice`], [`Code::SliceFull`].
    pub fn regrow(&self, device_uuid: &str, before: Bytes, share: Bytes) -> Result<(), Fault> {
        let more = Bytes(share.0.saturating_sub(before.0));
        if more == Bytes(0) {
            return Ok(());
        }
        let (own, used) = self.share_of(device_uuid)?;
        let (limit, lent) = (own.memory_limit_bytes, own.memory_lent_bytes);
        check_size(&self.record.name, share, limit)?;
        check_room(&self.record.name, more, free(limit, lent, used), used, lent)
    }
}

/// The slice around this one has ended.
#[must_use]
pub fn gone() -> Fault {
    Fault::new(Code::SliceGone, "the slice this runs in has ended")
}

/// Refuses to lend more of a share than its programs left. `used` is what they hold of it, read after the loan was
/// written down; `before` is the share before.
///
/// # Errors
/// [`Code::SliceFull`].
pub fn check_loan(name: &str, before: &DeviceShare, share: &DeviceShare, used: Bytes) -> Result<(), Fault> {
    let grows = before.memory_lent_bytes < share.memory_lent_bytes;
    match grows && used > share.granted() {
        true => Err(full(name, used, share.memory_lent_bytes)),
        false => Ok(()),
    }
}

fn free(limit: Bytes, lent: Bytes, used: Bytes) -> Bytes {
    Bytes(limit.0.saturating_sub(lent.0).saturating_sub(used.0))
}

/// Whether a slice of `memory` could be inside one of `limit` if nothing else were there.
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

fn check_room(name: &str, share: Bytes, free: Bytes, used: Bytes, lent: Bytes) -> Result<(), Fault> {
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
        check_room("a", gib(3), gib(3), gib(2), gib(3)).expect("exactly");
        let refusal = check_room("a", gib(4), gib(3), gib(2), gib(3)).expect_err("too much");
        assert_eq!(refusal.message, "cannot reserve 4 GiB inside slice a");
        assert_eq!(
            refusal.causes,
            ["its programs hold 2 GiB, slices inside it 3 GiB"]
        );
    }
}
