//! The identity of files, independent of their names.

use std::path::Path;

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, makedev, statx};

/// The data of a file that the kernel has without a server: a container's file systems may have servers that never
/// answer.
pub(super) fn look(path: &Path) -> Option<Statx> {
    statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS).ok()
}

/// A file, whatever its name.
pub(super) fn place(seen: &Statx) -> (u64, u64) {
    (makedev(seen.stx_dev_major, seen.stx_dev_minor), seen.stx_ino)
}
