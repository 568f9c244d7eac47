//! Memory of graphs: charged for what the driver has reserved for them on each device.
//!
//! An allocation node takes an address when it is made, and memory when its graph is launched or uploaded; the driver
//! keeps that until it is trimmed. Before a launch, all that its graph's own nodes may take is reserved; afterwards the
//! charge follows what the driver says that it has reserved. Only a graph that still has its memory, from its last launch
//! into the same stream, reserves nothing for it: nobody trims while such a launch is being made.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use divvy_abi::{CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, CUdevice, CUgraphMem_attribute, CUresult};

use super::locked;
use crate::account::{self, Account};
use crate::below::ask::Quiet;
use crate::below::forward;

/// What a graph's allocation nodes take on one device.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// Bytes of pages of allocations that the graph frees itself.
    pub inside: u64,
    /// Bytes of those that outlive a launch.
    pub outside: u64,
}

/// By device.
pub(crate) type Needs = BTreeMap<CUdevice, Need>;

struct Exec {
    needs: Needs,
    /// Where it was last launched, and after how many trims: there it still has its memory.
    backed: Option<(usize, u64)>,
    /// What outlives a launch is freed by the next.
    frees_on_launch: bool,
}

#[derive(Default)]
struct Device {
    account: u8,
    charged: u64,
    /// Reserved for launches that are just being made.
    promised: u64,
}

struct Graphs {
    execs: BTreeMap<usize, Exec>,
    devices: BTreeMap<CUdevice, Device>,
    /// Launches being made of graphs that still have their memory.
    backed: u32,
    /// Trims being made.
    trimming: u32,
}

static GRAPHS: Mutex<Graphs> = Mutex::new(Graphs {
    execs: BTreeMap::new(),
    devices: BTreeMap::new(),
    backed: 0,
    trimming: 0,
});
/// Executable graphs with memory, and devices with a charge for some.
static KNOWN: AtomicUsize = AtomicUsize::new(0);
static TRIMS: AtomicU64 = AtomicU64::new(0);

/// Whether any graph has memory nodes, or memory.
#[inline]
pub(crate) fn any() -> bool {
    KNOWN.load(Ordering::Relaxed) != 0
}

impl Graphs {
    fn count(&self) {
        KNOWN.store(self.execs.len() + self.devices.len(), Ordering::Relaxed);
    }
}

/// An executable graph was made of nodes that need memory.
pub(crate) fn instantiated(exec: usize, needs: Needs, frees_on_launch: bool) {
    if needs.is_empty() {
        return;
    }
    let mut graphs = locked(&GRAPHS);
    graphs.execs.insert(
        exec,
        Exec {
            needs,
            backed: None,
            frees_on_launch,
        },
    );
    graphs.count();
}

/// An executable graph is gone.
pub(crate) fn destroyed(exec: usize) {
    let mut graphs = locked(&GRAPHS);
    graphs.execs.remove(&exec);
    graphs.count();
}

/// Launches or uploads an executable graph into a stream by `call`.
pub(crate) fn launched(exec: usize, stream: usize, call: impl FnOnce() -> CUresult) -> CUresult {
    let (needs, backed) = {
        let mut graphs = locked(&GRAPHS);
        let trimming = graphs.trimming > 0;
        let Some(found) = graphs.execs.get_mut(&exec) else {
            drop(graphs);
            return call();
        };
        // Taken out meanwhile: a second launch at the same time may be into another stream.
        let was = found.backed.take();
        let backed = was == Some((stream, TRIMS.load(Ordering::Relaxed))) && !trimming;
        let mut needs = found.needs.clone();
        if backed {
            for need in needs.values_mut() {
                need.inside = 0;
                if found.frees_on_launch {
                    need.outside = 0;
                }
            }
            graphs.backed += 1;
        }
        (needs, backed)
    };
    let trims = TRIMS.load(Ordering::Relaxed);
    let result = with_room(&needs, call);
    let mut graphs = locked(&GRAPHS);
    if backed {
        graphs.backed -= 1;
    }
    let quiet = graphs.trimming == 0 && TRIMS.load(Ordering::Relaxed) == trims;
    if result.is_success()
        && quiet
        && let Some(found) = graphs.execs.get_mut(&exec)
    {
        found.backed = Some((stream, trims));
    }
    result
}

/// How long a trim waits for launches that count on nobody trimming. Such a launch is a call that waits for nothing.
const PATIENCE: Duration = Duration::from_millis(100);

/// Has the driver let go of what no graph uses by `call`, while no graph is launched that counts on what it has.
pub(crate) fn trimming(call: impl FnOnce() -> CUresult) -> CUresult {
    let begin = Instant::now();
    let mut graphs = locked(&GRAPHS);
    graphs.trimming += 1;
    while graphs.backed > 0 && begin.elapsed() < PATIENCE {
        drop(graphs);
        std::thread::yield_now();
        graphs = locked(&GRAPHS);
    }
    drop(graphs);
    let result = call();
    TRIMS.fetch_add(1, Ordering::Relaxed);
    locked(&GRAPHS).trimming -= 1;
    follow();
    result
}

/// Makes `call`, which may take what `needs` say, if there is room for that.
pub(crate) fn with_room(needs: &Needs, call: impl FnOnce() -> CUresult) -> CUresult {
    let mut promises: Vec<(CUdevice, Account, u64)> = Vec::new();
    let mut refused = None;
    for (device, need) in needs {
        let account = match account::of_device(*device) {
            Ok(Some(account)) => account,
            Ok(None) => continue,
            Err(code) => {
                refused = Some(code);
                break;
            }
        };
        // What lies idle may be another launch's a moment later.
        let bytes = need.inside.saturating_add(need.outside);
        if let Err(code) = account::reserve(account, bytes, "a graph's memory") {
            refused = Some(code);
            break;
        }
        let mut graphs = locked(&GRAPHS);
        let known = graphs.devices.entry(*device).or_default();
        known.account = account.index();
        known.charged += bytes;
        known.promised += bytes;
        graphs.count();
        promises.push((*device, account, bytes));
    }
    let result = refused.unwrap_or_else(call);
    for (device, _, bytes) in promises {
        let mut graphs = locked(&GRAPHS);
        if let Some(known) = graphs.devices.get_mut(&device) {
            known.promised = known.promised.saturating_sub(bytes);
            known.adjust(device);
        }
    }
    result
}

fn figure(device: CUdevice, which: CUgraphMem_attribute) -> Option<u64> {
    let _quiet = Quiet::begin();
    let mut value: u64 = 0;
    // SAFETY: these attributes are 8 bytes wide.
    let result = unsafe { forward::cuDeviceGetGraphMemAttribute(device, which, (&raw mut value).cast()) };
    result.is_success().then_some(value)
}

impl Device {
    /// Has the charge follow what the driver has reserved. What is more than there is room for is tried again later.
    fn adjust(&mut self, device: CUdevice) {
        let Some(account) = account::paid(self.account) else {
            return;
        };
        let Some(reserved) = figure(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) else {
            return;
        };
        let target = super::rounded(reserved) + self.promised;
        if self.charged > target {
            account.give_back(self.charged - target);
            self.charged = target;
        } else if self.charged < target && account.try_reserve(target - self.charged) {
            self.charged = target;
        }
    }
}

/// Has every charge follow.
pub(crate) fn follow() {
    if !any() {
        return;
    }
    let mut graphs = locked(&GRAPHS);
    for (device, known) in &mut graphs.devices {
        known.adjust(*device);
    }
    graphs
        .devices
        .retain(|_, known| known.charged > 0 || known.promised > 0);
    graphs.count();
}

/// The driver has let go of what no graph uses on some device.
pub(crate) fn trimmed() {
    TRIMS.fetch_add(1, Ordering::Relaxed);
    follow();
}

/// Has the driver do so on the account's device.
pub(crate) fn trim(account: Account) {
    if !any() {
        return;
    }
    let graphs = locked(&GRAPHS);
    let device = graphs
        .devices
        .iter()
        .find(|(_, known)| known.account == account.index() && known.charged > known.promised)
        .map(|(device, _)| *device);
    drop(graphs);
    if let Some(device) = device {
        let _quiet = Quiet::begin();
        // SAFETY: any ordinal may be given.
        let _trimmed = trimming(|| unsafe { forward::cuDeviceGraphMemTrim(device) });
    }
}
