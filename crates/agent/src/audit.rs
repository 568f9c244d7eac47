//! The auditor: what the device says that each process holds, beside what the ledgers say. The difference is the
//! driver's own overhead, or a process that does not account for all it has; and who is in no ledger is in no slice.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use divvy_host::{Nvidia, emulated_processes};
use divvy_model::{
    Bytes, Condition, DeviceKind, DeviceRecord, Isolation, ProcessRecord, SliceRecord, UnmanagedRecord,
};

use crate::change::members;
use crate::daemon::{Book, Daemon};
use crate::pages::Usage;
use crate::procs;
use crate::slice::{Slice, together};

/// What may be held beyond the ledger and the contexts before it is called overuse: what drivers round and cache.
const TOLERANCE: Bytes = Bytes(32 << 20);

/// The processes on a device and what each holds, where the driver tells.
pub(crate) type Holders = Vec<(u32, Option<Bytes>)>;

/// Asks the device's driver, or its page, who uses it.
pub(crate) fn holders(nvidia: &Nvidia, run_dir: &Path, device: &DeviceRecord) -> Holders {
    match device.kind {
        DeviceKind::Emulated => emulated_processes(run_dir, &device.uuid)
            .into_iter()
            .map(|(pid, held)| (pid, Some(held)))
            .collect(),
        DeviceKind::Gpu | DeviceKind::Mig | DeviceKind::Partition => nvidia.processes(&device.uuid),
    }
}

/// The processes on these devices when no agent runs: nobody says that they are in a slice.
#[must_use]
pub fn strangers(nvidia: &Nvidia, run_dir: &Path, devices: &[DeviceRecord]) -> Vec<UnmanagedRecord> {
    let of = |device: &DeviceRecord| outside(device, &holders(nvidia, run_dir, device), &HashSet::new());
    devices.iter().flat_map(of).collect()
}

fn outside(device: &DeviceRecord, holders: &Holders, managed: &HashSet<u32>) -> Vec<UnmanagedRecord> {
    let outsiders = holders.iter().filter(|(pid, _)| !managed.contains(pid));
    outsiders
        .map(|(pid, held)| UnmanagedRecord {
            pid: *pid,
            command: procs::command(*pid),
            uid: fs::metadata(format!("/proc/{pid}")).ok().map(|meta| meta.uid()),
            device_uuid: device.uuid.clone(),
            memory_used_bytes: *held,
        })
        .collect()
}

/// What one look at a slice found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audited {
    /// What its processes hold beyond its ledger, at the last look.
    last: Bytes,
    /// The same at this look and the one before, whichever is less: what came and went in between is nobody's.
    pub overhead: Bytes,
    /// Whether that is more than any driver takes for itself.
    pub overuse: bool,
}

impl Audited {
    /// The next look: `measured` by the device, `accounted` in the ledger, `contexts` for the contexts.
    #[must_use]
    pub fn next(self, measured: Bytes, accounted: Bytes, contexts: Bytes) -> Self {
        let beyond = Bytes(measured.0.saturating_sub(accounted.0));
        let overhead = beyond.min(self.last);
        Self {
            last: beyond,
            overhead,
            overuse: overhead.0 > contexts.0.saturating_add(TOLERANCE.0),
        }
    }
}

impl Daemon {
    /// Looks at every device that has slices; about once a second, and before lists are shown.
    pub(crate) fn audit(&self, book: &mut Book) {
        let devices: Vec<DeviceRecord> = book
            .inventory
            .devices
            .iter()
            .filter(|device| book.owned.contains(&device.uuid))
            .cloned()
            .collect();
        for device in devices {
            // The device first, the ledgers after: what is taken in between is in a ledger before it is on the device.
            let held: HashMap<u32, Option<Bytes>> = holders(&self.nvidia, self.run.path(), &device)
                .into_iter()
                .collect();
            let context = self.settings.limits(&device).context;
            let mut looked: Vec<(usize, Usage, SliceRecord)> = Vec::new();
            for slice in book.slices.values_mut() {
                let limited = slice.record.isolation != Isolation::Env;
                let place = slice.record.place_of(&device.uuid).filter(|_| limited);
                if let Some(place) = place
                    && let Some(usage) = slice.usages().into_iter().nth(place)
                {
                    looked.push((place, usage, slice.shown()));
                }
            }
            let in_ledgers: HashSet<u32> = looked
                .iter()
                .flat_map(|(_, _, shown)| shown.processes.iter().map(|process| process.pid))
                .collect();
            let strays: Vec<u32> = held
                .keys()
                .copied()
                .filter(|pid| !in_ledgers.contains(pid))
                .collect();
            for (place, usage, shown) in looked.iter().filter(|(_, _, shown)| !shown.usage_unknown) {
                // A process that the driver tells nothing of is taken at its word.
                let of_ledger = usage.processes.iter().map(|process| {
                    let told = held.get(&process.pid).copied().flatten();
                    told.unwrap_or(process.memory_used_bytes).0
                });
                // One that was started in the slice and is not in its ledger accounts for nothing. Only where there
                // is a stray at all: this walks through all processes.
                let members = if strays.is_empty() {
                    Vec::new()
                } else {
                    members(shown)
                };
                let astray = strays
                    .iter()
                    .filter(|pid| members.contains(pid))
                    .filter_map(|pid| Some(held.get(pid).copied().flatten()?.0));
                let measured = of_ledger.chain(astray).fold(0, u64::saturating_add);
                let contexts = Bytes(context.0.saturating_mul(usage.processes.len() as u64));
                if let Some(slice) = book.slices.get_mut(&shown.id) {
                    slice.audited(*place, Bytes(measured), usage.used, contexts);
                }
            }
        }
    }

    /// The processes that use a device of this host outside any slice.
    pub fn unmanaged(&self) -> Vec<UnmanagedRecord> {
        let mut book = self.book();
        let devices = book.inventory.devices.clone();
        let records: Vec<SliceRecord> = book.slices.values_mut().map(Slice::shown).collect();
        drop(book);
        let in_ledgers: HashSet<u32> = records
            .iter()
            .flat_map(|slice| slice.processes.iter().map(|process| process.pid))
            .collect();
        let found: Vec<(&DeviceRecord, Holders)> = devices
            .iter()
            .map(|device| (device, holders(&self.nvidia, self.run.path(), device)))
            .collect();
        let mut pids = found.iter().flat_map(|(_, holders)| holders);
        if pids.all(|(pid, _)| in_ledgers.contains(pid)) {
            return Vec::new();
        }
        // Only now: this walks through all processes. A slice without a limiter has no ledger.
        let managed: HashSet<u32> = records.iter().flat_map(members).collect();
        found
            .iter()
            .flat_map(|(device, holders)| outside(device, holders, &managed))
            .collect()
    }

    /// What a slice without a limiter uses is in no ledger: the device tells.
    pub(crate) fn with_device_figures(
        &self,
        devices: &[DeviceRecord],
        mut shown: SliceRecord,
    ) -> SliceRecord {
        if shown.isolation != Isolation::Env {
            return shown;
        }
        let inside: HashSet<u32> = members(&shown).into_iter().collect();
        let mut shares = shown.shares();
        let mut usages = Vec::new();
        for share in &mut shares {
            let Some(device) = devices.iter().find(|device| device.uuid == share.device_uuid) else {
                continue;
            };
            let held = holders(&self.nvidia, self.run.path(), device).into_iter();
            let processes: Vec<ProcessRecord> = held
                .filter(|(pid, _)| inside.contains(pid))
                .map(|(pid, held)| ProcessRecord {
                    pid,
                    command: procs::command(pid),
                    memory_used_bytes: held.unwrap_or(Bytes(0)),
                    memory_spilled_bytes: Bytes(0),
                })
                .collect();
            let used = processes.iter().fold(0_u64, |sum, process| {
                sum.saturating_add(process.memory_used_bytes.0)
            });
            share.memory_used_bytes = Bytes(used);
            usages.push(Usage {
                used: Bytes(used),
                processes,
                ..Usage::default()
            });
        }
        shown.set_shares(shares);
        shown.processes = together(usages);
        // Of a rung that limits nothing.
        shown
            .conditions
            .retain(|condition| *condition != Condition::OverLimit);
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_beyond_the_ledger_is_overhead_and_much_of_it_overuse() {
        let mib = |n: u64| Bytes(n << 20);
        let first = Audited::default().next(mib(500), mib(100), mib(0));
        assert_eq!(
            (first.overhead, first.overuse),
            (mib(0), false),
            "it may be gone at once"
        );
        let second = first.next(mib(500), mib(490), mib(0));
        assert_eq!((second.overhead, second.overuse), (mib(10), false));
        let third = second.next(mib(900), mib(490), mib(0));
        assert_eq!(third.overhead, mib(10), "the lesser of two looks");
        let fourth = third.next(mib(900), mib(490), mib(0));
        assert_eq!((fourth.overhead, fourth.overuse), (mib(410), true));
        let context = third.next(mib(900), mib(490), mib(400));
        assert!(!context.overuse, "a context's cost is no overuse");
        assert_eq!(fourth.next(mib(1), mib(490), mib(0)).overhead, mib(0));
    }
}
