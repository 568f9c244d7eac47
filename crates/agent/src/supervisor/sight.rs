//! The figures of a device's driver at one look, by the slices that the processes are in.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use divvy_host::{Nvidia, emulated_engine_use};
use divvy_model::{Bytes, DeviceKind, DeviceRecord};

use crate::decide::supervise::ProcessId;
use crate::decide::supervise::dead::Living;
use crate::decide::supervise::time::Used;
use crate::lookout::devices::{Holders, Look};

/// How old the samples of a driver are at most that tells of use as a rate, in nanoseconds.
const SAMPLED: u64 = 1_000_000_000;

/// What the driver says of each process.
pub(super) struct Sight {
    pub holders: Holders,
    pub used: Vec<(u32, Used)>,
    /// The use by all processes that have ended, in nanoseconds; none where the driver does not count it.
    pub dead: Option<u64>,
    /// When the driver was asked, in nanoseconds since boot.
    pub asked: u64,
}

/// The time that a figure is of, in the kernel's ticks since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// From then on at the earliest.
    pub from: u64,
    /// The driver was asked then. A process that began later is none that it told of.
    pub asked: u64,
    /// The same in nanoseconds.
    pub asked_at: u64,
}

impl Told {
    /// A figure of a process up to a driver's answer to a question at `asked`, and of the time before by `sampled`; both
    /// in nanoseconds.
    pub fn at(asked: u64, sampled: u64) -> Self {
        Self {
            from: ticks(asked.saturating_sub(sampled)),
            asked: ticks(asked),
            asked_at: asked,
        }
    }
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
        // What starts while the driver answers may get the number of a process that the answer has.
        let asked = since_boot();
        let holders = Look::at(nvidia, run_dir, device).ok()?.holders;
        let (used, dead) = match device.kind {
            DeviceKind::Emulated => match emulated_engine_use(run_dir, &device.uuid) {
                Some((dead, living)) => (sums(living), Some(dead)),
                None => (Vec::new(), None),
            },
            DeviceKind::Gpu | DeviceKind::Mig | DeviceKind::Partition => {
                let told = nvidia.utilization(&device.uuid).into_iter();
                let used = told.map(|(pid, percent)| (pid, Used::Rate(percent.saturating_mul(100))));
                (used.collect(), None)
            }
        };
        Some(Self {
            holders,
            used,
            dead,
            asked,
        })
    }

    /// The use of all living processes together, in nanoseconds, as far as it is told in all.
    pub fn total(&self) -> u64 {
        let totals = self.used.iter().map(|(_, used)| match used {
            Used::Total(total) => *total,
            Used::Rate(_) => 0,
        });
        totals.fold(0, u64::saturating_add)
    }

    /// By slice, where `whose` vouches for the process.
    pub fn sorted(self, mut whose: impl FnMut(u32, Told) -> Whose) -> Sorted {
        let mut known: HashMap<u32, Whose> = HashMap::new();
        let now = Told::at(self.asked, 0);
        let mut sorted = Sorted::default();
        for (pid, held) in self.holders {
            let (id, slice) = match known.entry(pid).or_insert_with(|| whose(pid, now)) {
                Whose::Slice(id, slice) => (id, slice),
                Whose::Other => continue,
                Whose::Unknown => {
                    sorted.missed_some = true;
                    continue;
                }
            };
            let of_slice = sorted.by_slice.entry(slice.clone()).or_default();
            match held {
                Some(held) => of_slice.held.push((*id, held)),
                None => of_slice.is_blind = true,
            }
        }
        let mut living = Vec::with_capacity(self.used.len());
        for (pid, used) in self.used {
            let of_rate;
            let found = match used {
                Used::Total(_) => &*known.entry(pid).or_insert_with(|| whose(pid, now)),
                Used::Rate(_) => {
                    of_rate = whose(pid, Told::at(self.asked, SAMPLED));
                    &of_rate
                }
            };
            let slice = match found {
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

/// The use by each process. One that has two of the driver's libraries loaded has two places on the device's page.
fn sums(living: Vec<(u32, u64)>) -> Vec<(u32, Used)> {
    let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
    for (pid, busy) in living {
        let sum = sums.entry(pid).or_default();
        *sum = sum.saturating_add(busy);
    }
    sums.into_iter()
        .map(|(pid, sum)| (pid, Used::Total(sum)))
        .collect()
}

/// The kernel's ticks of a time in nanoseconds.
fn ticks(nanoseconds: u64) -> u64 {
    /// Linux tells all programs of a hundredth of a second, whatever it counts in.
    const TICK: u64 = 10_000_000;
    nanoseconds / TICK
}

/// The time since boot, in nanoseconds, as starts of processes count it.
pub(super) fn since_boot() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = now.tv_sec.unsigned_abs().saturating_mul(1_000_000_000);
    seconds.saturating_add(now.tv_nsec.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_stands_twice_on_the_devices_page_used_both() {
        assert_eq!(
            sums(vec![(7, 30), (8, 1), (7, 50)]),
            [(7, Used::Total(80)), (8, Used::Total(1))]
        );
    }
}
