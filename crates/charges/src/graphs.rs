//! Memory of graphs: charged for the driver's reservation for them on each device.
//!
//! An allocation node takes an address when it is made, and memory when its graph is launched or uploaded. The driver
//! keeps that memory until it is trimmed. Before a launch, the maximum that the graph's own nodes may take is reserved.
//! Afterwards the charge follows the reservation that the driver reports. Only a graph that still has its memory, from
//! its last launch into the same stream, reserves nothing for it: no trim runs during such a launch.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use divvy_abi::{CUdevice, CUresult};

use crate::environment::{Account, Environment, Reserve};
use crate::lock::locked;
use crate::units::rounded;

/// The memory of a graph's allocation nodes on one device.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Need {
    /// Bytes of pages of allocations that the graph frees itself.
    pub inside: u64,
    /// Bytes of allocations that outlive a launch.
    pub outside: u64,
}

/// By device.
pub type Needs = BTreeMap<CUdevice, Need>;

struct Exec {
    needs: Needs,
    /// The stream of the last launch, and the number of trims before it: there the graph still has its memory.
    backed: Option<(usize, u64)>,
    /// Memory that outlives a launch is freed by the next launch.
    frees_on_launch: bool,
}

#[derive(Default)]
struct Device {
    account: u8,
    charged: u64,
    /// Reserved for launches in progress.
    promised: u64,
}

#[derive(Default)]
struct Table {
    execs: BTreeMap<usize, Exec>,
    devices: BTreeMap<CUdevice, Device>,
    /// Launches in progress of graphs that still have their memory.
    backed: u32,
    /// Trims in progress.
    trimming: u32,
}

pub(crate) struct Graphs {
    table: Mutex<Table>,
    /// Executable graphs with memory, and devices with a charge for graphs.
    known: AtomicUsize,
    trims: AtomicU64,
}

/// How long a trim waits for launches that rely on no trim. Such a launch is a call that waits for nothing.
const TRIM_WAIT: Duration = Duration::from_millis(100);

impl Graphs {
    pub const fn new() -> Self {
        Self {
            table: Mutex::new(Table {
                execs: BTreeMap::new(),
                devices: BTreeMap::new(),
                backed: 0,
                trimming: 0,
            }),
            known: AtomicUsize::new(0),
            trims: AtomicU64::new(0),
        }
    }

    /// Whether any graph has memory nodes, or memory.
    #[inline]
    pub fn any(&self) -> bool {
        self.known.load(Ordering::Relaxed) != 0
    }

    fn count(&self, table: &Table) {
        self.known
            .store(table.execs.len() + table.devices.len(), Ordering::Relaxed);
    }

    fn trims(&self) -> u64 {
        self.trims.load(Ordering::Relaxed)
    }

    /// An executable graph was made of nodes that need memory.
    pub fn instantiated(&self, exec: usize, needs: Needs, frees_on_launch: bool) {
        let mut table = locked(&self.table);
        table.execs.insert(
            exec,
            Exec {
                needs,
                backed: None,
                frees_on_launch,
            },
        );
        self.count(&table);
    }

    /// An executable graph is gone.
    pub fn destroyed(&self, exec: usize) {
        let mut table = locked(&self.table);
        table.execs.remove(&exec);
        self.count(&table);
    }

    /// Launches or uploads an executable graph into a stream by `call`.
    pub fn launched<E: Environment>(
        &self,
        env: &E,
        room: &impl Reserve<E::Account>,
        exec: usize,
        stream: usize,
        call: impl FnOnce() -> CUresult,
    ) -> CUresult {
        let (needs, backed) = {
            let mut table = locked(&self.table);
            let trimming = table.trimming > 0;
            let Some(found) = table.execs.get_mut(&exec) else {
                drop(table);
                return call();
            };
            // Taken out meanwhile: a second launch at the same time may be into another stream.
            let was = found.backed.take();
            let backed = was == Some((stream, self.trims())) && !trimming;
            let mut needs = found.needs.clone();
            if backed {
                for need in needs.values_mut() {
                    need.inside = 0;
                    if found.frees_on_launch {
                        need.outside = 0;
                    }
                }
                table.backed += 1;
            }
            (needs, backed)
        };
        let trims = self.trims();
        let result = self.with_room(env, room, &needs, call);
        let mut table = locked(&self.table);
        if backed {
            table.backed -= 1;
        }
        let quiet = table.trimming == 0 && self.trims() == trims;
        if result.is_success()
            && quiet
            && let Some(found) = table.execs.get_mut(&exec)
        {
            found.backed = Some((stream, trims));
        }
        result
    }

    /// Makes the driver release memory that no graph uses, by `call`, while no launch relies on that memory.
    pub fn trimming(&self, env: &impl Environment, call: impl FnOnce() -> CUresult) -> CUresult {
        let begin = Instant::now();
        let mut table = locked(&self.table);
        table.trimming += 1;
        while table.backed > 0 && begin.elapsed() < TRIM_WAIT {
            drop(table);
            std::thread::yield_now();
            table = locked(&self.table);
        }
        drop(table);
        let result = call();
        self.trims.fetch_add(1, Ordering::Relaxed);
        locked(&self.table).trimming -= 1;
        self.follow(env);
        result
    }

    /// Makes `call`, which may take as much memory as `needs` says, if that fits.
    pub fn with_room<E: Environment>(
        &self,
        env: &E,
        room: &impl Reserve<E::Account>,
        needs: &Needs,
        call: impl FnOnce() -> CUresult,
    ) -> CUresult {
        let mut promises: Vec<(CUdevice, u64)> = Vec::new();
        let mut refused = None;
        for (device, need) in needs {
            let account = match env.of_device(*device) {
                Ok(Some(account)) => account,
                Ok(None) => continue,
                Err(code) => {
                    refused = Some(code);
                    break;
                }
            };
            // Idle memory may be in use by another launch a moment later.
            let bytes = need.inside.saturating_add(need.outside);
            if let Err(code) = room.reserve(account, bytes, "a graph's memory") {
                refused = Some(code);
                break;
            }
            let mut table = locked(&self.table);
            let known = table.devices.entry(*device).or_default();
            known.account = account.index();
            known.charged += bytes;
            known.promised += bytes;
            self.count(&table);
            promises.push((*device, bytes));
        }
        let result = refused.unwrap_or_else(call);
        for (device, bytes) in promises {
            let mut table = locked(&self.table);
            if let Some(known) = table.devices.get_mut(&device) {
                known.promised = known.promised.saturating_sub(bytes);
                known.adjust(env, device);
            }
        }
        result
    }

    /// Updates every charge.
    pub fn follow(&self, env: &impl Environment) {
        if !self.any() {
            return;
        }
        let mut table = locked(&self.table);
        for (device, known) in &mut table.devices {
            known.adjust(env, *device);
        }
        table
            .devices
            .retain(|_, known| known.charged > 0 || known.promised > 0);
        self.count(&table);
    }

    /// The driver has released memory that no graph uses on some device.
    pub fn trimmed(&self, env: &impl Environment) {
        self.trims.fetch_add(1, Ordering::Relaxed);
        self.follow(env);
    }

    /// Makes the driver do so on the account's device.
    pub fn trim(&self, env: &impl Environment, account: u8) {
        if !self.any() {
            return;
        }
        let table = locked(&self.table);
        let mut devices = table.devices.iter();
        let device = devices
            .find(|(_, known)| known.account == account && known.charged > known.promised)
            .map(|(device, _)| *device);
        drop(table);
        if let Some(device) = device {
            let _trimmed = self.trimming(env, || env.trim_graphs(device));
        }
    }
}

impl Device {
    /// Updates the charge to the driver's reservation. A part that does not fit is tried again later.
    fn adjust(&mut self, env: &impl Environment, device: CUdevice) {
        let Some(account) = env.account(self.account) else {
            return;
        };
        let Some(reserved) = env.graphs_reserved(device) else {
            return;
        };
        let target = rounded(reserved) + self.promised;
        if self.charged > target {
            account.give_back(self.charged - target);
            self.charged = target;
        } else if self.charged < target && account.try_reserve(target - self.charged) {
            self.charged = target;
        }
    }
}
