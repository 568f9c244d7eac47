//! A device's use and its processes, as its driver or its page reports them.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use divvy_host::{Nvidia, Silence, emulated_use};
use divvy_model::{Bytes, DeviceKind, DeviceRecord, UnmanagedRecord};

use crate::system::procs;

/// The processes on a device and the memory of each, where the driver tells.
pub(crate) type Holders = Vec<(u32, Option<Bytes>)>;

/// A device's use, as its driver or its page reports it.
#[derive(Default)]
pub(crate) struct Look {
    /// The bytes in use by all processes; none where the driver does not tell.
    pub used: Option<Bytes>,
    /// The processes that use it.
    pub holders: Holders,
}

impl Look {
    /// Asks the driver or the page.
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

    /// Memory in use that is no living process's: a dead process left it to others, or the driver keeps it for itself.
    /// It is 0 where that cannot be known: for a process without a figure from the driver, and for an instance, whose
    /// memory other users' processes may hold.
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

/// Asks the device's driver, or its page, which processes use it. A driver that hangs yields no processes.
pub(crate) fn holders(nvidia: &Nvidia, run_dir: &Path, device: &DeviceRecord) -> Holders {
    Look::at(nvidia, run_dir, device).map_or_else(|_| Holders::new(), |look| look.holders)
}

/// The processes on these devices when no agent runs: each counts as outside any slice.
///
/// # Errors
/// [`Silence`]: the driver hangs.
pub fn unmanaged_processes(
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

/// The processes on a device that are in no slice.
pub(crate) fn outside(
    device: &DeviceRecord,
    holders: &Holders,
    managed: &HashSet<u32>,
) -> Vec<UnmanagedRecord> {
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
