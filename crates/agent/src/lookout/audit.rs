//! The auditor compares each process's memory on the device with the ledgers. The difference is the driver's own
//! overhead, or a process that does not account for all it has. A process in no ledger is in no slice.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use divvy_host::Nvidia;
use divvy_model::{Bytes, Condition, DeviceRecord, Isolation, ProcessRecord, SliceRecord, UnmanagedRecord};

use crate::decide::overhead::{Seen, Why};
use crate::decide::rules::UsedOn;
use crate::life::members::Members;
use crate::life::pages::Usage;
use crate::life::programs;
use crate::life::slice::{Slice, together};
use crate::lookout::devices::{Holders, Look, holders, outside};
use crate::start::rundir::RunDir;
use crate::start::settings::Current;
use crate::state::{Shared, State};
use crate::system::nudge::Nudge;
use crate::system::procs;

/// The audit of devices' memory.
pub(crate) struct MemoryAudit {
    pub run: RunDir,
    pub nvidia: Arc<Nvidia>,
    pub settings: Arc<Current>,
    pub members: Arc<Members>,
    /// This is raised when a process is on a device and in no ledger, and was not there at the audit before.
    pub unmanaged: Arc<Nudge>,
}

impl MemoryAudit {
    /// Looks at every device that has slices; about once a second, and before lists are shown.
    pub fn audit(&self, state: &mut State) {
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
    pub fn audit_device(&self, state: &mut State, device: &DeviceRecord, why: Why) {
        // The order is: the ledgers, the device, the ledgers again. New memory is in a ledger before it is on the
        // device, and freed memory leaves the device first.
        let before: HashMap<String, (Bytes, u32)> = state
            .slices
            .values_mut()
            .filter_map(|slice| {
                let place = slice.record.shares.place_of(&device.uuid)?;
                // A request that comes from here on may need another look.
                let asked = slice.looks_asked(place);
                let usage = slice.usages().into_iter().nth(place)?;
                Some((slice.record.id.clone(), (usage.used, asked)))
            })
            .collect();
        let Ok(look) = Look::at(&self.nvidia, self.run.path(), device) else {
            // The last look's result stands until there is another.
            return;
        };
        // Memory of no living process counts first as what the ledgers charge to dead processes.
        let mut unheld = look.unheld(device);
        let held: HashMap<u32, Option<Bytes>> = look.holders.into_iter().collect();
        let context = self.settings.get().limits(device).context;
        let mut looked: Vec<(usize, Usage, SliceRecord)> = Vec::new();
        for slice in state.slices.values_mut() {
            let limited = slice.record.terms.isolation != Isolation::Env;
            let place = slice.record.shares.place_of(&device.uuid).filter(|_| limited);
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
        let unmanaged: Vec<u32> = held
            .keys()
            .copied()
            .filter(|pid| !in_ledgers.contains(pid))
            .collect();
        if state.note_unmanaged(&device.uuid, &unmanaged) {
            self.unmanaged.give();
        }
        for (place, usage, shown) in looked.iter().filter(|(_, _, shown)| !shown.usage_unknown) {
            // The ledger is believed for a process that the driver does not list.
            let of_ledger = usage.processes.iter().map(|process| {
                let told = held.get(&process.pid).copied().flatten();
                told.unwrap_or(process.memory_used_bytes).0
            });
            // A process that was started in the slice and is not in its ledger accounts for nothing. The members are
            // read only where an unmanaged process exists: this walks through all processes.
            let members = if unmanaged.is_empty() {
                Vec::new()
            } else {
                self.members.of(shown)
            };
            let of_unmanaged = unmanaged
                .iter()
                .filter(|pid| members.contains(pid))
                .filter_map(|pid| Some(held.get(pid).copied().flatten()?.0));
            let of_the_dead = usage.of_the_dead().min(unheld);
            unheld = Bytes(unheld.0 - of_the_dead.0);
            let all = of_ledger.chain(of_unmanaged).chain([of_the_dead.0]);
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
    pub fn unmanaged(&self, state: &Shared) -> Vec<UnmanagedRecord> {
        let mut state = state.lock();
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
        // The members are read only now, because this walks through all processes. A slice without a limiter has no
        // ledger.
        let mut managed: HashSet<u32> = records.iter().flat_map(|slice| self.members.of(slice)).collect();
        // A worker that starts or ends is not in its slice's ledger.
        let holding: HashSet<u32> = found
            .iter()
            .flat_map(|(_, holders)| holders.iter().map(|(pid, _)| *pid))
            .collect();
        let is_worker = |pid: &u32| records.iter().any(|slice| programs::is_worker(slice, *pid));
        managed.extend(holding.into_iter().filter(is_worker));
        found
            .iter()
            .flat_map(|(device, holders)| outside(device, holders, &managed))
            .collect()
    }

    /// The memory of a slice without a limiter is in no ledger: the driver's figure counts. So it does for the processes
    /// of a supervised slice that have no limiter in them.
    pub fn with_device_figures(&self, devices: &[DeviceRecord], mut shown: SliceRecord) -> SliceRecord {
        match shown.terms.isolation {
            Isolation::Env => {}
            Isolation::Supervised => return self.with_unaccounted(devices, shown),
            _ => return shown,
        }
        let inside: HashSet<u32> = self.members.of(&shown).into_iter().collect();
        let mut usages = Vec::new();
        for share in shown.shares.iter_mut() {
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
        shown.processes = together(usages);
        // The isolation level limits nothing, so the slice cannot exceed its limit.
        shown
            .conditions
            .retain(|condition| *condition != Condition::OverLimit);
        shown
    }

    /// Adds the slice's processes that are in no ledger, with the driver's figures.
    fn with_unaccounted(&self, devices: &[DeviceRecord], mut shown: SliceRecord) -> SliceRecord {
        let known: HashSet<u32> = shown.processes.iter().map(|process| process.pid).collect();
        let mut inside: Option<HashSet<u32>> = None;
        let mut found: Vec<ProcessRecord> = Vec::new();
        for place in 0..shown.shares.iter().count() {
            let uuid = shown
                .shares
                .iter()
                .nth(place)
                .map(|share| share.device_uuid.clone());
            let Some(device) = devices.iter().find(|device| Some(&device.uuid) == uuid.as_ref()) else {
                continue;
            };
            for (pid, held) in holders(&self.nvidia, self.run.path(), device) {
                // All processes are looked at for the members: only where there is one to be found.
                if known.contains(&pid)
                    || !inside
                        .get_or_insert_with(|| self.members.of(&shown).into_iter().collect())
                        .contains(&pid)
                {
                    continue;
                }
                let held = held.unwrap_or(Bytes(0));
                if let Some(share) = shown.shares.iter_mut().nth(place) {
                    share.memory_used_bytes = Bytes(share.memory_used_bytes.0.saturating_add(held.0));
                }
                match found.iter_mut().find(|process| process.pid == pid) {
                    Some(process) => {
                        process.memory_used_bytes = Bytes(process.memory_used_bytes.0.saturating_add(held.0));
                    }
                    None => found.push(ProcessRecord {
                        pid,
                        command: procs::command(pid),
                        memory_used_bytes: held,
                        memory_spilled_bytes: Bytes(0),
                    }),
                }
            }
        }
        shown.processes.extend(found);
        shown
    }

    /// The memory in use on a device, and how much of it programs outside any slice hold.
    pub fn used_on(&self, state: &mut State, device: &DeviceRecord) -> UsedOn {
        // The device is read first: memory that comes or goes in between then never looks unmanaged.
        let look = Look::at(&self.nvidia, self.run.path(), device).unwrap_or_default();
        let mut unheld = look.unheld(device);
        let mut managed = 0_u64;
        for slice in state.slices.values_mut() {
            let Some(place) = slice.record.shares.place_of(&device.uuid) else {
                continue;
            };
            if slice.record.terms.isolation == Isolation::Env {
                // Its memory is in no ledger: the driver's figure counts, as far as there is one.
                let shown = self.with_device_figures(std::slice::from_ref(device), slice.shown());
                managed = managed.saturating_add(shown.shares.first.memory_used_bytes.0);
                continue;
            }
            let usage = slice.usages().into_iter().nth(place).unwrap_or_default();
            let used = usage.used.0;
            unheld = Bytes(unheld.0.saturating_sub(usage.of_the_dead().0));
            // Contexts are in the ledger; the auditor has found the rest of them.
            managed = managed
                .saturating_add(used)
                .saturating_add(slice.overhead(place).0);
        }
        let used = look.used.unwrap_or(Bytes(managed));
        let rest = used.0.saturating_sub(managed);
        let unheld = unheld.min(Bytes(rest));
        UsedOn {
            device: used,
            unmanaged: Bytes(rest - unheld.0),
            unheld,
        }
    }

    /// Whether the device's driver says what each process holds. Where no process uses the device, it may.
    pub fn is_told(&self, device: &DeviceRecord) -> bool {
        let look = Look::at(&self.nvidia, self.run.path(), device);
        look.is_ok_and(|look| look.holders.iter().all(|(_, held)| held.is_some()))
    }

    /// The processes with memory on a device of this agent's, or with a context where the driver gives no figure.
    pub fn holding(&self, state: &Shared) -> HashSet<u32> {
        let state = state.lock();
        let owned = state.inventory.devices.iter();
        let owned: Vec<_> = owned
            .filter(|device| state.owned.contains(&device.uuid))
            .cloned()
            .collect();
        drop(state);
        owned
            .iter()
            .flat_map(|device| holders(&self.nvidia, self.run.path(), device))
            .filter(|(_, held)| held.is_none_or(|held| !held.is_zero()))
            .map(|(pid, _)| pid)
            .collect()
    }
}
