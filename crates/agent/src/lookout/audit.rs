//! The auditor: what the device says that each process holds, beside what the ledgers say. The difference is the
//! driver's own overhead, or a process that does not account for all it has; and who is in no ledger is in no slice.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use divvy_host::{Nvidia, Silence, emulated_use};
use divvy_model::{
    Bytes, Condition, DeviceKind, DeviceRecord, Isolation, ProcessRecord, SliceRecord, UnmanagedRecord,
};

use crate::daemon::{Daemon, State};
use crate::life::pages::Usage;
use crate::life::slice::{Slice, together};
use crate::system::procs;

/// What may be held beyond the ledger and the contexts before it is called overuse: what drivers round and cache.
const TOLERANCE: Bytes = Bytes(32 << 20);

/// The processes on a device and what each holds, where the driver tells.
pub(crate) type Holders = Vec<(u32, Option<Bytes>)>;

/// What a device's driver, or its page, tells of its use.
#[derive(Default)]
pub(crate) struct Look {
    /// By anybody; nothing where it is not told.
    pub used: Option<Bytes>,
    /// By whom.
    pub holders: Holders,
}

impl Look {
    /// Asks.
    ///
    /// # Errors
    /// [`Silence`]: the driver hangs.
    pub fn at(nvidia: &Nvidia, run_dir: &Path, device: &DeviceRecord) -> Result<Self, Silence> {
        Ok(match device.kind {
            DeviceKind::Emulated => {
                let told = emulated_use(run_dir, &device.uuid);
                let (used, holders) = told.map_or_else(Default::default, |(used, all)| (Some(used), all));
                let holders = holders.into_iter().map(|(pid, held)| (pid, Some(held)));
                Self {
                    used,
                    holders: holders.collect(),
                }
            }
            DeviceKind::Gpu | DeviceKind::Mig | DeviceKind::Partition => {
                let told = nvidia.usage(&device.uuid)?;
                Self {
                    used: told.used,
                    holders: told.processes,
                }
            }
        })
    }

    /// What is in use and is no living process's: what a dead one left to others, and what the driver keeps for itself.
    /// 0 where that cannot be told: for a process of which the driver tells nothing, and for an instance, whose memory
    /// processes of others may hold.
    pub fn unheld(&self, device: &DeviceRecord) -> Bytes {
        let of_one = match device.kind {
            DeviceKind::Gpu => true,
            DeviceKind::Emulated => !device.uuid.starts_with("MIG-"),
            DeviceKind::Mig | DeviceKind::Partition => false,
        };
        let told: Option<u64> = self
            .holders
            .iter()
            .try_fold(0_u64, |sum, (_, held)| Some(sum.saturating_add((*held)?.0)));
        match (self.used, told) {
            (Some(used), Some(held)) if of_one => Bytes(used.0.saturating_sub(held)),
            _ => Bytes(0),
        }
    }
}

/// Asks the device's driver, or its page, who uses it. Of a driver that hangs nobody is known.
pub(crate) fn holders(nvidia: &Nvidia, run_dir: &Path, device: &DeviceRecord) -> Holders {
    Look::at(nvidia, run_dir, device).map_or_else(|_| Holders::new(), |look| look.holders)
}

/// The processes on these devices when no agent runs: nobody says that they are in a slice.
///
/// # Errors
/// [`Silence`]: the driver hangs.
pub fn strangers(
    nvidia: &Nvidia,
    run_dir: &Path,
    devices: &[DeviceRecord],
) -> Result<Vec<UnmanagedRecord>, Silence> {
    let mut found = Vec::new();
    for device in devices {
        let look = Look::at(nvidia, run_dir, device)?;
        found.extend(outside(device, &look.holders, &HashSet::new()));
    }
    Ok(found)
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
    /// The next look. What is given back while the auditor looks is in the device's figure and in the first of the ledger's.
    ///
    /// A look that a tenant asked for lowers the overhead and raises nothing: two of them may be so near to each other that
    /// they see the same moment.
    #[must_use]
    pub fn next(self, seen: Seen, why: Why) -> Self {
        let [before, after] = seen.accounted;
        let beyond = Bytes(seen.measured.0.saturating_sub(before.max(after).0));
        let (last, overhead) = match why {
            Why::Time => (beyond, beyond.min(self.last)),
            Why::Asked => (self.last, beyond.min(self.overhead)),
        };
        Self {
            last,
            overhead,
            overuse: overhead.0 > seen.contexts.0.saturating_add(TOLERANCE.0),
        }
    }
}

/// What one look at a slice on a device saw.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// By the device.
    pub measured: Bytes,
    /// In the ledger, just before and just after.
    pub accounted: [Bytes; 2],
    /// What its contexts come to.
    pub contexts: Bytes,
}

/// Why the auditor looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It was time, or somebody looks at lists.
    Time,
    /// A tenant is about to be refused.
    Asked,
}

impl Daemon {
    /// Looks at every device that has slices; about once a second, and before lists are shown.
    pub(crate) fn audit(&self, state: &mut State) {
        let devices: Vec<DeviceRecord> = state
            .inventory
            .devices
            .iter()
            .filter(|device| state.owned.contains(&device.uuid))
            .cloned()
            .collect();
        for device in &devices {
            self.audit_device(state, device, Why::Time);
        }
    }

    /// Looks at one device that has slices.
    pub(crate) fn audit_device(&self, state: &mut State, device: &DeviceRecord, why: Why) {
        // The ledgers, the device, the ledgers again: what is taken in between is in a ledger before it is on the
        // device, and what is given back leaves the device first.
        let before: HashMap<String, (Bytes, u32)> = state
            .slices
            .values_mut()
            .filter_map(|slice| {
                let place = slice.record.place_of(&device.uuid)?;
                // Whoever asks from here on may mean another look.
                let asked = slice.looks_asked(place);
                let usage = slice.usages().into_iter().nth(place)?;
                Some((slice.record.id.clone(), (usage.used, asked)))
            })
            .collect();
        let Ok(look) = Look::at(&self.nvidia, self.run.path(), device) else {
            // What the last look found stands until there is another.
            return;
        };
        // What the device has for nobody alive is first of all what ledgers say that their dead have paid for.
        let mut unheld = look.unheld(device);
        let held: HashMap<u32, Option<Bytes>> = look.holders.into_iter().collect();
        let context = self.settings.limits(device).context;
        let mut looked: Vec<(usize, Usage, SliceRecord)> = Vec::new();
        for slice in state.slices.values_mut() {
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
        if state.note_strays(&device.uuid, &strays) {
            self.strays.give();
        }
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
                self.members(shown)
            };
            let astray = strays
                .iter()
                .filter(|pid| members.contains(pid))
                .filter_map(|pid| Some(held.get(pid).copied().flatten()?.0));
            let of_the_dead = usage.of_the_dead().min(unheld);
            unheld = Bytes(unheld.0 - of_the_dead.0);
            let all = of_ledger.chain(astray).chain([of_the_dead.0]);
            let measured = all.fold(0, u64::saturating_add);
            let contexts = Bytes(context.0.saturating_mul(usage.processes.len() as u64));
            if let Some(slice) = state.slices.get_mut(&shown.id) {
                let (first, asked) = before.get(&shown.id).copied().unwrap_or_default();
                slice.audited(
                    *place,
                    Seen {
                        measured: Bytes(measured),
                        accounted: [first, usage.used],
                        contexts,
                    },
                    why,
                );
                slice.note_look(*place, asked);
            }
        }
    }

    /// The processes that use a device of this host outside any slice.
    pub fn unmanaged(&self) -> Vec<UnmanagedRecord> {
        let mut state = self.state();
        let devices = state.inventory.devices.clone();
        let records: Vec<SliceRecord> = state.slices.values_mut().map(Slice::shown).collect();
        drop(state);
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
        let managed: HashSet<u32> = records.iter().flat_map(|slice| self.members(slice)).collect();
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
        let inside: HashSet<u32> = self.members(&shown).into_iter().collect();
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
        let look = |before: Audited, measured, accounted, contexts| {
            let seen = Seen {
                measured,
                accounted,
                contexts,
            };
            before.next(seen, Why::Time)
        };
        let first = look(Audited::default(), mib(500), [mib(100); 2], mib(0));
        assert_eq!(
            (first.overhead, first.overuse),
            (mib(0), false),
            "it may be gone at once"
        );
        let second = look(first, mib(500), [mib(490); 2], mib(0));
        assert_eq!((second.overhead, second.overuse), (mib(10), false));
        let third = look(second, mib(900), [mib(490); 2], mib(0));
        assert_eq!(third.overhead, mib(10), "the lesser of two looks");
        let fourth = look(third, mib(900), [mib(490); 2], mib(0));
        assert_eq!((fourth.overhead, fourth.overuse), (mib(410), true));
        let context = look(third, mib(900), [mib(490); 2], mib(400));
        assert!(!context.overuse, "a context's cost is no overuse");
        assert_eq!(look(fourth, mib(1), [mib(490); 2], mib(0)).overhead, mib(0));
        let freeing = look(first, mib(500), [mib(500), mib(100)], mib(0));
        assert_eq!(freeing.overhead, mib(0), "given back while it was looked at");

        let asked = |before: Audited, measured| {
            let seen = Seen {
                measured,
                accounted: [mib(490); 2],
                contexts: mib(0),
            };
            before.next(seen, Why::Asked)
        };
        let lower = asked(fourth, mib(495));
        assert_eq!(
            (lower.overhead, lower.overuse),
            (mib(5), false),
            "what is gone is gone at once"
        );
        let again = asked(asked(lower, mib(900)), mib(900));
        assert_eq!(again.overhead, mib(5), "asking twice raises nothing");
        assert_eq!(
            look(again, mib(900), [mib(490); 2], mib(0)).overhead,
            mib(410),
            "time does"
        );
    }
}
