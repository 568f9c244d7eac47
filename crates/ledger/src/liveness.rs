//! Liveness: an open-file-description lock on one byte per process slot.
//!
//! The lock belongs to the open file description, and only the owner's mapping keeps the description (there is no
//! descriptor). So it ends when the kernel tears down the owner's memory (exit, SIGKILL, exec) and at no other moment.
//! It works across pid namespaces, and its holder owns the slot's records. A reaper takes it too while it works. So two
//! reapers, or a reaper and a newcomer, never work on one slot.

use core::time::Duration;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::accounting::SLOTS;
use crate::error::PageError;
use crate::memfd::new_page;

fn lock_of(slot: usize, kind: libc::c_int) -> libc::flock {
    // SAFETY: `flock` is plain integers, for which zero is a value.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = slot as libc::off_t;
    lock.l_len = 1;
    lock
}

#[cfg(test)]
thread_local! {
    /// How many system calls about locks this thread has made.
    pub(crate) static CALLS: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

fn call(fd: BorrowedFd<'_>, command: libc::c_int, lock: &mut libc::flock) -> Result<(), Errno> {
    #[cfg(test)]
    CALLS.set(CALLS.get() + 1);
    // SAFETY: the descriptor is open and `lock` is a valid `flock` for the whole call.
    if unsafe { libc::fcntl(fd.as_raw_fd(), command, core::ptr::from_mut(lock)) } == 0 {
        return Ok(());
    }
    let code = std::io::Error::last_os_error().raw_os_error();
    Err(code.map_or(Errno::IO, Errno::from_raw_os_error))
}

/// Takes `slot`'s lock for the description of `fd`. Returns `false` if another description has it.
///
/// # Errors
/// Any error of the system, except that the lock is taken.
pub(crate) fn try_own(fd: BorrowedFd<'_>, slot: usize) -> Result<bool, Errno> {
    match call(fd, libc::F_OFD_SETLK, &mut lock_of(slot, libc::F_WRLCK)) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Gives up `slot`'s lock.
///
/// # Errors
/// Any error of the system.
pub(crate) fn disown(fd: BorrowedFd<'_>, slot: usize) -> Result<(), Errno> {
    call(fd, libc::F_OFD_SETLK, &mut lock_of(slot, libc::F_UNLCK))
}

/// Whether a description other than that of `fd` has `slot`'s lock.
///
/// # Errors
/// Any error of the system.
pub(crate) fn is_owned(fd: BorrowedFd<'_>, slot: usize) -> Result<bool, Errno> {
    let mut lock = lock_of(slot, libc::F_WRLCK);
    call(fd, libc::F_OFD_GETLK, &mut lock)?;
    Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
}

/// Finds out whether the system has what every slice needs: memory files whose size can be sealed, and locks of open
/// file descriptions on them. gVisor has no such locks.
///
/// # Errors
/// What the system lacks, with its own reason.
pub fn check_system() -> Result<(), PageError> {
    let page = new_page(c"divvy-check", 4096, &[])?;
    is_owned(page.as_fd(), 0).map_err(PageError::system("fcntl(F_OFD_GETLK)"))?;
    Ok(())
}

/// The byte behind those of the slots: its holder is reaping.
const TURN: usize = SLOTS;
/// A reaper works for microseconds. A reaper that is stopped halfway is not waited for longer than this many pauses:
/// each slot's own lock keeps two reapers apart even without the turn.
const MAX_PAUSES: u32 = 1000;
const PAUSE: Duration = Duration::from_micros(100);

/// The right to reap alone, if it was available.
pub(crate) struct Turn<'fd> {
    fd: Option<BorrowedFd<'fd>>,
}

impl<'fd> Turn<'fd> {
    /// Waits for the turn, for 100 ms or so.
    ///
    /// # Errors
    /// Any error of the system about the lock.
    pub fn wait(fd: BorrowedFd<'fd>) -> Result<Self, Errno> {
        for _ in 0..MAX_PAUSES {
            if try_own(fd, TURN)? {
                return Ok(Self { fd: Some(fd) });
            }
            std::thread::sleep(PAUSE);
        }
        Ok(Self { fd: None })
    }

    /// The turn, if it is free at this moment.
    ///
    /// # Errors
    /// Any error of the system about the lock.
    pub fn at_once(fd: BorrowedFd<'fd>) -> Result<Option<Self>, Errno> {
        // Only then, because dropping it gives the turn up.
        Ok(try_own(fd, TURN)?.then(|| Self { fd: Some(fd) }))
    }

    /// Without a turn: each slot's own lock keeps two reapers apart.
    pub fn without() -> Self {
        Self { fd: None }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(fd) = self.fd {
            // If the system refuses, closing the descriptor gives the lock up.
            let _given_up = disown(fd, TURN);
        }
    }
}
