//! What an emulated MPS daemon says of itself: two small files in its pipe folder, `control` and `partitions`, which its
//! clients read. The folder belongs to the daemon's owner; in a folder that another user can write nothing is opened.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fchmod, fstat, open, openat, renameat, unlinkat};
use rustix::io::Errno;

use crate::mps::Mps;

/// So much is read: a daemon's files are short.
const LONGEST: u64 = 64 << 10;

/// Whether the daemon is an emulated one: a file in a folder of ours says so.
#[must_use]
pub fn is_emulated_daemon(mps: &Mps) -> bool {
    read(&mps.folder().join("pipe"), "control").is_ok()
}

/// The pipe folder, if it is this user's alone.
fn folder(pipe: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = open(pipe, flags, Mode::empty())?;
    let seen = fstat(&folder)?;
    if seen.st_uid != rustix::process::geteuid().as_raw() || seen.st_mode & 0o022 != 0 {
        let message = format!("`{}` can be written by others", pipe.display());
        return Err(io::Error::new(ErrorKind::PermissionDenied, message));
    }
    Ok(folder)
}

/// A file of the daemon's.
///
/// # Errors
/// `NotFound`; `PermissionDenied` in a folder that another can write; `InvalidData` for what is no plain file.
pub(crate) fn read(pipe: &Path, name: &str) -> io::Result<String> {
    let folder = folder(pipe)?;
    // Anything but a plain file must not block us.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(&folder, name, flags, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut text = String::new();
    File::from(file).take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

/// Writes a file of the daemon's. A reader sees the old one or the new one, whole.
///
/// # Errors
/// As [`read`], and the system's.
pub(crate) fn write(pipe: &Path, name: &str, text: &str) -> io::Result<()> {
    let folder = folder(pipe)?;
    let aside = format!(".{name}.new");
    match unlinkat(&folder, &aside, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    let file = openat(&folder, &aside, flags, mode)?;
    // Its clients may be another user's.
    fchmod(&file, mode)?;
    File::from(file).write_all(text.as_bytes())?;
    Ok(renameat(&folder, &aside, &folder, name)?)
}

/// Removes a file of the daemon's that may be gone already.
///
/// # Errors
/// As [`read`], and the system's.
pub(crate) fn remove(pipe: &Path, name: &str) -> io::Result<()> {
    match unlinkat(folder(pipe)?, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::Command;
    use std::time::{Duration, Instant};

    fn pipe() -> (tempfile::TempDir, std::path::PathBuf) {
        let base = tempfile::tempdir().expect("a folder");
        let pipe = base.path().join("pipe");
        fs::create_dir(&pipe).expect("a folder");
        fs::set_permissions(&pipe, fs::Permissions::from_mode(0o755)).expect("a mode");
        (base, pipe)
    }

    #[test]
    fn what_is_written_is_read_by_all_and_removed() {
        let (_base, pipe) = pipe();
        assert_eq!(
            read(&pipe, "control").expect_err("none").kind(),
            ErrorKind::NotFound
        );
        for text in ["GPU-1\n", "GPU-2 partitioned\n"] {
            write(&pipe, "control", text).expect("written");
            assert_eq!(read(&pipe, "control").expect("read"), text);
        }
        let mode = fs::metadata(pipe.join("control"))
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o644);
        for _ in 0..2 {
            remove(&pipe, "control").expect("gone");
        }
        assert_eq!(fs::read_dir(&pipe).expect("readable").count(), 0);
    }

    #[test]
    fn in_a_folder_that_another_can_write_nothing_is_opened() {
        let (base, pipe) = pipe();
        write(&pipe, "control", "GPU-1\n").expect("written");
        let refused = |what: &str| {
            for outcome in [
                read(&pipe, "control").map(drop),
                write(&pipe, "partitions", "x"),
                remove(&pipe, "control"),
            ] {
                assert!(outcome.is_err(), "{what}");
            }
            assert!(!pipe.join("partitions").exists(), "{what}");
        };
        for mode in [0o777, 0o775] {
            fs::set_permissions(&pipe, fs::Permissions::from_mode(mode)).expect("a mode");
            refused("writable");
        }
        fs::set_permissions(&pipe, fs::Permissions::from_mode(0o755)).expect("a mode");
        if std::os::unix::fs::chown(&pipe, Some(54_321), None).is_ok() {
            refused("another's");
            std::os::unix::fs::chown(&pipe, Some(0), None).expect("back");
        }
        let real = base.path().join("real");
        fs::rename(&pipe, &real).expect("moved");
        symlink(&real, &pipe).expect("a link");
        refused("a link");
    }

    #[test]
    fn a_link_or_a_pipe_in_the_place_of_a_file_is_neither_followed_nor_waited_for() {
        let (base, pipe) = pipe();
        let precious = base.path().join("precious");
        fs::write(&precious, "kept").expect("written");
        symlink(&precious, pipe.join("control")).expect("a link");
        read(&pipe, "control").expect_err("a link");
        write(&pipe, "control", "GPU-1\n").expect("in the link's place");
        symlink(&precious, pipe.join(".control.new")).expect("a link");
        write(&pipe, "control", "GPU-2\n").expect("in the link's place");
        assert_eq!(fs::read_to_string(&precious).expect("there"), "kept");
        let begin = Instant::now();
        let made = Command::new("mkfifo").arg(pipe.join("partitions")).status();
        assert!(made.expect("mkfifo runs").success());
        read(&pipe, "partitions").expect_err("a pipe");
        assert!(begin.elapsed() < Duration::from_secs(10));
    }
}
