//! Locks that the kernel ends with the process: on bytes of a small file, held by a mapping and no descriptor.
//!
//! An open-file-description lock lives as long as the description, which the mapping keeps, and a forked child does
//! not inherit the mapping. crates/ledger holds its slots the same way (docs/adr/0003).

use crate::memory::mapping::Mapping;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Size of a file whose bytes are locked: a host page.
pub const FILE_BYTES: usize = 4096;

/// How much of a byte is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// By one at a time.
    Alone,
    /// By any number.
    Together,
}

/// A lock, released on drop or by the process's end.
#[derive(Debug)]
pub struct FileLock {
    description: Mapping,
}

impl FileLock {
    /// Takes bytes of an open file, through its description, which no other code may lock through. None if another
    /// description has them.
    ///
    /// # Errors
    /// The system's reason.
    pub fn take(file: OwnedFd, first: u64, count: u64, mode: Hold) -> Result<Option<FileLock>, Errno> {
        // Mapped before it is locked: a child forked in between must not keep the lock.
        let mapping = Mapping::of_file(file.as_fd(), 0, FILE_BYTES, FILE_BYTES)?;
        let taken = try_lock(file.as_fd(), first, count, mode)?;
        Ok(taken.then_some(FileLock { description: mapping }))
    }
}

impl FileLock {
    /// Where the file's first page is mapped, shared with all others that map it.
    pub fn address(&self) -> u64 {
        self.description.address()
    }
}

/// Takes bytes until the descriptor is closed; false if another description has them.
///
/// # Errors
/// The system's reason.
pub fn try_lock(file: BorrowedFd<'_>, first: u64, count: u64, mode: Hold) -> Result<bool, Errno> {
    let kind = match mode {
        Hold::Alone => libc::F_WRLCK,
        Hold::Together => libc::F_RDLCK,
    };
    match call(file, libc::F_OFD_SETLK, &mut range(kind, first, count)) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(why) => Err(why),
    }
}

/// Whether another description has any lock on a byte.
///
/// # Errors
/// The system's reason.
pub fn is_locked(file: BorrowedFd<'_>, byte: u64) -> Result<bool, Errno> {
    let mut lock = range(libc::F_WRLCK, byte, 1);
    call(file, libc::F_OFD_GETLK, &mut lock)?;
    Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
}

/// Opens a file to lock it: a description of its own.
///
/// # Errors
/// The system's reason.
pub fn open(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(
        path,
        OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
    )
}

/// Opens the file that a link of /proc names.
///
/// # Errors
/// The system's reason.
pub fn open_link(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

fn range(kind: libc::c_int, first: u64, count: u64) -> libc::flock {
    // SAFETY: `flock` is plain integers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = first as libc::off_t;
    lock.l_len = count as libc::off_t;
    lock
}

fn call(file: BorrowedFd<'_>, command: libc::c_int, lock: &mut libc::flock) -> Result<(), Errno> {
    // SAFETY: the descriptor is open and `lock` is a valid `flock` for the whole call.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(lock)) } == 0 {
        return Ok(());
    }
    let code = std::io::Error::last_os_error().raw_os_error();
    Err(code.map_or(Errno::IO, Errno::from_raw_os_error))
}
