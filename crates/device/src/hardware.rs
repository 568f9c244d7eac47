//! The page an emulated device shares between processes: which process holds how much of its memory.
//!
//! On hardware the device itself knows. Here it is a ledger, one per device: a memory file that an agent's holder gives
//! out, or a file in the user's run directory (`pages`). A process takes a place in it with its first context and loses
//! it when it dies. What dead processes held returns to the device. Unlike hardware, a hostile process of the device
//! could corrupt it.

use crate::error::HardwareError;
use crate::inventory::{self, DeviceFacts};
use crate::log;
use crate::memory::charge::{Charge, OutOfMemory};
use crate::mig::{self, Store};
use crate::page_file::PageFile;
use crate::pages::{self, Pages};
use crate::pid::host_pid;
use crate::product::identity::Uuid;
use crate::run_directory::{PAGE_MODE, is_own, prepare, private, run_directory};
use crate::shared::ownership::OwnershipRecords;
use divvy_ledger::attach::AttachError;
use divvy_ledger::{Ledger, PageError, ReserveError, Slot, SlotOwner, Snapshot, open_file};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A device's memory as shared with every process that uses it.
pub struct Hardware {
    /// Memory of the device that several processes hold.
    pub ownership: Arc<OwnershipRecords>,
    /// Where events of several processes are.
    pub events: PathBuf,
    directory: PathBuf,
    /// Whether the run directory is this user's own.
    is_own: bool,
    /// The pages, once this process has a place in them.
    joined: OnceLock<Joined>,
    /// Of a product with MIG: what it is divided into.
    division: Option<Store>,
    facts: DeviceFacts,
    limit: Option<u64>,
    claiming: Mutex<()>,
}

/// This process's place on a device.
struct Joined {
    slot: Slot,
    /// The page that the place is in.
    ledger: PageFile,
    engine: PageFile,
    /// Of a MIG device: the place that shows this process in its compute instance, and not in others with the same
    /// memory.
    _present: Option<Slot>,
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
    /// Device memory in use, in bytes. What processes share is counted once. Between the end of its owner and the next
    /// call of another process that has it, it belongs to none of `processes`.
    pub used_bytes: u64,
    /// Living processes that have a context on the device, in order of their pid.
    pub processes: Vec<ProcessUsage>,
}

/// Which processes use a device and how much of it, read from its page without touching a driver. A device that was
/// never used has no page and no use. `id` is its usual UUID: `GPU-…`, or `MIG-…`.
///
/// # Errors
/// [`HardwareError`]: the run directory or the page cannot be read.
pub fn usage(id: &str) -> Result<Usage, HardwareError> {
    usage_in(&run_directory(), id)
}

/// The same for a device of the run directory `directory`, whatever this process's own is. For a GPU in MIG mode it is
/// the use of all its instances; for an instance that was removed it is nothing.
///
/// # Errors
/// [`HardwareError`]: the page cannot be found or read.
pub fn usage_in(directory: &Path, id: &str) -> Result<Usage, HardwareError> {
    let Some(uuid) = Uuid::parse(id) else {
        return Ok(Usage::default());
    };
    if id.starts_with("MIG-") {
        return match mig::find(directory, uuid) {
            None => Ok(Usage::default()),
            Some(placed) => of_instance(
                directory,
                placed.memory(),
                uuid,
                (placed.outer.id, placed.compute.id),
            ),
        };
    }
    let state = Store::of(directory, uuid).read().map_err(HardwareError::Mig)?;
    let mut total = of_page(directory, uuid)?;
    for held in state.instances.iter().filter(|_| state.on) {
        let memory = mig::gpu_instance_uuid(uuid, held);
        total.used_bytes += of_page(directory, memory)?.used_bytes;
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
    let usage = of_page(directory, uuid)?;
    Ok(!usage.processes.is_empty())
}

/// The memory is the GPU instance's, and so is its use; the processes are those of one compute instance.
fn of_instance(directory: &Path, memory: Uuid, own: Uuid, place: (u32, u32)) -> Result<Usage, HardwareError> {
    let mut usage = of_page(directory, memory)?;
    let present = of_page(directory, own)?.processes;
    usage
        .processes
        .retain(|process| present.iter().any(|here| here.pid == process.pid));
    for process in &mut usage.processes {
        process.instance = Some(place);
    }
    Ok(usage)
}

/// The files of a device's pages, as their file systems and numbers: a program that uses the device opens one.
#[must_use]
pub fn page_files_in(directory: &Path, id: &str) -> Vec<(u64, u64)> {
    let pages = pages::pages_of(directory, id).into_iter();
    let files = pages.filter_map(|uuid| {
        let pages = pages::find(directory, uuid).ok()?;
        Some([pages.ledger.open().ok()?, pages.engine.open().ok()?])
    });
    let seen = files.flatten().filter_map(|file| rustix::fs::fstat(file).ok());
    seen.map(|seen| (seen.st_dev, seen.st_ino)).collect()
}

/// After so many looks what is found counts, although processes end all the while.
const MOST_LOOKS: u32 = 8;

/// Read and never mapped: a file may be shortened meanwhile, which must not end a process that only looks.
fn of_page(directory: &Path, uuid: Uuid) -> Result<Usage, HardwareError> {
    let page = pages::find(directory, uuid)?.ledger;
    let page_error = |why| HardwareError::Page(page.name().to_owned(), why);
    let read = || {
        let file = match page.open() {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(|errno| {
                page_error(PageError::System {
                    step: "open of a ledger",
                    errno,
                })
            })?,
        };
        Snapshot::read(file).map(Some).map_err(page_error)
    };
    let unpaid = || OwnershipRecords::new(private(directory, false).join(records_name(uuid))).unpaid();
    let mut before = unpaid();
    let mut looks = 0;
    // A process that ends between the two looks has its memory in both, or in neither.
    let ledger = loop {
        let Some(ledger) = read()? else {
            return Ok(Usage::default());
        };
        let after = unpaid();
        looks += 1;
        if before == after || looks == MOST_LOOKS {
            break ledger;
        }
        before = after;
    };
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
        used_bytes: ledger.total_used() + before,
        processes,
    })
}

impl Hardware {
    /// Finds the device's page, making it if it does not exist yet. Takes no place in it. `limit`: bytes that this
    /// process may have, where MPS says so.
    pub fn open(facts: &DeviceFacts, limit: Option<u64>) -> Result<Hardware, HardwareError> {
        let directory = run_directory();
        prepare(&directory)?;
        let is_own = is_own(&directory);
        open(&pages::find(&directory, memory_of(facts))?.ledger)?;
        if facts.instance.is_some() {
            open(&pages::find(&directory, facts.uuid)?.ledger)?;
        }
        let private = private(&directory, true);
        Ok(Hardware {
            ownership: OwnershipRecords::new(private.join(records_name(memory_of(facts)))),
            events: private.join(format!("emulated-{}.events", facts.uuid)),
            division: facts.mig_product().map(|_| Store::of(&directory, facts.gpu())),
            directory,
            is_own,
            joined: OnceLock::new(),
            facts: *facts,
            limit,
            claiming: Mutex::new(()),
        })
    }

    /// Shows this process among the device's users.
    pub fn join(&self) -> Result<&Slot, HardwareError> {
        self.joined().map(|joined| &joined.slot)
    }

    fn joined(&self) -> Result<&Joined, HardwareError> {
        if let Some(joined) = self.joined.get() {
            return Ok(joined);
        }
        let _one_claim = self.claiming.lock().unwrap_or_else(PoisonError::into_inner);
        if self.joined.get().is_none() {
            // Until both places are taken no process may remove the instance they are on.
            let _held = match &self.division {
                Some(store) if self.is_own => {
                    let held = store.hold().map_err(HardwareError::Mig)?;
                    self.check(store)?;
                    Some(held)
                }
                _ => None,
            };
            let joined = match self.facts.instance {
                None => {
                    let (slot, pages) = claim(&self.directory, self.facts.uuid)?;
                    Joined {
                        slot,
                        ledger: pages.ledger,
                        engine: pages.engine,
                        _present: None,
                    }
                }
                Some(instance) => {
                    let (present, own) = claim(&self.directory, self.facts.uuid)?;
                    let (slot, memory) = claim(&self.directory, instance.memory)?;
                    Joined {
                        slot,
                        ledger: memory.ledger,
                        engine: own.engine,
                        _present: Some(present),
                    }
                }
            };
            // Another user's lock is not ours to hold: the place shows that the device is in use, and then the instance
            // is checked.
            if let (Some(store), false) = (&self.division, self.is_own) {
                self.check(store)?;
            }
            let _ = self.joined.set(joined);
        }
        Ok(self.joined.get().expect("claimed above"))
    }

    /// The page of its engine: where `joins` says so, of the device that this process has its place on.
    pub fn engine(&self, joins: bool) -> Result<PageFile, Errno> {
        let found = match (joins, self.joined.get()) {
            (true, _) => self.joined().map(|joined| joined.engine.clone()),
            (false, Some(joined)) => Ok(joined.engine.clone()),
            (false, None) => pages::find(&self.directory, self.facts.uuid).map(|pages| pages.engine),
        };
        found.map_err(|why| {
            log::once("engine", why);
            Errno::IO
        })
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
                let now = inventory::compute_instances(&gpu, &state);
                now.iter().any(|now| now.uuid == self.facts.uuid)
            }
        };
        match there {
            true => Ok(()),
            false => Err(HardwareError::Gone(self.facts.id())),
        }
    }

    /// Device memory that this process holds, in bytes. It takes no place for that.
    pub fn own_bytes(&self) -> u64 {
        let joined = self.joined.get();
        joined.and_then(|joined| joined.slot.used()).unwrap_or(0)
    }

    /// Device memory that no living process holds, in bytes.
    pub fn free_bytes(&self) -> u64 {
        let Ok(slot) = self.join() else { return 0 };
        self.ownership.settle();
        let own = slot.used().unwrap_or(0);
        if slot.total_used().is_some_and(|total| total != own) {
            self.reap();
        }
        let used = slot
            .total_used()
            .unwrap_or(0)
            .saturating_add(self.ownership.unpaid());
        self.facts.memory_bytes().saturating_sub(used)
    }

    /// Returns to the device what dead processes held.
    fn reap(&self) {
        let Some(page) = self.joined.get().map(|joined| &joined.ledger) else {
            return;
        };
        let reaped = open(page).and_then(|ledger| {
            ledger
                .reap()
                .map_err(|why| HardwareError::Page(page.name().to_owned(), why))
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
            self.facts.memory_bytes().saturating_sub(self.ownership.unpaid()),
        )
    }
}

impl Charge for Hardware {
    fn take(&self, bytes: u64) -> Result<(), OutOfMemory> {
        self.ownership.settle();
        let first = self.reserve(bytes);
        if matches!(first, Err(ReserveError::Refused { .. })) {
            self.reap();
            return self.reserve(bytes).map_err(|_| OutOfMemory);
        }
        first.map_err(|why| {
            log::once(
                "reserve",
                format_args!("hardware page of {}: {why}", self.facts.uuid),
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
        if let Some(joined) = self.joined.get()
            && let Err(why) = joined.slot.release(bytes)
        {
            log::once(
                "release",
                format_args!("hardware page of {}: {why}", self.facts.uuid),
            );
        }
    }
}

/// The UUID that names a device's memory.
fn memory_of(facts: &DeviceFacts) -> Uuid {
    facts.instance.map_or(facts.uuid, |instance| instance.memory)
}

/// Takes a place in the ledger of that UUID.
fn claim(directory: &Path, uuid: Uuid) -> Result<(Slot, Pages), HardwareError> {
    /// The files may be set aside again each time.
    const TRIES: u32 = 16;
    for _ in 0..TRIES {
        let pages = pages::find(directory, uuid)?;
        let page_error = |why| HardwareError::Page(pages.ledger.name().to_owned(), why);
        let owner = SlotOwner { host_pid: host_pid() };
        let slot =
            Slot::claim(open_or_make(&pages.ledger)?, pages.ledger.backing(), owner).map_err(page_error)?;
        if !pages.is_set_aside() {
            return Ok((slot, pages));
        }
    }
    Err(HardwareError::NotServed(
        directory.to_owned(),
        AttachError::TimedOut,
    ))
}

fn records_name(uuid: Uuid) -> String {
    format!("emulated-{uuid}.shared")
}

fn open(page: &PageFile) -> Result<Ledger, HardwareError> {
    Ledger::open(open_or_make(page)?, page.backing())
        .map_err(|why| HardwareError::Page(page.name().to_owned(), why))
}

/// Opens a ledger's page, made if it is a file that is not there.
fn open_or_make(page: &PageFile) -> Result<OwnedFd, HardwareError> {
    let opened = match page {
        PageFile::Path(path) => open_file(path, PAGE_MODE),
        PageFile::Served(_) => page.open().map_err(|errno| PageError::System {
            step: "open of a served page",
            errno,
        }),
    };
    opened.map_err(|why| HardwareError::Page(page.name().to_owned(), why))
}
