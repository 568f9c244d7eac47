//! Files below a root that another user may be changing meanwhile, as in a machine's copy: no part of a path may be a link,
//! and no file is written in place. So what is below the root is all that can change.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault};
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, fchmod, fchown, fstat, fsync, mkdirat,
    open, openat2, renameat, statat, unlinkat,
};
use rustix::io::Errno;

/// No file of a machine's start is longer.
const LONGEST: u64 = 1 << 24;

/// See the module. Paths are relative to the root.
pub(super) struct Tree {
    root: OwnedFd,
    shown: PathBuf,
}

/// What went wrong with a path.
fn failed(what: &str, path: &Path, error: &io::Error) -> Fault {
    if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) {
        return Fault::new(
            Code::VmHost,
            format!("{} is a link, or below one", path.display()),
        )
        .hint("change the file that it leads to by hand");
    }
    let code = match error.kind() {
        io::ErrorKind::PermissionDenied => Code::Privilege,
        _ => Code::VmHost,
    };
    Fault::new(code, format!("cannot {what} {}", path.display())).because(error)
}

/// The folder and the name of a path.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or((".", path))
}

impl Tree {
    /// Below this root.
    pub fn open(root: &Path) -> Result<Self, Fault> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = open(root, flags, Mode::empty());
        Ok(Self {
            root: opened.map_err(|errno| failed("open", root, &errno.into()))?,
            shown: root.to_owned(),
        })
    }

    /// A path, for people.
    pub fn shown(&self, path: &str) -> PathBuf {
        self.shown.join(path)
    }

    fn done<T>(&self, what: &str, path: &str, done: io::Result<T>) -> Result<T, Fault> {
        done.map_err(|error| failed(what, &self.shown(path), &error))
    }

    fn at(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty(), within)
    }

    fn folder(&self, path: &str) -> Result<OwnedFd, Errno> {
        self.at(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// A file's bytes; none where there is none.
    pub fn read(&self, path: &str) -> Result<Option<Vec<u8>>, Fault> {
        let read = || -> io::Result<Option<Vec<u8>>> {
            // What is no plain file is not even opened: to open a device can be to use it.
            let looked = match self.at(path, OFlags::PATH) {
                Err(Errno::NOENT) => return Ok(None),
                looked => looked?,
            };
            if FileType::from_raw_mode(fstat(&looked)?.st_mode) != FileType::RegularFile {
                return Err(io::Error::other("it is no plain file"));
            }
            let file: File = self
                .at(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?
                .into();
            let mut bytes = Vec::new();
            file.take(LONGEST + 1).read_to_end(&mut bytes)?;
            match bytes.len() as u64 > LONGEST {
                true => Err(io::Error::other("it is longer than any such file")),
                false => Ok(Some(bytes)),
            }
        };
        self.done("read", path, read())
    }

    /// Whether something is at a path, a link too.
    pub fn has(&self, path: &str) -> bool {
        !matches!(self.at(path, OFlags::PATH), Err(Errno::NOENT))
    }

    /// Replaces a file whole, and keeps its owner and permissions. It is on disk when this returns.
    pub fn put(&self, path: &str, bytes: &[u8]) -> Result<(), Fault> {
        let (above, name) = split(path);
        self.make(above)?;
        let aside = format!("{name}.divvy-new");
        let put = || -> io::Result<()> {
            let folder = self.folder(above)?;
            // One that a crash left, or a link that another user has put there.
            let _none = unlinkat(&folder, &aside, AtFlags::empty());
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut file: File =
                rustix::fs::openat(&folder, &aside, flags, Mode::from_raw_mode(0o600))?.into();
            let written = || -> io::Result<()> {
                file.write_all(bytes)?;
                let mode = match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(old) => {
                        let (uid, gid) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
                        fchown(&file, Some(uid), Some(gid))?;
                        old.st_mode & 0o777
                    }
                    Err(_) => 0o644,
                };
                fchmod(&file, Mode::from_raw_mode(mode))?;
                file.sync_all()?;
                renameat(&folder, &aside, &folder, name)?;
                Ok(fsync(&folder)?)
            };
            let mut written = written;
            written().inspect_err(|_| {
                let _renamed = unlinkat(&folder, &aside, AtFlags::empty());
            })
        };
        self.done("write", path, put())
    }

    /// Makes a folder and those above it that are missing.
    pub fn make(&self, path: &str) -> Result<(), Fault> {
        let make = || -> io::Result<()> {
            for folder in self.missing(path) {
                let (above, name) = split(&folder);
                mkdirat(self.folder(above)?, name, Mode::from_raw_mode(0o755))?;
            }
            Ok(())
        };
        self.done("make", path, make())
    }

    /// The folders of a folder's path that are not there, the outermost first.
    pub fn missing(&self, folder: &str) -> Vec<String> {
        let mut missing = Vec::new();
        let mut at = folder;
        while at != "." && !self.has(at) {
            missing.push(at.to_owned());
            at = split(at).0;
        }
        missing.reverse();
        missing
    }

    /// Removes a file. One that is not there is no error.
    pub fn remove(&self, path: &str) -> Result<(), Fault> {
        let (above, name) = split(path);
        let removed = self
            .folder(above)
            .and_then(|folder| unlinkat(folder, name, AtFlags::empty()));
        match removed {
            Err(Errno::NOENT) => Ok(()),
            removed => self.done("remove", path, removed.map_err(Into::into)),
        }
    }

    /// Removes a folder that is empty.
    pub fn remove_empty(&self, path: &str) -> Result<(), Errno> {
        let (above, name) = split(path);
        unlinkat(self.folder(above)?, name, AtFlags::REMOVEDIR)
    }

    /// Removes a folder that has files only. One that is not there is no error.
    pub fn clear(&self, path: &str) -> Result<(), Fault> {
        let clear = || -> io::Result<()> {
            let folder = match self.folder(path) {
                Err(Errno::NOENT) => return Ok(()),
                folder => folder?,
            };
            for entry in Dir::read_from(&folder)?.flatten() {
                if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                    unlinkat(&folder, entry.file_name(), AtFlags::empty())?;
                }
            }
            Ok(self.remove_empty(path)?)
        };
        self.done("remove", path, clear())
    }

    /// Gives a folder another name in the same place, which is on disk when this returns.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Fault> {
        let (above, old) = split(from);
        let rename = || -> io::Result<()> {
            let folder = self.folder(above)?;
            renameat(&folder, old, &folder, split(to).1)?;
            Ok(fsync(&folder)?)
        };
        self.done("rename", from, rename())
    }
}
