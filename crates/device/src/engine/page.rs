//! The page of a device's engine: the timeline, and each process's jobs. Every process that uses the device shares it.
//!
//! It lies beside the hardware page, as a holder's memory file or the user's own file. A process has a place in it,
//! held by a lock that the kernel ends with the process. The words are under one lock, which is taken away from a
//! holder that is dead or stopped. Every reader makes the words plausible first, so it goes on in bounded time whatever
//! they say.

use super::copy;
use super::mps::Client;
use super::schedule::{DEFAULT_SLICE, JOBS, Job, MAX_LAG, Now, Place, Schedule, State, WHOLE};
use crate::clock;
use crate::memory::mapping::Mapping;
use crate::page_file::PageFile;
use crate::pid::host_pid;
use crate::shared::lock::{FileLock, Hold, is_locked, open};
use divvy_ledger::{Backing, DEVICE_PAGE, PageError, check_page, new_page};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

/// Changes with the layout: pages of another are other files.
pub const ENGINE_ABI: u32 = 1;
/// Processes that can use a device at once.
pub const PLACES: usize = 256;
/// Remembered readings of a busy time.
pub const SAMPLES: usize = 16;
/// Distance of two of them, in nanoseconds.
pub const SAMPLE_EVERY: u64 = 100_000_000;
/// Slices that a page may say, in nanoseconds.
const SLICES: std::ops::RangeInclusive<u64> = 50_000..=1_000_000_000;

const MAGIC: u64 = u64::from_le_bytes(*b"dvengine");
/// The lock of a place is the byte of the file this far in, plus the place's index. Locks may lie beyond a file's end.
const PLACE_LOCKS: u64 = 1 << 32;
/// A lock that is held for longer is taken away if its holder is dead. After the second limit it is taken away in any
/// case.
const DEAD_AFTER: u64 = 2_000_000;
const STOPPED_AFTER: u64 = 50_000_000;

#[repr(C, align(4096))]
struct Words {
    magic: AtomicU64,
    abi: AtomicU64,
    lock: AtomicU64,
    cursor: AtomicU64,
    owner: AtomicU64,
    slice_end: AtomicU64,
    slice: AtomicU64,
    /// How far the device clock is before the machine's.
    leap: AtomicU64,
    /// Busy time of processes that are gone.
    retired: AtomicU64,
    /// Places below this one may be in use.
    top: AtomicU64,
    /// Time that passed while a stopped process had the next turn.
    idle_wanted: AtomicU64,
    samples: Samples,
    _rest: [AtomicU64; 512 - 11 - 2 * SAMPLES],
    places: [PlaceWords; PLACES],
}

#[repr(C)]
struct PlaceWords {
    /// 0: free.
    pid: AtomicU64,
    busy: AtomicU64,
    /// Since when it is busy, where time is not modelled; 0: it is not.
    busy_since: AtomicU64,
    joined: AtomicU64,
    /// The MPS server it is a client of; 0: none.
    server: AtomicU64,
    /// Its part of the multiprocessors there.
    share: AtomicU64,
    /// The static partition that these are; 0: none.
    partition: AtomicU64,
    /// What failed at its server, as a CUresult; 0: nothing.
    fault: AtomicU64,
    _rest: [AtomicU64; 24],
    samples: Samples,
    jobs: [JobWords; JOBS],
}

#[repr(C)]
struct JobWords {
    number: AtomicU64,
    state: AtomicU64,
    ready: AtomicU64,
    extent: AtomicU64,
    consumed: AtomicU64,
    end: AtomicU64,
    touched: AtomicU64,
    width: AtomicU64,
}

/// Readings of a busy time: when, and what it was.
#[repr(C)]
struct Samples([[AtomicU64; 2]; SAMPLES]);

const _: () = assert!(size_of::<PlaceWords>() == 1024);
/// Its size.
pub const BYTES: usize = size_of::<Words>();
const HEAD_BYTES: usize = 16;
const LAYOUT: copy::Layout = copy::Layout {
    lock: offset_of!(Words, lock),
    top: offset_of!(Words, top),
    places: offset_of!(Words, places),
    place_bytes: size_of::<PlaceWords>(),
    most: PLACES,
};

/// How busy a process kept the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Busy {
    /// Its process id. 0 stands for all processes that are gone, together; their readings are those of the whole
    /// device.
    pub pid: u32,
    /// Engine time it had, in nanoseconds.
    pub busy: u64,
    /// Earlier readings: device time, and what it was.
    pub samples: Vec<(u64, u64)>,
}

/// A mapping of the page, without a place in it.
pub struct Page {
    file: PageFile,
    map: Mapping,
}

/// The lock of a page, held.
pub struct Locked<'a> {
    page: &'a Page,
    ticket: u64,
}

/// A place in the page: this process's.
pub struct OwnPlace {
    /// Which.
    pub index: usize,
    _life: FileLock,
}

impl Page {
    /// Maps the page, made if it is a file that is not there.
    ///
    /// # Errors
    /// The system's reason, or `EPROTO` for a file that is no such page.
    pub fn open(file: &PageFile) -> Result<Page, Errno> {
        let fd = open_or_make(file)?;
        check_size(file, &fd)?;
        let map = Mapping::of_file(fd.as_fd(), 0, BYTES, 4096)?;
        let page = Page {
            file: file.clone(),
            map,
        };
        page.check()?;
        Ok(page)
    }

    /// A copy of the page, for a look. It is memory of this process alone, so that a file which is shortened meanwhile
    /// is an error and no signal. A change to the copy changes nothing for others.
    ///
    /// # Errors
    /// The system's reason, or `EPROTO` for a file that is no such page.
    pub fn look(file: &PageFile) -> Result<Page, Errno> {
        let fd = file.open()?;
        check_size(file, &fd)?;
        let map = Mapping::new(BYTES, 4096, false)?;
        copy::read(fd.as_fd(), &LAYOUT, &map)?;
        let page = Page {
            file: file.clone(),
            map,
        };
        page.check()?;
        page.words().lock.store(0, Relaxed);
        Ok(page)
    }

    fn check(&self) -> Result<(), Errno> {
        let words = self.words();
        match words.magic.load(Acquire) == MAGIC && words.abi.load(Relaxed) == u64::from(ENGINE_ABI) {
            true => Ok(()),
            false => Err(Errno::PROTO),
        }
    }

    fn words(&self) -> &Words {
        // SAFETY: the mapping has BYTES bytes, is aligned to a page, lives as long as self and is nothing but atomics.
        unsafe { &*(self.map.address() as *const Words) }
    }

    /// Takes a place for this process.
    ///
    /// # Errors
    /// `ENOSPC` where all places are taken; else the system's reason.
    pub fn join(&self) -> Result<OwnPlace, Errno> {
        self.reap();
        let pid = host_pid();
        for index in 0..PLACES {
            let lock = PLACE_LOCKS + index as u64;
            let Some(life) = FileLock::take(self.file.open()?, lock, 1, Hold::Alone)? else {
                continue;
            };
            let locked = self.lock();
            let words = self.words();
            locked.clear(index);
            let place = &words.places[index];
            place.joined.store(self.now().device, Relaxed);
            place.pid.store(u64::from(pid), Release);
            words.top.fetch_max(index as u64 + 1, AcqRel);
            drop(locked);
            return Ok(OwnPlace { index, _life: life });
        }
        Err(Errno::NOSPC)
    }

    /// Device time and real time now.
    pub fn now(&self) -> Now {
        let leap = clock::leap(self.words().leap.load(Relaxed));
        let real = clock::real_ns();
        Now {
            device: real.saturating_add(leap),
            real,
        }
    }

    /// Lets the device clock leap to this time, if it is not there yet.
    pub fn leap_to(&self, device: u64) {
        let leap = device.saturating_sub(clock::real_ns());
        self.words().leap.fetch_max(clock::leap(leap), AcqRel);
    }

    /// Waits for the lock, for a bounded time.
    pub fn lock(&self) -> Locked<'_> {
        static TICKETS: AtomicU32 = AtomicU32::new(1);
        let number = TICKETS.fetch_add(1, Relaxed);
        let ticket = u64::from(host_pid()) << 32 | u64::from(number) | 1;
        let lock = &self.words().lock;
        let mut turns = 0u32;
        let mut seen = (0, 0);
        loop {
            match lock.compare_exchange(0, ticket, AcqRel, Acquire) {
                Ok(_) => return Locked { page: self, ticket },
                Err(holder) => {
                    let now = clock::real_ns();
                    if seen.0 != holder {
                        seen = (holder, now);
                    }
                    let waited = now.saturating_sub(seen.1);
                    let gone = waited > STOPPED_AFTER || waited > DEAD_AFTER && self.is_dead(holder >> 32);
                    if gone && lock.compare_exchange(holder, ticket, AcqRel, Acquire).is_ok() {
                        return Locked { page: self, ticket };
                    }
                }
            }
            turns += 1;
            if turns < 64 {
                std::hint::spin_loop();
            } else if turns < 128 {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(30));
            }
        }
    }

    /// No place of that process is held.
    fn is_dead(&self, pid: u64) -> bool {
        let Ok(file) = self.file.open() else { return false };
        !self.used().any(|index| {
            self.words().places[index].pid.load(Relaxed) == pid
                && is_locked(file.as_fd(), PLACE_LOCKS + index as u64) != Ok(false)
        })
    }

    /// Places that may be in use.
    fn used(&self) -> impl Iterator<Item = usize> + '_ {
        let words = self.words();
        let top = words.top.load(Acquire).min(PLACES as u64) as usize;
        (0..top).filter(|&index| words.places[index].pid.load(Relaxed) != 0)
    }

    /// How many places are in use.
    pub fn processes(&self) -> usize {
        self.used().count()
    }

    /// Frees the places of processes that are gone.
    pub fn reap(&self) {
        let Ok(file) = self.file.open() else { return };
        for index in self.used() {
            // Our own place is locked through another description of this process, so it counts as locked.
            if is_locked(file.as_fd(), PLACE_LOCKS + index as u64) == Ok(false) {
                let locked = self.lock();
                // Another process may have taken it meanwhile.
                if is_locked(file.as_fd(), PLACE_LOCKS + index as u64) == Ok(false) {
                    locked.clear(index);
                }
            }
        }
    }

    /// Makes a place that of a client of an MPS server.
    pub fn enrol(&self, place: &OwnPlace, client: &Client) {
        let locked = self.lock();
        let words = &self.words().places[place.index];
        words.share.store(u64::from(client.share), Relaxed);
        words.partition.store(client.partition, Relaxed);
        words.server.store(client.server, Release);
        drop(locked);
    }

    /// Takes back a place that another process overwrote. The caller has the lock.
    pub fn restore(&self, place: &OwnPlace) {
        let words = self.words();
        words.places[place.index]
            .pid
            .store(u64::from(std::process::id()), Release);
        words.top.fetch_max(place.index as u64 + 1, AcqRel);
    }

    /// A fatal failure of a client of an MPS server is one of all its clients.
    pub fn fail(&self, server: u64, code: u32) {
        let locked = self.lock();
        for index in self.used() {
            let place = &self.words().places[index];
            if place.server.load(Relaxed) == server && place.fault.load(Relaxed) == 0 {
                place.fault.store(u64::from(code), Release);
            }
        }
        drop(locked);
    }

    /// What failed at a place's server, as a CUresult; 0: nothing.
    pub fn fault(&self, place: &OwnPlace) -> u32 {
        self.words().places[place.index].fault.load(Acquire) as u32
    }

    /// Whether a server has failed and has clients still.
    pub fn has_failed(&self, server: u64) -> bool {
        self.reap();
        self.used().any(|index| {
            let place = &self.words().places[index];
            place.server.load(Acquire) == server && place.fault.load(Acquire) != 0
        })
    }

    /// The device time, the time it was idle though some process wanted it, and the busy times of all processes, the
    /// dead first.
    pub fn busy(&self) -> (u64, u64, Vec<Busy>) {
        self.reap();
        let locked = self.lock();
        let now = self.now();
        let mut schedule = locked.load();
        schedule.advance(now);
        locked.store(&schedule, None);
        locked.sample(now.device);
        let words = self.words();
        let mut all = vec![Busy {
            pid: 0,
            busy: words.retired.load(Relaxed),
            samples: words.samples.read(),
        }];
        all.extend(self.used().map(|index| {
            let place = &words.places[index];
            Busy {
                pid: place.pid.load(Relaxed) as u32,
                busy: place.busy_now(now.device),
                samples: place.samples.read(),
            }
        }));
        (now.device, schedule.idle_wanted, all)
    }

    /// Starts, or ends, a busy time of a place where time is not modelled.
    pub fn mark(&self, place: &OwnPlace, busy: bool) {
        let words = &self.words().places[place.index];
        let now = self.now().device;
        if busy {
            words.busy_since.store(now, Relaxed);
        } else {
            let since = words.busy_since.swap(0, AcqRel);
            words.busy.fetch_add(now.saturating_sub(since), AcqRel);
        }
        if let Some(locked) = words.samples.due(now).then(|| self.lock()) {
            locked.sample(now);
        }
    }
}

impl PlaceWords {
    fn busy_now(&self, now: u64) -> u64 {
        let since = match self.busy_since.load(Relaxed) {
            0 => now,
            since => since,
        };
        self.busy.load(Relaxed).saturating_add(now.saturating_sub(since))
    }
}

impl Samples {
    fn place(now: u64) -> usize {
        (now / SAMPLE_EVERY) as usize % SAMPLES
    }

    fn due(&self, now: u64) -> bool {
        let at = self.0[Samples::place(now)][0].load(Relaxed);
        at / SAMPLE_EVERY != now / SAMPLE_EVERY
    }

    fn put(&self, now: u64, busy: u64) {
        if self.due(now) {
            let [at, was] = &self.0[Samples::place(now)];
            at.store(now, Relaxed);
            was.store(busy, Relaxed);
        }
    }

    fn read(&self) -> Vec<(u64, u64)> {
        let mut all: Vec<_> = self
            .0
            .iter()
            .map(|[at, was]| (at.load(Relaxed), was.load(Relaxed)))
            .collect();
        all.retain(|&(at, _)| at != 0);
        all.sort_unstable();
        all
    }

    fn clear(&self) {
        for [at, _] in &self.0 {
            at.store(0, Relaxed);
        }
    }
}

impl Locked<'_> {
    /// The timeline as the page has it, made plausible.
    pub fn load(&self) -> Schedule {
        let words = self.page.words();
        let now = self.page.now();
        let slice = words.slice.load(Relaxed);
        let slice = if SLICES.contains(&slice) {
            slice
        } else {
            DEFAULT_SLICE
        };
        // A timeline that is ahead of the clock is not used. One that is far behind was idle, or is corrupt.
        let cursor = words.cursor.load(Relaxed);
        let cursor = cursor.clamp(now.device.saturating_sub(50 * MAX_LAG), now.device);
        Schedule {
            cursor,
            idle_wanted: words.idle_wanted.load(Relaxed),
            owner: words.owner.load(Relaxed).min(PLACES as u64) as usize,
            slice_end: words.slice_end.load(Relaxed).min(cursor.saturating_add(slice)),
            slice,
            places: self
                .page
                .used()
                .map(|index| Place {
                    index,
                    busy: words.places[index].busy.load(Relaxed),
                    server: words.places[index].server.load(Relaxed),
                    share: words.places[index].share.load(Relaxed).min(u64::from(WHOLE)) as u32,
                    partition: words.places[index].partition.load(Relaxed),
                    jobs: std::array::from_fn(|n| words.places[index].jobs[n].load()),
                })
                .collect(),
        }
    }

    /// Writes the timeline, unless the lock was taken away meanwhile. `own`: the place whose job the caller changed by
    /// itself. Of other places' jobs only what [`Schedule::advance`] changes is written.
    pub fn store(&self, schedule: &Schedule, own: Option<usize>) {
        let words = self.page.words();
        if words.lock.load(Acquire) != self.ticket {
            return;
        }
        words.cursor.store(schedule.cursor, Relaxed);
        words.idle_wanted.store(schedule.idle_wanted, Relaxed);
        words.owner.store(schedule.owner as u64, Relaxed);
        words.slice_end.store(schedule.slice_end, Relaxed);
        for place in &schedule.places {
            let to = &words.places[place.index];
            if to.busy.load(Relaxed) != place.busy {
                to.busy.store(place.busy, Relaxed);
            }
            for (to, job) in to.jobs.iter().zip(&place.jobs) {
                to.store(job, own == Some(place.index));
            }
        }
    }

    /// Remembers the busy time of every process, if it is time to.
    pub fn sample(&self, now: u64) {
        let words = self.page.words();
        let mut all = words.retired.load(Relaxed);
        for index in self.page.used() {
            let place = &words.places[index];
            let busy = place.busy_now(now);
            all = all.saturating_add(busy);
            place.samples.put(now, busy);
        }
        words.samples.put(now, all);
    }

    /// Sets the slice that every process gets from now on, in nanoseconds.
    pub fn set_slice(&self, slice: u64) {
        let slice = slice.clamp(*SLICES.start(), *SLICES.end());
        self.page.words().slice.store(slice, Relaxed);
    }

    /// The same, unless it was set already.
    pub fn suggest_slice(&self, slice: u64) {
        if self.page.words().slice.load(Relaxed) == 0 {
            self.set_slice(slice);
        }
    }

    /// Frees a place.
    fn clear(&self, index: usize) {
        let words = self.page.words();
        let place = &words.places[index];
        words
            .retired
            .fetch_add(place.busy_now(self.page.now().device), AcqRel);
        let PlaceWords {
            busy,
            busy_since,
            joined,
            server,
            share,
            partition,
            fault,
            ..
        } = place;
        for word in [busy, busy_since, joined, server, share, partition, fault] {
            word.store(0, Relaxed);
        }
        place.samples.clear();
        for job in &place.jobs {
            job.state.store(0, Relaxed);
        }
        place.pid.store(0, Release);
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let _taken_away = self
            .page
            .words()
            .lock
            .compare_exchange(self.ticket, 0, AcqRel, Acquire);
    }
}

impl JobWords {
    fn load(&self) -> Job {
        Job {
            number: self.number.load(Relaxed),
            state: match self.state.load(Acquire) {
                1 => State::Open,
                2 => State::Polling,
                3 => State::Closed,
                4 => State::Done,
                _ => State::Free,
            },
            ready: self.ready.load(Relaxed),
            extent: self.extent.load(Relaxed),
            consumed: self.consumed.load(Relaxed),
            end: self.end.load(Relaxed),
            touched: self.touched.load(Relaxed),
            width: self.width.load(Relaxed).min(u64::from(WHOLE)) as u32,
        }
    }

    fn store(&self, job: &Job, own: bool) {
        if own {
            self.number.store(job.number, Relaxed);
            self.ready.store(job.ready, Relaxed);
            self.extent.store(job.extent, Relaxed);
            self.touched.store(job.touched, Relaxed);
            self.width.store(u64::from(job.width), Relaxed);
        } else if !job.waits() && job.state != State::Done {
            return;
        }
        self.consumed.store(job.consumed, Relaxed);
        self.end.store(job.end, Relaxed);
        let state = match job.state {
            State::Free => 0,
            State::Open => 1,
            State::Polling => 2,
            State::Closed => 3,
            State::Done => 4,
        };
        self.state.store(state, Release);
    }
}

/// Sets the slice in a page without mapping it: for the agent. The page is made if it is a file that is not there. All
/// readers check the word.
///
/// # Errors
/// The system's reason.
pub fn write_slice(file: &PageFile, slice: u64) -> Result<(), Errno> {
    let fd = open_or_make(file)?;
    // Looked at first: a page of another layout has another word there, and a short one would get a hole.
    Page::look(file)?;
    let slice = slice.clamp(*SLICES.start(), *SLICES.end());
    rustix::io::pwrite(&fd, &slice.to_ne_bytes(), offset_of!(Words, slice) as u64).map(drop)
}

/// Makes a page for a holder: a memory file of sealed size.
///
/// # Errors
/// [`PageError`]: the system gives no memory file.
pub fn new_served() -> Result<OwnedFd, PageError> {
    new_page(DEVICE_PAGE, BYTES, &head())
}

/// Refuses a page of another size, and a holder's page that could be shortened.
fn check_size(file: &PageFile, fd: &OwnedFd) -> Result<(), Errno> {
    match file.backing() {
        Backing::Sealed => check_page(fd.as_fd(), "engine", BYTES).map_err(|_| Errno::PROTO),
        Backing::File if rustix::fs::fstat(fd)?.st_size == BYTES as i64 => Ok(()),
        Backing::File => Err(Errno::PROTO),
    }
}

/// What every page begins with.
fn head() -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    head[8..].copy_from_slice(&u64::from(ENGINE_ABI).to_ne_bytes());
    head
}

/// Of processes that start together one makes the file, and none finds it half made.
fn open_or_make(file: &PageFile) -> Result<OwnedFd, Errno> {
    match (file, file.open()) {
        (PageFile::Path(path), Err(Errno::NOENT)) => {
            make(path)?;
            open(path)
        }
        (_, answer) => answer,
    }
}

/// Makes the page of that name, unless the name is taken.
fn make(path: &Path) -> Result<(), Errno> {
    static DRAFTS: AtomicU32 = AtomicU32::new(0);
    let number = DRAFTS.fetch_add(1, Relaxed);
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(
        ".{:x}.{}.{number}.new",
        clock::real_ns(),
        std::process::id()
    ));
    let make = || -> Result<(), Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::open(&draft, flags, Mode::RUSR | Mode::WUSR)?;
        // All of it now: on a full file system a hole would kill the first process that touches it.
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, BYTES as u64) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => rustix::fs::ftruncate(&file, BYTES as u64)?,
            done => done?,
        }
        rustix::io::pwrite(&file, &head(), 0)?;
        match rustix::fs::linkat(CWD, &draft, CWD, path, AtFlags::empty()) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(why) => Err(why),
        }
    };
    let made = make();
    let _gone = rustix::fs::unlink(&draft);
    made
}
