//! Removal of a folder with its content, by descriptors: a link is removed, and never followed.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

/// Deeper than any folder of the agent's.
const DEEPEST: u32 = 32;

/// Removes `name` in the folder `parent`; a missing one is no error.
pub(super) fn remove(parent: BorrowedFd<'_>, name: &OsStr, depth: u32) -> io::Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // For a folder, systems return one error or the other.
        Err(Errno::ISDIR | Errno::PERM) if depth < DEEPEST => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = openat(parent, name, flags, Mode::empty())?;
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let entry = OsStr::from_bytes(entry.file_name().to_bytes());
        if entry != "." && entry != ".." {
            remove(folder.as_fd(), entry, depth + 1)?;
        }
    }
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
