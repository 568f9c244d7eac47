//! The figures of a device's driver at one look, by the slices that the processes are in.

use std::collections::HashMap;
use std::path::Path;

use divvy_host::{Nvidia, emulated_engine_use};
use divvy_model::{Bytes, DeviceKind, DeviceRecord};

use crate::decide::supervise::ProcessId;
use crate::decide::supervise::dead::Living;
use crate::decide::supervise::time::Used;
use crate::lookout::devices::{Holders, Look};

/// What the driver says of each process.
pub(super) struct Sight {
    holders: Holders,
    used: Vec<(u32, Used)>,
    /// The use by all processes that have ended, in nanoseconds; none where the driver does not count it.
    dead: Option<u64>,
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

/// The figures of one look, sorted.
#[derive(Default)]
pub(super) struct Sorted {
    /// By slice. Processes that are in none are left out.
    pub by_slice: HashMap<String, OfSlice>,
    /// The use by all processes that have ended, in nanoseconds, and by each that lives.
    pub dead: Option<(u64, Vec<Living>)>,
    /// There is a figure of a process that no look has found alive.
    pub missed_some: bool,
}

/// Which slice a process is in.
pub(super) enum Whose {
    /// This one's.
    Slice(ProcessId, String),
    /// It lives, and is in none.
    Other,
    /// It has ended, and no look has found it alive.
    Unknown,
}

impl Sight {
    /// Asks the driver, or the device's page; none where the driver does not answer.
    pub fn of(nvidia: &Nvidia, run_dir: &Path, device: &DeviceRecord) -> Option<Self> {
        let holders = Look::at(nvidia, run_dir, device).ok()?.holders;
        let (used, dead) = match device.kind {
            DeviceKind::Emulated => match emulated_engine_use(run_dir, &device.uuid) {
                Some((dead, living)) => {
                    let living = living.into_iter();
                    (
                        living.map(|(pid, busy)| (pid, Used::Total(busy))).collect(),
                        Some(dead),
                    )
                }
                None => (Vec::new(), None),
            },
            DeviceKind::Gpu | DeviceKind::Mig | DeviceKind::Partition => {
                let told = nvidia.utilization(&device.uuid).into_iter();
                let used = told.map(|(pid, percent)| (pid, Used::Rate(percent.saturating_mul(100))));
                (used.collect(), None)
            }
        };
        Some(Self { holders, used, dead })
    }

    /// By slice, where `whose` vouches for the process.
    pub fn sorted(self, mut whose: impl FnMut(u32) -> Whose) -> Sorted {
        let mut known: HashMap<u32, Whose> = HashMap::new();
        let mut sorted = Sorted::default();
        for (pid, held) in self.holders {
            let Whose::Slice(id, slice) = known.entry(pid).or_insert_with(|| whose(pid)) else {
                continue;
            };
            let of_slice = sorted.by_slice.entry(slice.clone()).or_default();
            match held {
                Some(held) => of_slice.held.push((*id, held)),
                None => of_slice.is_blind = true,
            }
        }
        let mut living = Vec::with_capacity(self.used.len());
        for (pid, used) in self.used {
            let slice = match known.entry(pid).or_insert_with(|| whose(pid)) {
                Whose::Slice(id, slice) => {
                    let of_slice = sorted.by_slice.entry(slice.clone()).or_default();
                    of_slice.used.push((*id, used));
                    Some(slice.clone())
                }
                Whose::Other => None,
                Whose::Unknown => {
                    sorted.missed_some = true;
                    None
                }
            };
            if let Used::Total(used) = used {
                living.push(Living { pid, used, slice });
            }
        }
        sorted.dead = self.dead.map(|dead| (dead, living));
        sorted
    }
}
