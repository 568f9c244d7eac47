//! A ledger as the agent, a page server or a reaper sees it: totals, processes, and the return of dead processes'
//! bytes.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

use crate::accounting::{self, SLOTS, UNIT};
use crate::activity::Activity;
use crate::bypass::Bypass;
use crate::copies::CopyPath;
use crate::effort::Effort;
use crate::error::PageError;
use crate::layout::{Header, LEDGER_BYTES, LEDGER_MAGIC, LedgerPage};
use crate::liveness;
use crate::mapping::{Access, Mapping};
use crate::memfd;
use crate::reap_pass::{self, ReapPass};
use crate::shared::claim;
use crate::tally::Refusals;
use crate::thrash::Thrash;

/// Which kind of file a ledger's descriptor must refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A memory file whose size is sealed, so that a hostile user of it cannot make others fault. Slices use these.
    Sealed,
    /// Any file of the right size. A process with write access can also truncate it, and so make its users fault.
    File,
}

impl Backing {
    pub(crate) fn check(self, fd: &OwnedFd) -> Result<(), PageError> {
        // The order matters: an unsealed file could change its size between two checks.
        if self == Self::Sealed {
            memfd::require_seals(fd.as_fd(), "ledger", SealFlags::empty())?;
        }
        memfd::require_size(fd.as_fd(), "ledger", LEDGER_BYTES)
    }
}

/// The name of emulated devices' pages in proc(5)'s lists. They are not a slice's.
pub const DEVICE_PAGE: &CStr = c"divvy-emulated";

/// Whether a number can be a process id at all. A tenant may write any value into its own ledger.
#[must_use]
pub fn is_process_id(number: u32) -> bool {
    /// The kernel's own bound, PID_MAX_LIMIT of linux/threads.h on 64-bit machines.
    const MOST: u32 = 1 << 22;
    (1..=MOST).contains(&number)
}

/// One process in a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its slot in the ledger.
    pub slot: usize,
    /// Its id in its own pid namespace, as it reports it.
    pub pid: u32,
    /// Its id in the page server's pid namespace, or 0.
    pub host_pid: u32,
    /// When it attached: nanoseconds since the Unix epoch.
    pub claimed_at_ns: u64,
    /// Device memory that it holds, in bytes.
    pub used_bytes: u64,
    /// Managed memory beyond the share that it holds, in bytes.
    pub spilled_bytes: u64,
    /// Whether the kernel confirms that it is alive. A dead one's bytes are returned by [`Ledger::reap`].
    pub alive: bool,
}

/// The result of [`Ledger::reap`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Dead processes whose slots were cleared.
    pub processes: u32,
    /// Bytes they held, now free.
    pub bytes: u64,
    /// Bytes they held beyond the share, now free.
    pub spilled_bytes: u64,
    /// True if one pass was not enough: the next one continues.
    pub unfinished: bool,
}

/// How far a round of passes over the slots has come.
#[derive(Debug, Default)]
struct Round {
    next: usize,
    /// True if a pass ran out of budget and assumed a process alive without checking.
    short: bool,
    /// How many passes in a row found the turn taken and did not wait for it.
    put_off: u32,
}

/// After this many passes in a row, a reaper no longer waits for the holder of the turn. A process that holds it for
/// longer is stopped, or holds it on purpose.
const PUT_OFF: u32 = 8;

/// A ledger, with a descriptor of its own for checking which processes are alive.
#[derive(Debug)]
pub struct Ledger {
    mapping: Mapping<LedgerPage>,
    fd: OwnedFd,
    /// Locks exclude other descriptions, not other threads that use this one.
    reaping: Mutex<Round>,
}

impl Ledger {
    /// Makes a slice's ledger: a memory file of sealed size, writable for every process that receives its descriptor.
    ///
    /// # Errors
    /// The system's reason.
    pub fn create() -> Result<Self, PageError> {
        let fd = memfd::create(c"divvy-ledger", LEDGER_BYTES)?;
        let mapping = Mapping::<LedgerPage>::new(fd.as_fd(), Access::ReadWrite, "mmap of a new ledger")?;
        mapping.page().header.write(LEDGER_MAGIC, LEDGER_BYTES);
        memfd::seal(fd.as_fd(), SealFlags::empty())?;
        Ok(Self {
            mapping,
            fd,
            reaping: Mutex::default(),
        })
    }

    /// Opens a ledger. `fd` must be an open file description through which no other code takes locks, such as
    /// [`Ledger::share`], [`open_file`] and the attach protocol return.
    ///
    /// # Errors
    /// [`PageError`] when it is not a ledger of our version, or not `backing`.
    pub fn open(fd: OwnedFd, backing: Backing) -> Result<Self, PageError> {
        backing.check(&fd)?;
        let mapping = map(&fd)?;
        Ok(Self {
            mapping,
            fd,
            reaping: Mutex::default(),
        })
    }

    /// A descriptor for another process or another use: an open file description of its own.
    ///
    /// # Errors
    /// The system's reason; /proc must be mounted.
    pub fn share(&self) -> Result<OwnedFd, PageError> {
        memfd::reopen(self.fd.as_fd(), OFlags::RDWR)
    }

    /// Keeps only the descriptor.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Bytes that all processes use.
    #[must_use]
    pub fn total_used(&self) -> u64 {
        total(self.mapping.page())
    }

    /// Bytes of managed memory beyond the share that all processes use.
    #[must_use]
    pub fn total_spilled(&self) -> u64 {
        accounting::total(&self.mapping.page().spill()) * UNIT
    }

    /// The most that was in use at once, in bytes, as far as processes noted it. A tenant can write any value.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.mapping.page().peak()
    }

    /// The allocations that were refused because they did not fit. A tenant can write any value.
    #[must_use]
    pub fn refusals(&self) -> Refusals {
        self.mapping.page().usage.refusals()
    }

    /// Processes that wait for memory.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.mapping.page().waiting()
    }

    /// How often the device was used past the limiter in this way.
    #[must_use]
    pub fn bypasses(&self, bypass: Bypass) -> u64 {
        self.mapping.page().bypasses(bypass)
    }

    /// Bytes that workers copied on this path for programs without a device.
    #[must_use]
    pub fn copied(&self, path: CopyPath) -> u64 {
        self.mapping.page().copied(path)
    }

    /// Counts a use of the device past the limiter.
    pub fn count(&self, bypass: Bypass) {
        self.mapping.page().count(bypass);
    }

    /// What the slice's processes have found out about thrashing.
    #[must_use]
    pub fn thrash(&self) -> Thrash {
        self.mapping.page().thrash.read()
    }

    /// The activity records of the processes in the ledger, including dead ones that are not yet reaped. Makes no
    /// system calls.
    pub fn activities(&self) -> impl Iterator<Item = Activity> + '_ {
        self.mapping.page().activities()
    }

    /// The page, for this crate's own use of it.
    pub(crate) fn page(&self) -> &LedgerPage {
        self.mapping.page()
    }

    /// How often the doorbell rang, to compare with in [`Ledger::wait_doorbell`]. It is read before the agent looks.
    #[must_use]
    pub fn rings(&self) -> u32 {
        self.mapping.page().rings()
    }

    /// Waits until the doorbell rings after `seen`, or for `limit`. Returns how often it rang.
    #[must_use]
    pub fn wait_doorbell(&self, seen: u32, limit: Duration) -> u32 {
        self.mapping.page().wait_doorbell(seen, limit)
    }

    /// Rings the doorbell, so that its waiters look.
    pub fn ring(&self) {
        self.mapping.page().ring();
    }

    /// The processes in the ledger, including dead ones that are not yet reaped.
    pub fn processes(&self) -> impl Iterator<Item = Process> + '_ {
        processes(self.mapping.page(), self.fd.as_fd())
    }

    /// The processes as the page has them, without asking the system: `lives` tells which of them are alive.
    pub fn processes_by(&self, lives: impl Fn(&Process) -> bool) -> impl Iterator<Item = Process> {
        let page = self.mapping.page();
        let written = (0..page.slots_in_use()).filter_map(move |slot| written(page, slot));
        written.map(move |process| Process {
            alive: lives(&process),
            ..process
        })
    }

    /// Whether the process in `slot` lives. If the question fails, the process counts as alive.
    #[must_use]
    pub fn lives(&self, slot: usize) -> bool {
        liveness::is_owned(self.fd.as_fd(), slot % SLOTS).unwrap_or(true)
    }

    /// The process in `slot`, if there is one. It may be dead and not yet reaped.
    #[must_use]
    pub fn process(&self, slot: usize) -> Option<Process> {
        process(self.mapping.page(), self.fd.as_fd(), slot % SLOTS)
    }

    /// Returns the bytes of dead processes and frees their slots. Any number of reapers may run at once, and a reaper
    /// may die at any moment. They take turns. Otherwise a reaper could find a dead process's slot taken by another
    /// reaper, and return before the bytes are back.
    ///
    /// This is one pass, whose work is bounded whatever the page says. If there are more than 128 dead processes, the
    /// next pass finds the rest ([`Reaped::unfinished`]).
    ///
    /// # Errors
    /// The system's reason for not testing a lock, or [`PageError::Corrupted`].
    pub fn reap(&self) -> Result<Reaped, PageError> {
        let mut round = self.reaping.lock().unwrap_or_else(PoisonError::into_inner);
        self.look(&mut round, None)
    }

    /// [`Ledger::reap`] for a process that looks at many ledgers, some of them hostile: it never waits, and it ends
    /// with `effort`. The next pass continues where this one ended.
    ///
    /// # Errors
    /// As [`Ledger::reap`].
    pub fn reap_within(&self, effort: &mut Effort) -> Result<Reaped, PageError> {
        let mut round = self.reaping.lock().unwrap_or_else(PoisonError::into_inner);
        self.look(&mut round, Some(effort))
    }

    /// [`Ledger::reap`] until no dead process is left, for a caller that needs the bytes now and blocks no other
    /// process. An honest page needs two rounds at most; four are made.
    ///
    /// # Errors
    /// As [`Ledger::reap`].
    pub fn reap_all(&self) -> Result<Reaped, PageError> {
        const LOOKS: u32 = 4 * SLOTS as u32 / reap_pass::DEATHS;
        let mut round = self.reaping.lock().unwrap_or_else(PoisonError::into_inner);
        *round = Round::default();
        let mut all = Reaped::default();
        for _ in 0..LOOKS {
            let reaped = self.look(&mut round, None)?;
            all.processes = all.processes.saturating_add(reaped.processes);
            all.bytes = all.bytes.saturating_add(reaped.bytes);
            all.spilled_bytes = all.spilled_bytes.saturating_add(reaped.spilled_bytes);
            all.unfinished = reaped.unfinished;
            if !all.unfinished {
                break;
            }
        }
        Ok(all)
    }

    /// One pass of a round.
    fn look(&self, round: &mut Round, mut effort: Option<&mut Effort>) -> Result<Reaped, PageError> {
        let page = self.mapping.page();
        let fd = self.fd.as_fd();
        let mut reaped = Reaped::default();
        let turn = match effort {
            None => liveness::Turn::wait(fd).map_err(lock_error)?,
            Some(_) => match liveness::Turn::at_once(fd).map_err(lock_error)? {
                Some(turn) => turn,
                None if round.put_off < PUT_OFF => {
                    round.put_off += 1;
                    reaped.unfinished = true;
                    return Ok(reaped);
                }
                None => liveness::Turn::without(),
            },
        };
        let mut pass = ReapPass::new(fd);
        let Round { next, mut short, .. } = core::mem::take(round);
        let mut cut = false;
        for slot in next..page.slots_in_use() {
            let place = &page.slots.0[slot];
            if place.claimed.load(Acquire) == claim::FREE {
                continue;
            }
            cut = effort.as_mut().is_some_and(|effort| !effort.may_ask());
            if cut {
                round.next = slot;
                break;
            }
            if !liveness::try_own(fd, slot).map_err(lock_error)? {
                continue;
            }
            if !pass.may_reap() {
                liveness::disown(fd, slot).map_err(lock_error)?;
                round.next = slot;
                break;
            }
            // A newcomer may have cleared and left the slot between the check and the lock.
            let before = place.claimed.load(Acquire);
            let kept = page.reap_dead(&mut pass, slot);
            let outcome = reclaim_both(page, slot, kept);
            place.waiting_since_ns.store(0, Relaxed);
            if outcome.is_ok() {
                page.activities.0[slot].clear();
            }
            if let Ok((held, spilled)) = outcome {
                if kept == 0 {
                    place.claimed.store(claim::FREE, Release);
                }
                reaped.processes += u32::from(before == claim::TAKEN);
                reaped.bytes = reaped.bytes.saturating_add(held);
                reaped.spilled_bytes = reaped.spilled_bytes.saturating_add(spilled);
            }
            liveness::disown(fd, slot).map_err(lock_error)?;
            outcome.map_err(|_| PageError::Corrupted { page: "ledger" })?;
        }
        short |= pass.fell_short();
        reaped.unfinished = short || cut || round.next != 0;
        round.short = short && round.next != 0;
        if reaped.bytes > 0 || reaped.spilled_bytes > 0 {
            page.note_return();
            page.usage.tell_waiters();
        }
        // The last importer of an allocation may have been among the dead, or may have died while it left.
        let _soon = page.call_owners();
        drop(turn);
        Ok(reaped)
    }

    /// The generation of the newest grant, as tenants are told.
    #[must_use]
    pub fn grant_generation(&self) -> u32 {
        self.mapping.page().grant_generation.load(Relaxed)
    }

    /// Tells tenants that the page server has a newer grant.
    pub fn set_grant_generation(&self, generation: u32) {
        self.mapping.page().grant_generation.store(generation, Release);
    }
}

/// The processes in a ledger, where `fd` is a descriptor through which no other code takes locks.
pub(crate) fn processes<'a>(page: &'a LedgerPage, fd: BorrowedFd<'a>) -> impl Iterator<Item = Process> + 'a {
    (0..page.slots_in_use()).filter_map(move |slot| process(page, fd, slot))
}

fn process(page: &LedgerPage, fd: BorrowedFd<'_>, slot: usize) -> Option<Process> {
    written(page, slot).map(|process| Process {
        // If the question fails, the process counts as alive.
        alive: liveness::is_owned(fd, slot).unwrap_or(true),
        ..process
    })
}

/// The process in `slot` as the page has it, assumed alive.
fn written(page: &LedgerPage, slot: usize) -> Option<Process> {
    let place = &page.slots.0[slot];
    (place.claimed.load(Acquire) == claim::TAKEN).then(|| Process {
        slot,
        pid: place.pid.load(Relaxed),
        host_pid: place.host_pid.load(Relaxed),
        claimed_at_ns: place.claimed_at_ns.load(Relaxed),
        used_bytes: bytes_held(page, slot),
        spilled_bytes: bytes_spilled(page, slot),
        alive: true,
    })
}

/// Maps and checks a ledger.
pub(crate) fn map(fd: &OwnedFd) -> Result<Mapping<LedgerPage>, PageError> {
    let mapping = Mapping::<LedgerPage>::new(fd.as_fd(), Access::ReadWrite, "mmap of the ledger")?;
    mapping
        .page()
        .header
        .check("ledger", LEDGER_MAGIC, LEDGER_BYTES)?;
    Ok(mapping)
}

pub(crate) fn lock_error(errno: Errno) -> PageError {
    PageError::System {
        step: "fcntl(F_OFD_SETLK) on a process slot",
        errno,
    }
}

pub(crate) fn total(page: &LedgerPage) -> u64 {
    accounting::total(page) * UNIT
}

pub(crate) fn bytes_held(page: &LedgerPage, slot: usize) -> u64 {
    units_to_bytes(accounting::held(page, slot))
}

pub(crate) fn bytes_spilled(page: &LedgerPage, slot: usize) -> u64 {
    units_to_bytes(accounting::held(&page.spill(), slot))
}

/// Returns what a dead slot holds, within the share and beyond it, in bytes. If the caller dies in between, the next
/// caller continues: both tables have records of their own, and the slot stays claimed until both are done.
fn reclaim_both(page: &LedgerPage, slot: usize, kept: u64) -> Result<(u64, u64), accounting::Denied> {
    let held = accounting::reclaim_but(page, slot, kept)?;
    let spilled = accounting::reclaim(&page.spill(), slot)?;
    Ok((units_to_bytes(held), units_to_bytes(spilled)))
}

fn units_to_bytes(units: i64) -> u64 {
    u64::try_from(units).unwrap_or(0).saturating_mul(UNIT)
}

/// Opens the ledger file at `path`, and creates it with permissions `mode` if there is none. Of processes that start
/// together one creates it, and none finds it half made.
///
/// # Errors
/// The system's reason. [`Ledger::open`] and [`crate::Slot::claim`] check whether it is a ledger.
pub fn open_file(path: &Path, mode: u32) -> Result<OwnedFd, PageError> {
    let open = || rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    match open() {
        Err(Errno::NOENT) => {}
        answer => return answer.map_err(PageError::system("open of a ledger file")),
    }
    make_file(path, mode)?;
    open().map_err(PageError::system("open of a ledger file"))
}

/// Creates the ledger file at `path` with permissions `mode`, unless the name exists.
///
/// # Errors
/// The system's reason.
pub fn make_file(path: &Path, mode: u32) -> Result<(), PageError> {
    // Each creator uses a name of its own: pids repeat in other namespaces, and times repeat within a process.
    static DRAFTS: AtomicU32 = AtomicU32::new(0);
    let moment = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    let number = DRAFTS.fetch_add(1, Relaxed);
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(
        ".{moment:x}.{}.{number}.new",
        rustix::process::getpid().as_raw_nonzero()
    ));
    let made = make_draft(Path::new(&draft), mode).and_then(|()| {
        match rustix::fs::linkat(CWD, &draft, CWD, path, AtFlags::empty()) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(PageError::System {
                step: "link of a ledger file",
                errno,
            }),
        }
    });
    let _gone = rustix::fs::unlink(&draft);
    made
}

/// Makes the ledger of an emulated device for the device's page holder: a memory file of sealed size.
///
/// # Errors
/// The system's reason.
pub fn new_device_ledger() -> Result<OwnedFd, PageError> {
    let head = Header::bytes_of(LEDGER_MAGIC, LEDGER_BYTES);
    memfd::new_page(DEVICE_PAGE, LEDGER_BYTES, &head)
}

fn make_draft(path: &Path, mode: u32) -> Result<(), PageError> {
    let mode = Mode::from_raw_mode(mode);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, mode).map_err(PageError::system("creation of a ledger file"))?;
    // The program's umask is not ours to change, and must not decide the permissions.
    rustix::fs::fchmod(&fd, mode).map_err(PageError::system("fchmod of a ledger file"))?;
    // All space is allocated now: on a full file system a hole would kill the first process that touches it.
    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, LEDGER_BYTES as u64)
        .or_else(|errno| match errno {
            Errno::OPNOTSUPP | Errno::NOSYS => rustix::fs::ftruncate(&fd, LEDGER_BYTES as u64),
            errno => Err(errno),
        })
        .map_err(PageError::system("fallocate of a ledger file"))?;
    rustix::io::pwrite(&fd, &Header::bytes_of(LEDGER_MAGIC, LEDGER_BYTES), 0)
        .map_err(PageError::system("pwrite of a new ledger file"))?;
    Ok(())
}
