//! Ownership records: one small file for each allocation of device memory that processes share, in the run directory.
//!
//! The device's ledger knows bytes by process, and returns them when the process dies. Shared memory outlives the
//! process that made it, and counts once. So each allocation has an ownership record. The owner, which is charged for
//! the memory in its ledger slot, holds one lock on the record. Processes that merely have the memory hold another. If
//! the owner lets go or dies, a holder takes the charge over at its next call. Until then every process that asks how
//! much is free counts the allocation as taken. An ownership record that no process holds is removed by the next
//! process that finds it. No living process is needed to remember anything.

use super::lock::{FILE_BYTES, FileLock, Hold, is_locked, open, try_lock};
use crate::memory::charge::{Charge, Charged, GRANULE, OutOfMemory, PAGE};
use crate::memory::file::Identity;
use crate::memory::store::FileExtent;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// The byte that the owner has locked.
const OWNER: u64 = 0;
/// The byte that is locked by each process that has the memory from another process.
const HOLDER: u64 = 1;
/// Behind the first page, a word for each place where an allocation can start in a page of the device. It is the number
/// of the allocation there that others may open, or 0.
const LIST_BYTES: u64 = PAGE / GRANULE * 8;
/// A draft this old was left by a process that died while it wrote.
const DRAFT_LIFE: Duration = Duration::from_secs(60);
/// Tries at an ownership record that another process removes or replaces at the moment, 1 ms apart.
const MAX_TRIES: u32 = 1000;

/// Names an allocation of shared memory: random, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id(pub [u8; 16]);

impl Id {
    /// A new name.
    ///
    /// # Errors
    /// The system's reason.
    pub fn random() -> Result<Id, Errno> {
        let mut bytes = [0; 16];
        let read = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        if read == bytes.len() {
            Ok(Id(bytes))
        } else {
            Err(Errno::IO)
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What an ownership record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contents {
    /// What the memory costs the device, in bytes.
    pub bytes: u64,
    /// The process in which the descriptor below is open.
    pub pid: u32,
    /// Number of its descriptor of the file that holds the bytes.
    pub number: u32,
    /// The identity of that descriptor's file.
    pub file: Identity,
    /// Where in the file the bytes start.
    pub offset: u64,
}

const MAGIC: u64 = u64::from_le_bytes(*b"DVYDEED1");
const WORDS: usize = 7;

impl Contents {
    fn to_bytes(self) -> [u8; WORDS * 8] {
        let words = [
            MAGIC,
            self.bytes,
            u64::from(self.pid),
            u64::from(self.number),
            self.file.device,
            self.file.inode,
            self.offset,
        ];
        let mut bytes = [0; WORDS * 8];
        for (out, word) in bytes.chunks_exact_mut(8).zip(words) {
            out.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn read(file: &fs::File) -> Option<Contents> {
        let mut bytes = [0; WORDS * 8];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let mut words = bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        let mut next = || words.next();
        (next()? == MAGIC).then_some(())?;
        Some(Contents {
            bytes: next()?,
            pid: u32::try_from(next()?).ok()?,
            number: u32::try_from(next()?).ok()?,
            file: Identity {
                device: next()?,
                inode: next()?,
            },
            offset: next()?,
        })
    }
}

/// The ownership records of one device, as this process sees them.
#[derive(Debug)]
pub struct OwnershipRecords {
    directory: PathBuf,
    /// Ownership records this process has a part in.
    live: Mutex<Vec<Weak<OwnershipRecord>>>,
    /// Memory of ours that we let go while others have it; its bytes go when they let go.
    left_behind: Mutex<Vec<(PathBuf, FileExtent)>>,
}

/// This process's part in an allocation of shared memory.
pub struct OwnershipRecord {
    /// Its name.
    pub id: Id,
    /// What it says.
    pub contents: Contents,
    path: PathBuf,
    charge: Arc<dyn Charge>,
    records: Arc<OwnershipRecords>,
    holder: Option<FileLock>,
    payment: Mutex<Option<Payment>>,
}

/// The owner's lock and the charge. Dropped in this order: for a moment the memory counts twice, never not at all.
struct Payment {
    _lock: FileLock,
    charged: Option<Charged>,
}

impl fmt::Debug for OwnershipRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnershipRecord({})", self.id)
    }
}

impl OwnershipRecords {
    /// The ownership records in a directory, which need not exist.
    pub fn new(directory: PathBuf) -> Arc<OwnershipRecords> {
        Arc::new(OwnershipRecords {
            directory,
            live: Mutex::default(),
            left_behind: Mutex::default(),
        })
    }

    /// Writes an ownership record for memory that this process has and is charged for, by [`OwnershipRecord::pay_with`]
    /// or by other means that last longer than the ownership record.
    ///
    /// # Errors
    /// `EXIST` if there is one; otherwise the system's reason.
    pub fn create(
        self: &Arc<OwnershipRecords>,
        id: Id,
        contents: Contents,
        charge: &Arc<dyn Charge>,
    ) -> Result<Arc<OwnershipRecord>, Errno> {
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory);
        made.map_err(|why| Errno::from_io_error(&why).unwrap_or(Errno::IO))?;
        let path = self.path(id);
        let draft = path.with_extension(DRAFT);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::open(&draft, flags, Mode::RUSR | Mode::WUSR)?;
        let published = self.publish(file, &draft, &path, contents);
        let _gone = rustix::fs::unlink(&draft);
        let record = Arc::new(OwnershipRecord {
            id,
            contents,
            path,
            charge: Arc::clone(charge),
            records: Arc::clone(self),
            holder: None,
            payment: Mutex::new(Some(Payment {
                _lock: published?,
                charged: None,
            })),
        });
        lock(&self.live).push(Arc::downgrade(&record));
        Ok(record)
    }

    /// Every process that sees an ownership record sees it complete and locked.
    fn publish(
        &self,
        file: OwnedFd,
        draft: &Path,
        path: &Path,
        contents: Contents,
    ) -> Result<FileLock, Errno> {
        rustix::fs::ftruncate(&file, FILE_BYTES as u64 + LIST_BYTES)?;
        rustix::io::pwrite(&file, &contents.to_bytes(), 0)?;
        let lock = FileLock::take(file, OWNER, 1, Hold::Alone)?.ok_or(Errno::AGAIN)?;
        rustix::fs::linkat(CWD, draft, CWD, path, AtFlags::empty())?;
        Ok(lock)
    }

    /// Takes part in memory that another process made. None if there is no such ownership record: no process has the
    /// memory.
    ///
    /// # Errors
    /// `EAGAIN` where other processes come and go all the time; else the system's reason.
    pub fn join(
        self: &Arc<OwnershipRecords>,
        id: Id,
        charge: &Arc<dyn Charge>,
    ) -> Result<Option<Arc<OwnershipRecord>>, Errno> {
        let path = self.path(id);
        for _ in 0..MAX_TRIES {
            let file = match open(&path) {
                Err(Errno::NOENT) => return Ok(None),
                opened => fs::File::from(opened?),
            };
            let contents = Contents::read(&file).ok_or(Errno::INVAL)?;
            let identity = Identity::of(&file)?;
            // A cleaner has all bytes locked while it removes the file; what is locked then is a file without name.
            if let Some(holder) = FileLock::take(file.into(), HOLDER, 1, Hold::Together)?
                && open(&path).and_then(Identity::of) == Ok(identity)
            {
                let record = Arc::new(OwnershipRecord {
                    id,
                    contents,
                    path,
                    charge: Arc::clone(charge),
                    records: Arc::clone(self),
                    holder: Some(holder),
                    payment: Mutex::default(),
                });
                lock(&self.live).push(Arc::downgrade(&record));
                self.settle();
                return Ok(Some(record));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(Errno::AGAIN)
    }

    /// Takes over the charge for memory that this process has and that no process is charged for. Also empties memory
    /// that was left behind and that no process has any more.
    pub fn settle(&self) {
        let mut live = lock(&self.live);
        live.retain(|record| record.strong_count() > 0);
        let mine: Vec<Arc<OwnershipRecord>> = live.iter().filter_map(Weak::upgrade).collect();
        // The last reference to one may end here, which must not find the list locked.
        drop(live);
        for record in &mine {
            record.take_over();
        }
        lock(&self.left_behind).retain(|(path, _)| open(path).is_ok_and(|file| is_shared(&file)));
    }

    /// Memory that processes have and that none is charged for at the moment, in bytes. Removes the ownership records
    /// of memory that is gone.
    pub fn unpaid(&self) -> u64 {
        let Ok(entries) = fs::read_dir(&self.directory) else {
            return 0;
        };
        entries.flatten().map(|entry| unpaid(&entry.path())).sum()
    }

    fn path(&self, id: Id) -> PathBuf {
        self.directory.join(id.to_string())
    }
}

const DRAFT: &str = "new";

fn unpaid(path: &Path) -> u64 {
    let Ok(file) = open(path).map(fs::File::from) else {
        return 0;
    };
    if path.extension() == Some(OsStr::new(DRAFT)) {
        let age = file
            .metadata()
            .and_then(|facts| facts.modified())
            .map(|then| then.elapsed().unwrap_or_default());
        if age.is_ok_and(|age| age > DRAFT_LIFE) {
            let _gone = rustix::fs::unlink(path);
        }
        return 0;
    }
    match (is_locked(file.as_fd(), OWNER), is_locked(file.as_fd(), HOLDER)) {
        (Ok(false), Ok(true)) => Contents::read(&file).map_or(0, |contents| contents.bytes),
        (Ok(false), Ok(false)) => {
            remove_unused(path, file.into());
            0
        }
        _ => 0,
    }
}

/// Removes an ownership record if no process has any part in it.
fn remove_unused(path: &Path, file: OwnedFd) {
    if try_lock(file.as_fd(), OWNER, 2, Hold::Alone) == Ok(true) {
        let _gone = rustix::fs::unlink(path);
    }
}

/// Whether any process has the memory from another.
fn is_shared(file: &OwnedFd) -> bool {
    is_locked(file.as_fd(), HOLDER).unwrap_or(true)
}

impl OwnershipRecord {
    /// Says which allocation starts at an offset into the memory and may be opened; 0 is none.
    ///
    /// # Errors
    /// `EINVAL` for an offset beyond the memory; else the system's reason.
    pub fn list(&self, offset: u64, allocation: u64) -> Result<(), Errno> {
        let place = place(offset).ok_or(Errno::INVAL)?;
        rustix::io::pwrite(open(&self.path)?, &allocation.to_le_bytes(), place).map(drop)
    }

    /// The allocation that starts at an offset into the memory and may be opened.
    pub fn listed(&self, offset: u64) -> Option<u64> {
        let mut word = [0; 8];
        let read = rustix::io::pread(open(&self.path).ok()?, &mut word, place(offset)?).ok()?;
        let allocation = u64::from_le_bytes(word);
        (read == word.len() && allocation != 0).then_some(allocation)
    }

    /// Whether a process has the memory from the one that made it.
    pub fn is_shared(&self) -> bool {
        open(&self.path).is_ok_and(|file| is_shared(&file))
    }

    /// Lets memory go that others still have: its bytes stay until they let go as well.
    pub fn leave_behind(&self, extent: FileExtent) {
        lock(&self.records.left_behind).push((self.path.clone(), extent));
    }

    /// From now on the charge goes with the ownership record.
    pub fn pay_with(&self, charged: Charged) {
        if let Some(payment) = lock(&self.payment).as_mut() {
            payment.charged = Some(charged);
        }
    }

    fn take_over(&self) {
        let mut payment = lock(&self.payment);
        if payment.is_some() {
            return;
        }
        let free = open(&self.path).is_ok_and(|file| is_locked(file.as_fd(), OWNER) == Ok(false));
        // Charged first: that others count it as well for a moment refuses them less than it has to.
        if free
            && let Ok(charged) = Charged::take_over(&self.charge, self.contents.bytes)
            && let Ok(file) = open(&self.path)
            && let Ok(Some(lock)) = FileLock::take(file, OWNER, 1, Hold::Alone)
        {
            *payment = Some(Payment {
                _lock: lock,
                charged: Some(charged),
            });
        }
    }
}

impl Drop for OwnershipRecord {
    fn drop(&mut self) {
        drop(lock(&self.payment).take());
        drop(self.holder.take());
        if let Ok(file) = open(&self.path) {
            remove_unused(&self.path, file);
        }
    }
}

/// Where in the file the word for an offset is.
fn place(offset: u64) -> Option<u64> {
    (offset < PAGE && offset.is_multiple_of(GRANULE)).then_some(FILE_BYTES as u64 + offset / GRANULE * 8)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device's error when an ownership record cannot be had: the reason is in the log.
pub fn refused(why: Errno) -> OutOfMemory {
    crate::log::line(format_args!("shared device memory: {why}"));
    OutOfMemory
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[derive(Default)]
    struct Meter(AtomicU64);

    impl Charge for Meter {
        fn take(&self, bytes: u64) -> Result<(), OutOfMemory> {
            self.0.fetch_add(bytes, Ordering::Relaxed);
            Ok(())
        }
        fn take_over(&self, bytes: u64) -> Result<(), OutOfMemory> {
            self.take(bytes)
        }
        fn give(&self, bytes: u64) {
            self.0.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Two processes' views of one device's ownership records. Descriptions, not processes, have locks, so one process
    /// can be both.
    #[test]
    fn memory_is_paid_for_once_until_the_last_lets_go() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shared");
        let meters = [Arc::new(Meter::default()), Arc::new(Meter::default())];
        let charges = meters.clone().map(|meter| meter as Arc<dyn Charge>);
        let views = [
            OwnershipRecords::new(path.clone()),
            OwnershipRecords::new(path.clone()),
        ];
        let paid = || meters.each_ref().map(|meter| meter.0.load(Ordering::Relaxed));
        let id = Id::random().unwrap();
        assert!(views[1].join(id, &charges[1]).unwrap().is_none());
        let contents = Contents {
            bytes: 100,
            pid: 1,
            number: 2,
            file: Identity { device: 3, inode: 4 },
            offset: 5,
        };
        let first = views[0].create(id, contents, &charges[0]).unwrap();
        first.pay_with(Charged::take(&charges[0], 100).unwrap());
        assert_eq!(
            views[1].create(id, contents, &charges[1]).err(),
            Some(Errno::EXIST)
        );
        assert!(!first.is_shared());
        first.list(1024, 42).unwrap();
        let second = views[1].join(id, &charges[1]).unwrap().unwrap();
        assert_eq!(second.contents, contents);
        assert_eq!((second.listed(1024), second.listed(0)), (Some(42), None));
        assert_eq!((second.listed(1), second.listed(u64::MAX)), (None, None));
        assert!(first.is_shared());
        assert_eq!((paid(), views[1].unpaid()), ([100, 0], 0));
        drop(first);
        assert_eq!(
            (paid(), views[0].unpaid()),
            ([0, 0], 100),
            "held and not paid for"
        );
        views[1].settle();
        assert_eq!((paid(), views[0].unpaid()), ([0, 100], 0));
        drop(second);
        assert_eq!((paid(), views[0].unpaid()), ([0, 0], 0));
        assert_eq!(
            fs::read_dir(&path).unwrap().count(),
            0,
            "the last one removed the record"
        );
    }

    #[test]
    fn what_a_dead_process_leaves_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let records = OwnershipRecords::new(directory.path().to_owned());
        let abandoned = directory.path().join("00112233445566778899aabbccddeeff");
        fs::write(&abandoned, [0; FILE_BYTES]).unwrap();
        fs::write(abandoned.with_extension(DRAFT), []).unwrap();
        assert_eq!(records.unpaid(), 0);
        assert!(!abandoned.exists());
        assert!(
            abandoned.with_extension(DRAFT).exists(),
            "perhaps a process writes it now"
        );
    }
}
