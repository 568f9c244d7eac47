//! The workers of slices under `--isolation enforced`. A slice has one process that listens for its programs, and starts
//! a worker for each. Root starts it as a user that no other slice has, and the agent replaces it when it dies.
//! docs/adr/0046 says more.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use divvy_host::find_driver;
use divvy_model::{Bytes, Code, DeviceKind, DeviceRecord, Fault, LifetimeAnchor, SliceRecord, WorkerRecord};
use divvy_privileged::request::{UNLIMITED, WORKER_UIDS};
use divvy_privileged::workers::{Asks, Door, Order, channel, tell};

use crate::journal::Journal;
use crate::launch::stage::DropIns;
use crate::life::records::{ATTACH, QUERIES, WORKER, make_box, make_folder, store};
use crate::page_server::number_of;
use crate::start::rundir::RunDir;
use crate::start::settings::Current;
use crate::state::{Shared, State};
use crate::system::locks::Locks;
use crate::system::privilege;

/// Starts the workers of slices.
pub(crate) struct Workers {
    pub run: RunDir,
    pub state: Shared,
    pub journal: Arc<Journal>,
    /// Held for a slice while its process is started.
    pub starting: Locks,
    pub settings: Arc<Current>,
}

/// It was said that this machine cannot limit the memory of workers.
static NOT_LIMITED: AtomicBool = AtomicBool::new(false);

/// How many users this agent has chosen.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The user for the workers of one more slice.
///
/// # Errors
/// [`Code::NotEnforceable`] where as many slices have one as there are users.
pub(crate) fn free_user(state: &State) -> Result<WorkerRecord, Fault> {
    let records = state.slices.values().map(|slice| &slice.record);
    let taken: HashSet<u32> = records
        .filter_map(|record| record.worker.as_ref().map(|worker| worker.uid))
        .collect();
    // Not the one that was free last: processes of it may still be ending. Another agent of this host begins elsewhere.
    let count = WORKER_UIDS.end() - WORKER_UIDS.start() + 1;
    let next = NEXT.fetch_add(1, Relaxed).wrapping_add(std::process::id());
    let free = (0..count)
        .map(|step| WORKER_UIDS.start() + next.wrapping_add(step) % count)
        .find(|uid| !taken.contains(uid));
    let uid =
        free.ok_or_else(|| Fault::new(Code::NotEnforceable, "no user is left for this slice's workers"))?;
    Ok(WorkerRecord {
        uid,
        ..WorkerRecord::default()
    })
}

impl Workers {
    /// Makes sure that a slice of the level `enforced` has a living process that starts workers.
    ///
    /// # Errors
    /// The reason why it has none; [`Code::SliceGone`] when it was deleted meanwhile.
    pub fn keep_up(&self, id: &str) -> Result<(), Fault> {
        // One start at a time for each slice.
        let _alone = self.starting.hold(id);
        let gone = || Fault::new(Code::SliceGone, "the slice was deleted meanwhile");
        let (record, devices) = {
            let state = self.state.lock();
            let slice = state.slices.get(id).ok_or_else(gone)?;
            if !slice.lacks_worker() {
                return Ok(());
            }
            let devices = slice.record.shares.iter();
            let devices = devices.map(|share| state.device(&share.device_uuid));
            (slice.record.clone(), devices.collect::<Result<Vec<_>, _>>()?)
        };
        let worker = self.start(&record, &devices)?;
        let mut state = self.state.lock();
        let Some(slice) = state.slices.get_mut(id) else {
            // It finds its socket gone, and ends.
            return Err(gone());
        };
        if self.journal.may_log(record.uid) {
            tracing::info!(
                slice = record.name,
                worker = worker.pid,
                user = worker.uid,
                "the process for its workers started"
            );
        }
        slice.set_worker(worker);
        let record = slice.stored_form();
        store(&self.run, &record)
    }

    /// The slices that lack one.
    pub fn lacking(&self) -> Vec<String> {
        let state = self.state.lock();
        let slices = state.slices.values().filter(|slice| slice.lacks_worker());
        slices.map(|slice| slice.record.id.clone()).collect()
    }

    fn start(&self, record: &SliceRecord, devices: &[DeviceRecord]) -> Result<WorkerRecord, Fault> {
        let cannot = |error: &dyn std::error::Error| {
            Fault::new(
                Code::NotEnforceable,
                format!("cannot start the workers of slice {}", record.name),
            )
            .because(error)
            .hint("`--isolation supervised` needs none; the agent's log says more")
        };
        let uid = record.device_uid();
        let number =
            number_of(&record.id).ok_or_else(|| cannot(&std::io::Error::other("its id is no number")))?;
        let variables = variables(&self.run, record, devices)?;
        let make = || -> std::io::Result<WorkerRecord> {
            // These replace the sockets of a process that is dead.
            let of_host = Door::Host {
                uid: record.uid,
                below: below(record),
            };
            let (mut sockets, mut doors) = (Vec::new(), Vec::new());
            for (name, asks) in [(QUERIES, Asks::Queries), (WORKER, Asks::Calls)] {
                sockets.push(make_folder(&self.run, &record.id)?.listen_for_messages(name, 0o666)?);
                doors.push((asks, of_host.clone()));
                sockets.push(make_box(&self.run, &record.id)?.listen_for_messages(name, 0o666)?);
                doors.push((asks, Door::Container));
            }
            let order = Order {
                socket: self.run.slice(&record.id).join(WORKER),
                doors,
                variables,
            };
            let (ours, its) = channel()?;
            let memory = memory(devices, self.settings.get().worker_memory);
            let (pid, start_ticks, is_limited) =
                privilege::start_worker(&self.run, number, uid, memory, its.as_fd())?;
            if memory != UNLIMITED && !is_limited && !NOT_LIMITED.swap(true, Relaxed) {
                tracing::warn!(
                    "workers of `--isolation enforced` have no limit of host memory: this machine's control groups have no \
                     memory controller that the helper can write to. Where systemd starts it, `divvy agent install` lets it \
                     once `worker_memory` is set"
                );
            }
            // The agent's own descriptors are closed then, or a client of a dead process would wait instead of being
            // refused.
            let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
            tell(&ours, &order, &sockets)?;
            Ok(WorkerRecord {
                uid,
                pid,
                start_ticks,
            })
        };
        make().map_err(|error| cannot(&error))
    }
}

/// So much of the host's memory may all workers of a slice have, in bytes. An emulated device's memory is the host's, and a
/// slice may be resized up to all of it.
fn memory(devices: &[DeviceRecord], beside: Option<Bytes>) -> u64 {
    let Some(Bytes(beside)) = beside else {
        return UNLIMITED;
    };
    let emulated = devices
        .iter()
        .filter(|device| device.kind == DeviceKind::Emulated);
    let sum = emulated.fold(beside, |sum, device| {
        sum.saturating_add(device.memory_total_bytes.0)
    });
    // The largest number of all says that there is no limit.
    sum.min(UNLIMITED - 1)
}

/// The `divvy run` that the slice goes with: only its descendants have workers.
fn below(record: &SliceRecord) -> Option<(u32, u64)> {
    match record.lifetime_anchor {
        Some(LifetimeAnchor::Process { pid, start_ticks }) => Some((pid, start_ticks)),
        _ => None,
    }
}

/// The variables of a worker: what a program of the slice would have under `cooperative`. No more of the agent's own
/// environment goes along.
fn variables(
    run: &RunDir,
    record: &SliceRecord,
    devices: &[DeviceRecord],
) -> Result<Vec<(String, OsString)>, Fault> {
    let drop_ins = DropIns::find()?;
    let mut variables: Vec<(String, OsString)> = Vec::new();
    let mut set = |name: &str, value: OsString| variables.push((name.into(), value));
    if devices.iter().all(|device| device.kind == DeviceKind::Emulated) {
        set("DIVVY_DRIVER", drop_ins.emulated.cuda.into());
        set("DIVVY_NVML", drop_ins.emulated.nvml.into());
    } else {
        let driver = find_driver(None, std::slice::from_ref(&drop_ins.limiter.cuda))?;
        set("DIVVY_DRIVER", driver.path.into());
        // It writes no file, so it keeps nothing of what it compiles.
        set("CUDA_CACHE_DISABLE", "1".into());
    }
    if let Some(spec) = &record.emulated_spec {
        set("DIVVY_EMULATED", spec.into());
    }
    // The emulated driver makes a folder there for what programs of one user share. Workers share nothing.
    set("XDG_RUNTIME_DIR", "/nonexistent".into());
    set("DIVVY_RUN_DIR", run.path().into());
    set("DIVVY_SLICE", run.slice(&record.id).join(ATTACH).into());
    set("CUDA_DEVICE_ORDER", "PCI_BUS_ID".into());
    let uuids: Vec<&str> = devices.iter().map(|device| device.uuid.as_str()).collect();
    set("CUDA_VISIBLE_DEVICES", uuids.join(",").into());
    Ok(variables)
}
