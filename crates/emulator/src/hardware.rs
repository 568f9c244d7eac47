//! The page an emulated device shares between processes: who holds how much of its memory.
//!
//! On hardware the device itself knows. Here it is a ledger in a file on tmpfs, one per device, in the user's run
//! directory. A process takes a place in it with its first context and loses it when it dies; what the dead held
//! returns to the device. Unlike hardware, a hostile process of the same user could scribble on the page.

use crate::container;
use crate::device::identity::Uuid;
use crate::engine::page;
use crate::engine::usage::page_path;
use crate::inventory::DeviceFacts;
use crate::log;
use crate::memory::heap::{Charge, OutOfMemory};
use crate::mig::{self, Store, StoreError};
use crate::shared::deed::Deeds;
use crate::shared::lock;
use divvy_ledger::{
    Backing, Ledger, PAGE_ABI_VERSION, PageError, ReserveError, Slot, SlotOwner, Snapshot, make_file,
    open_file,
};
use rustix::io::Errno;
use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Why a device's page cannot be used; Display is one sentence.
#[derive(Debug)]
pub enum HardwareError {
    /// The run directory cannot be made or read.
    Directory(PathBuf, io::Error),
    /// The run directory belongs to somebody else, who could read or replace what is in it.
    Foreign(PathBuf),
    /// The page itself.
    Page(PathBuf, PageError),
    /// What the device is divided into.
    Mig(StoreError),
    /// The device was divided, or its instance removed, since this process began to use CUDA.
    Gone(String),
}

impl fmt::Display for HardwareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HardwareError::Directory(path, why) => {
                write!(
                    f,
                    "run directory {}: {why}; set DIVVY_RUN_DIR to a writable directory",
                    path.display()
                )
            }
            HardwareError::Foreign(path) => {
                write!(
                    f,
                    "run directory {} belongs to another user; set DIVVY_RUN_DIR",
                    path.display()
                )
            }
            HardwareError::Page(path, why) => write!(f, "hardware page {}: {why}", path.display()),
            HardwareError::Mig(why) => write!(f, "{why}"),
            HardwareError::Gone(id) => write!(f, "{id} is there no more: MIG was changed since cuInit"),
        }
    }
}

impl std::error::Error for HardwareError {}

/// A device's memory as shared with every process that uses it.
pub struct Hardware {
    /// Memory of the device that several processes hold.
    pub deeds: Arc<Deeds>,
    /// Where events of several processes are.
    pub events: PathBuf,
    /// Where the page of its engine is.
    pub engine: PathBuf,
    path: PathBuf,
    /// Of a MIG device: where it is told who runs there, and not elsewhere on the same memory.
    presence: Option<PathBuf>,
    /// Of a product with MIG: what it is divided into.
    division: Option<Store>,
    facts: DeviceFacts,
    limit: Option<u64>,
    slot: OnceLock<Slot>,
    present: OnceLock<Slot>,
    claiming: Mutex<()>,
}

/// What one process holds of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Its id.
    pub pid: u32,
    /// Device memory it holds, in bytes.
    pub used_bytes: u64,
    /// GPU instance and compute instance in which it runs.
    pub instance: Option<(u32, u32)>,
}

/// What all processes hold of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Device memory in use, in bytes. What processes share is counted once; for the moment between the end of the
    /// process that paid for it and the next call of another that has it, it is none of `processes`'.
    pub used_bytes: u64,
    /// Living processes that have a context on the device, in order of their pid.
    pub processes: Vec<ProcessUsage>,
}

/// Who uses a device and how much of it, read from its page without touching a driver. A device nobody has used
/// yet has no page and no use. `id` is its UUID as everybody writes it: `GPU-…`, or `MIG-…`.
pub fn usage(id: &str) -> Result<Usage, HardwareError> {
    usage_in(&run_directory(), id)
}

/// The same for a device of the run directory `directory`, whatever this process's own is. Of a GPU in MIG mode: what
/// is used of all its instances. Of an instance that is there no more: nothing.
pub fn usage_in(directory: &Path, id: &str) -> Result<Usage, HardwareError> {
    let Some(uuid) = Uuid::parse(id) else {
        return Ok(Usage::default());
    };
    if id.starts_with("MIG-") {
        return match mig::find(directory, uuid) {
            None => Ok(Usage::default()),
            Some((_, gpu_instance, compute_instance, memory)) => {
                of_instance(directory, memory, uuid, (gpu_instance, compute_instance))
            }
        };
    }
    let state = Store::of(directory, uuid).read().map_err(HardwareError::Mig)?;
    let mut total = of_page(directory, &page_name(uuid), &deeds_name(uuid))?;
    for held in state.instances.iter().filter(|_| state.on) {
        let memory = mig::gpu_instance_uuid(uuid, held);
        total.used_bytes += of_page(directory, &page_name(memory), &deeds_name(memory))?.used_bytes;
        for compute in &held.compute {
            let own = mig::compute_instance_uuid(memory, compute);
            let usage = of_instance(directory, memory, own, (held.id, compute.id))?;
            total.processes.extend(usage.processes);
        }
    }
    total.processes.sort_unstable_by_key(|process| process.pid);
    Ok(total)
}

/// Whether a living process has a context in a compute instance, or on a whole GPU.
pub fn is_used(directory: &Path, uuid: Uuid) -> Result<bool, HardwareError> {
    let usage = of_page(directory, &page_name(uuid), &deeds_name(uuid))?;
    Ok(!usage.processes.is_empty())
}

/// The memory is the GPU instance's, and so is its use; the processes are those of one compute instance.
fn of_instance(directory: &Path, memory: Uuid, own: Uuid, place: (u32, u32)) -> Result<Usage, HardwareError> {
    let mut usage = of_page(directory, &page_name(memory), &deeds_name(memory))?;
    let present = of_page(directory, &page_name(own), &deeds_name(own))?.processes;
    usage
        .processes
        .retain(|process| present.iter().any(|here| here.pid == process.pid));
    for process in &mut usage.processes {
        process.instance = Some(place);
    }
    Ok(usage)
}

/// Read and never mapped: whoever uses the device may shorten the file, and is not to end those who only look.
fn of_page(directory: &Path, page: &Path, deeds: &str) -> Result<Usage, HardwareError> {
    let path = directory.join(page);
    let page_error = |why| HardwareError::Page(path.clone(), why);
    let file = match lock::open(&path) {
        Err(Errno::NOENT) => return Ok(Usage::default()),
        opened => opened.map_err(|errno| {
            page_error(PageError::System {
                step: "open of a ledger file",
                errno,
            })
        })?,
    };
    let ledger = Snapshot::read(file).map_err(page_error)?;
    let mut processes: Vec<ProcessUsage> = ledger
        .processes()
        .filter(|process| process.alive)
        .map(|process| ProcessUsage {
            // In a container it knows itself by another.
            pid: match process.host_pid {
                0 => process.pid,
                known => known,
            },
            used_bytes: process.used_bytes,
            instance: None,
        })
        .collect();
    processes.sort_unstable_by_key(|process| process.pid);
    Ok(Usage {
        used_bytes: ledger.total_used() + Deeds::new(directory.join(deeds)).unpaid(),
        processes,
    })
}

impl Hardware {
    /// Finds the device's page, making it if nobody has yet. Takes no place in it. `limit`: bytes that this process may
    /// have, where MPS says so.
    pub fn open(facts: &DeviceFacts, limit: Option<u64>) -> Result<Hardware, HardwareError> {
        let directory = run_directory();
        prepare(&directory)?;
        let memory = facts.instance.map_or(facts.uuid, |instance| instance.memory);
        let path = directory.join(page_name(memory));
        open(&path)?;
        let presence = facts.instance.map(|_| directory.join(page_name(facts.uuid)));
        if let Some(presence) = &presence {
            open(presence)?;
        }
        Ok(Hardware {
            deeds: Deeds::new(directory.join(deeds_name(memory))),
            events: directory.join(format!("emulated-{}.events", facts.uuid)),
            engine: page_path(&directory, facts.uuid),
            path,
            presence,
            division: facts.mig_product().map(|_| Store::of(&directory, facts.gpu())),
            facts: *facts,
            limit,
            slot: OnceLock::new(),
            present: OnceLock::new(),
            claiming: Mutex::new(()),
        })
    }

    /// Shows this process among the device's users.
    pub fn join(&self) -> Result<&Slot, HardwareError> {
        if let Some(slot) = self.slot.get() {
            return Ok(slot);
        }
        let _one_claim = self.claiming.lock().unwrap_or_else(PoisonError::into_inner);
        if self.slot.get().is_none() {
            // Until both places are taken nobody may remove what they are on.
            let _held = match &self.division {
                None => None,
                Some(store) => {
                    let held = store.hold().map_err(HardwareError::Mig)?;
                    self.check(store)?;
                    Some(held)
                }
            };
            if let Some(presence) = &self.presence {
                let _ = self.present.set(claim(presence)?);
            }
            let _ = self.slot.set(claim(&self.path)?);
        }
        Ok(self.slot.get().expect("claimed above"))
    }

    /// Whether the device is still what it was when the driver looked.
    fn check(&self, store: &Store) -> Result<(), HardwareError> {
        let state = store.read().map_err(HardwareError::Mig)?;
        let there = match self.facts.instance {
            None => !state.on,
            Some(instance) => {
                let gpu = DeviceFacts {
                    uuid: instance.gpu,
                    instance: None,
                    ..self.facts
                };
                let now = mig::compute_instances(&gpu, &state);
                now.iter().any(|now| now.uuid == self.facts.uuid)
            }
        };
        match there {
            true => Ok(()),
            false => Err(HardwareError::Gone(self.facts.id())),
        }
    }

    /// Device memory that no living process holds, in bytes.
    pub fn free_bytes(&self) -> u64 {
        let Ok(slot) = self.join() else { return 0 };
        self.deeds.settle();
        let own = slot.used().unwrap_or(0);
        if slot.total_used().is_some_and(|total| total != own) {
            self.reap();
        }
        let used = slot.total_used().unwrap_or(0).saturating_add(self.deeds.unpaid());
        self.facts.memory_bytes().saturating_sub(used)
    }

    /// Returns to the device what dead processes held.
    fn reap(&self) {
        let reaped = open(&self.path).and_then(|ledger| {
            ledger
                .reap()
                .map_err(|why| HardwareError::Page(self.path.clone(), why))
        });
        if let Err(why) = reaped {
            log::once("reap", why);
        }
    }

    fn reserve(&self, bytes: u64) -> Result<(), ReserveError> {
        let slot = self.join().map_err(|why| {
            log::once("join", why);
            ReserveError::Corrupted
        })?;
        let used_bytes = slot.used().unwrap_or(0);
        if let Some(limit_bytes) = self.limit
            && used_bytes.saturating_add(bytes) > limit_bytes
        {
            return Err(ReserveError::Refused {
                limit_bytes,
                used_bytes,
            });
        }
        slot.reserve(
            bytes,
            self.facts.memory_bytes().saturating_sub(self.deeds.unpaid()),
        )
    }
}

impl Charge for Hardware {
    fn take(&self, bytes: u64) -> Result<(), OutOfMemory> {
        self.deeds.settle();
        let first = self.reserve(bytes);
        if matches!(first, Err(ReserveError::Refused { .. })) {
            self.reap();
            return self.reserve(bytes).map_err(|_| OutOfMemory);
        }
        first.map_err(|why| {
            log::once(
                "reserve",
                format_args!("hardware page {}: {why}", self.path.display()),
            );
            OutOfMemory
        })
    }

    fn take_over(&self, bytes: u64) -> Result<(), OutOfMemory> {
        let slot = self.join().map_err(|why| {
            log::once("join", why);
            OutOfMemory
        })?;
        slot.reserve(bytes, u64::MAX).map_err(|_| OutOfMemory)
    }

    fn give(&self, bytes: u64) {
        if let Some(slot) = self.slot.get()
            && let Err(why) = slot.release(bytes)
        {
            log::once(
                "release",
                format_args!("hardware page {}: {why}", self.path.display()),
            );
        }
    }
}

fn claim(path: &Path) -> Result<Slot, HardwareError> {
    let page_error = |why| HardwareError::Page(path.to_owned(), why);
    let file = open_file(path, PAGE_MODE).map_err(page_error)?;
    let owner = SlotOwner {
        host_pid: container::host_pid(),
    };
    Slot::claim(file, Backing::File, owner).map_err(page_error)
}

/// Only the user's own processes share the user's emulated devices.
pub(crate) const PAGE_MODE: u32 = 0o600;

/// Pages of another layout are other files: after an upgrade, what still runs goes on with its own.
fn page_name(uuid: Uuid) -> PathBuf {
    pages(Path::new("")).join(format!("emulated-{uuid}.{PAGE_ABI_VERSION}.page"))
}

/// Where a run directory has its devices' pages. A container that was granted one writes to it and gives it any mode: on the
/// host they lie where no other user enters.
pub(crate) fn pages(directory: &Path) -> PathBuf {
    match container::granted() {
        Some(_) => directory.into(),
        None => directory.join("emulated"),
    }
}

/// Makes that folder, where the run directory is.
pub(crate) fn make_folder(directory: &Path) -> std::io::Result<()> {
    match DirBuilder::new().mode(0o700).create(pages(directory)) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn deeds_name(uuid: Uuid) -> String {
    format!("emulated-{uuid}.shared")
}

fn open(path: &Path) -> Result<Ledger, HardwareError> {
    open_file(path, PAGE_MODE)
        .and_then(|file| Ledger::open(file, Backing::File))
        .map_err(|why| HardwareError::Page(path.to_owned(), why))
}

/// Finds the pages of a device of the run directory `directory`, making those that nobody has yet: of its memory and of
/// its engine.
pub(crate) fn make_pages(directory: &Path, uuid: Uuid) -> Result<[PathBuf; 2], HardwareError> {
    let failed = |why| HardwareError::Directory(directory.to_owned(), why);
    make_folder(directory).map_err(failed)?;
    let memory = directory.join(page_name(uuid));
    make_file(&memory, PAGE_MODE).map_err(|why| HardwareError::Page(memory.clone(), why))?;
    let engine = page_path(directory, uuid);
    page::make(&engine).map_err(|why| HardwareError::Directory(engine.clone(), why.into()))?;
    Ok([memory, engine])
}

/// What a container has in its place, else `DIVVY_RUN_DIR`, else [`default_run_directory`].
pub fn run_directory() -> PathBuf {
    if let Some(directory) = crate::inventory::stood_for_directory() {
        return directory;
    }
    if container::granted().is_some() {
        return container::FOLDER.into();
    }
    match std::env::var_os("DIVVY_RUN_DIR").filter(|value| !value.is_empty()) {
        Some(directory) => std::path::absolute(&directory).unwrap_or_else(|_| directory.into()),
        None => default_run_directory(),
    }
}

/// The run directory when nobody names one: /run/divvy for root, else under $XDG_RUNTIME_DIR, else /tmp/divvy-UID.
/// The agent keeps its socket and its slices there too.
pub fn default_run_directory() -> PathBuf {
    let user = match rustix::process::getuid().as_raw() {
        // What podman calls for a user without root is root in the user namespace that it made.
        0 => rootless(
            std::env::var("_CONTAINERS_ROOTLESS_UID").ok().as_deref(),
            &fs::read_to_string("/proc/self/uid_map").unwrap_or_default(),
        ),
        user => user,
    };
    if user == 0 {
        return "/run/divvy".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(base) if Path::new(&base).is_absolute() => Path::new(&base).join("divvy"),
        _ => format!("/tmp/divvy-{user}").into(),
    }
}

/// The user whom podman's variable names, in a namespace where root is not the machine's; else root.
fn rootless(named: Option<&str>, map: &str) -> u32 {
    let of_machine = map.split_whitespace().eq(["0", "0", "4294967295"]);
    let named = named.filter(|_| !of_machine).and_then(|text| text.parse().ok());
    named.unwrap_or(0)
}

/// Makes the run directory where it is missing, and refuses one that is somebody else's.
pub fn prepare(directory: &Path) -> Result<(), HardwareError> {
    let failed = |why| HardwareError::Directory(directory.to_owned(), why);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(failed)?;
    // In /tmp anybody may have made it first. Root may look into everybody's anyway.
    let owner = fs::symlink_metadata(directory).map_err(failed)?.uid();
    let user = rustix::process::geteuid().as_raw();
    let chosen = std::env::var_os("DIVVY_RUN_DIR").is_some() || container::granted().is_some();
    if owner != user && user != 0 && !chosen {
        return Err(HardwareError::Foreign(directory.to_owned()));
    }
    make_folder(directory).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn podmans_user_is_believed_in_a_namespace_only() {
        let (machine, namespace) = (
            "         0          0 4294967295\n",
            "         0      65534          1\n",
        );
        assert_eq!(rootless(Some("65534"), namespace), 65534);
        assert_eq!(rootless(Some("65534"), machine), 0);
        assert_eq!(
            (rootless(None, namespace), rootless(Some("x"), namespace)),
            (0, 0)
        );
    }
}
