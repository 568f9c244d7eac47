//! The figures of a device's driver at one look, by the slices that the processes are in.

use std::collections::HashMap;
use std::path::Path;

use divvy_host::{Nvidia, emulated_busy};
use divvy_model::{Bytes, DeviceKind, DeviceRecord};

use crate::decide::supervise::ProcessId;
use crate::decide::supervise::time::Used;
use crate::lookout::devices::{Holders, Look};

/// What the driver says of each process.
pub(super) struct Sight {
    holders: Holders,
    used: Vec<(u32, Used)>,
}

/// What it says of a slice's processes.
#[derive(Debug, Default)]
pub(super) struct OfSlice {
    /// The memory of each.
    pub held: Vec<(ProcessId, Bytes)>,
    /// The use of the device by each.
    pub used: Vec<(ProcessId, Used)>,
    /// It gives no figure of the memory of one of them.
    pub is_blind: bool,
}

impl Sight {
    /// Asks the driver, or the device's page; none where the driver does not answer.
    pub fn of(nvidia: &Nvidia, run_dir: &Path, device: &DeviceRecord) -> Option<Self> {
        let holders = Look::at(nvidia, run_dir, device).ok()?.holders;
        let used = match device.kind {
            DeviceKind::Emulated => emulated_busy(run_dir, &device.uuid)
                .into_iter()
                .map(|(pid, busy)| (pid, Used::Total(busy)))
                .collect(),
            DeviceKind::Gpu | DeviceKind::Mig | DeviceKind::Partition => nvidia
                .utilization(&device.uuid)
                .into_iter()
                .map(|(pid, percent)| (pid, Used::Rate(percent.saturating_mul(100))))
                .collect(),
        };
        Some(Self { holders, used })
    }

    /// By slice, where `slice_of` vouches for the process. Others are left out.
    pub fn by_slice(
        self,
        mut slice_of: impl FnMut(u32) -> Option<(ProcessId, String)>,
    ) -> HashMap<String, OfSlice> {
        let mut known: HashMap<u32, Option<(ProcessId, String)>> = HashMap::new();
        let mut all: HashMap<String, OfSlice> = HashMap::new();
        for (pid, held) in self.holders {
            let Some((id, slice)) = known.entry(pid).or_insert_with(|| slice_of(pid)) else {
                continue;
            };
            let of_slice = all.entry(slice.clone()).or_default();
            match held {
                Some(held) => of_slice.held.push((*id, held)),
                None => of_slice.is_blind = true,
            }
        }
        for (pid, used) in self.used {
            let Some((id, slice)) = known.entry(pid).or_insert_with(|| slice_of(pid)) else {
                continue;
            };
            all.entry(slice.clone()).or_default().used.push((*id, used));
        }
        all
    }
}
