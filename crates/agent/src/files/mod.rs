//! Every changing file operation of the agent and of the page servers. They use descriptors of folders that only this
//! user writes, and follow no links. clippy.toml forbids the by-path forms in the other modules.
//!
//! A file for others is built under a name that they do not know, and then renamed.
#![expect(
    clippy::disallowed_methods,
    reason = "here they are called with descriptors and with names that have no slash"
)]

pub(crate) mod kernel;
mod tree;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fchmod, fstat, linkat, mkdirat, openat,
    openat2, renameat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::start::trust::is_roots;

/// The largest file that is read, in bytes: records and notes are far smaller.
const LARGEST: u64 = 64 << 20;

/// A folder that belongs to this user, or to root, and that no other user can write in.
#[derive(Debug)]
pub(crate) struct Folder {
    fd: OwnedFd,
    /// The path, for messages and for other programs.
    path: PathBuf,
}

impl Folder {
    /// Opens the folder at `path`, which must not be a link.
    ///
    /// # Errors
    /// The system's reason; `PermissionDenied` for a folder that another user could write in.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::opened_at(CWD, path.as_os_str(), path.into())
    }

    /// Makes the folder at `path` with its parents, which all users may enter, or opens it.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn make_at(path: &Path, mode: u32) -> io::Result<Self> {
        if let Some(parent) = path.parent().filter(|parent| !parent.exists()) {
            // Another process may make the same one at this moment.
            let _made = Self::make_at(parent, 0o755)?;
        }
        match mkdirat(CWD, path, Mode::from_raw_mode(0o700)) {
            Ok(()) => {
                let made = Self::open(path)?;
                fchmod(&made.fd, Mode::from_raw_mode(mode))?;
                Ok(made)
            }
            Err(Errno::EXIST) => Self::open(path),
            Err(errno) => Err(errno.into()),
        }
    }

    fn opened_at(parent: BorrowedFd<'_>, name: &OsStr, path: PathBuf) -> io::Result<Self> {
        Self::checked_at(parent, name, path, may_change)
    }

    fn checked_at(
        parent: BorrowedFd<'_>,
        name: &OsStr,
        path: PathBuf,
        is_right: fn(&Stat) -> bool,
    ) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(parent, name, flags, Mode::empty())?;
        match is_right(&fstat(&fd)?) {
            true => Ok(Self { fd, path }),
            false => Err(not_ours(&path)),
        }
    }

    /// Opens a folder outside the run directory, once its links are resolved. The folder and its parents must belong to
    /// this user or to root, and no other user may be able to replace one.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn settled(path: &Path) -> io::Result<Self> {
        let real = std::fs::canonicalize(path)?;
        let mut at = Self::root()?;
        for part in real.components().skip(1) {
            let path = at.path.join(part);
            at = Self::checked_at(at.fd.as_fd(), part.as_os_str(), path, may_pass)?;
        }
        // The last folder is for changes, so a sticky bit is not enough.
        let facts = fstat(&at.fd)?;
        match may_change(&facts) {
            true => Ok(at),
            false => Err(not_ours(&at.path)),
        }
    }

    fn root() -> io::Result<Self> {
        Self::checked_at(CWD, OsStr::new("/"), "/".into(), may_pass)
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the folder `name` in this one, or opens it; either way it then has `mode`.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn folder(&self, name: &str, mode: u32) -> io::Result<Self> {
        check(name)?;
        match mkdirat(&self.fd, name, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let folder = self.below(name)?;
        // A user's process cannot change root's own folder, and does not need to.
        if fstat(&folder.fd)?.st_mode & 0o7777 != mode {
            fchmod(&folder.fd, Mode::from_raw_mode(mode))?;
        }
        Ok(folder)
    }

    /// Opens the folder `name` in this one.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn below(&self, name: &str) -> io::Result<Self> {
        check(name)?;
        Self::opened_at(self.fd.as_fd(), name.as_ref(), self.path.join(name))
    }

    /// Sets which users may enter and list it.
    ///
    /// # Errors
    /// The system's reason.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(fchmod(&self.fd, Mode::from_raw_mode(mode))?)
    }

    /// Replaces the file of this name by one with this content. A reader sees the old one or the new one.
    ///
    /// # Errors
    /// The system's reason; the old file stays.
    pub fn write(&self, name: &str, content: &[u8], mode: u32) -> io::Result<()> {
        check(name)?;
        let aside = aside(name);
        let write = || {
            let mut file = self.create(&aside)?;
            file.write_all(content)?;
            fchmod(&file, Mode::from_raw_mode(mode))?;
            Ok(renameat(&self.fd, &aside, &self.fd, name)?)
        };
        write().inspect_err(|_| {
            let _never_made = unlinkat(&self.fd, &aside, AtFlags::empty());
        })
    }

    /// The file must not exist yet.
    fn create(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.fd, name, flags, Mode::from_raw_mode(0o600))?.into())
    }

    /// Opens a file for writing, and makes it if it is missing: a lock, or a log with `OFlags::APPEND`.
    ///
    /// # Errors
    /// The system's reason.
    pub fn open_to_write(&self, name: &str, more: OFlags, mode: u32) -> io::Result<File> {
        check(name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | more;
        Ok(openat(&self.fd, name, flags, Mode::from_raw_mode(mode))?.into())
    }

    /// The content of a plain file in it.
    ///
    /// # Errors
    /// The system's reason; `InvalidData` for a file that is not plain, or too large.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        check(name)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat2(
            &self.fd,
            name,
            flags,
            Mode::empty(),
            ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH,
        )
        // For kernels before 5.6, and filters that do not know the call: one name, and the flag that forbids links.
        .or_else(|errno| match errno {
            Errno::NOSYS | Errno::PERM => openat(&self.fd, name, flags, Mode::empty()),
            errno => Err(errno),
        })?;
        let facts = fstat(&file)?;
        let plain = FileType::from_raw_mode(facts.st_mode) == FileType::RegularFile;
        if !plain || u64::try_from(facts.st_size).is_ok_and(|bytes| bytes > LARGEST) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it is no plain file of ours",
            ));
        }
        let mut content = Vec::new();
        File::from(file).take(LARGEST).read_to_end(&mut content)?;
        Ok(content)
    }

    /// The same, as text.
    ///
    /// # Errors
    /// As [`Self::read`]; `InvalidData` for a file that is not text.
    pub fn read_text(&self, name: &str) -> io::Result<String> {
        String::from_utf8(self.read(name)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// A listening socket, which replaces the file of this name. `mode` says which users may connect.
    ///
    /// # Errors
    /// The system's reason.
    pub fn listen(&self, name: &str, mode: u32) -> io::Result<UnixListener> {
        self.listen_by(name, mode, |place| UnixListener::bind(place))
    }

    /// The same for a socket of whole messages.
    ///
    /// # Errors
    /// The system's reason.
    pub fn listen_for_messages(&self, name: &str, mode: u32) -> io::Result<OwnedFd> {
        self.listen_by(name, mode, |place| {
            let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
            let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
            rustix::net::bind(&socket, &SocketAddrUnix::new(place)?)?;
            rustix::net::listen(&socket, 64)?;
            Ok(socket)
        })
    }

    fn listen_by<S>(&self, name: &str, mode: u32, bind: impl Fn(&Path) -> io::Result<S>) -> io::Result<S> {
        check(name)?;
        let aside = aside(name);
        // The path goes through the descriptor, because bind(2) takes paths only.
        let place = self.place_of(&aside);
        let listen = || {
            let listener = bind(&place)?;
            rustix::fs::chmodat(&self.fd, &aside, Mode::from_raw_mode(mode), AtFlags::empty())?;
            renameat(&self.fd, &aside, &self.fd, name)?;
            Ok(listener)
        };
        listen().inspect_err(|_: &io::Error| {
            let _never_made = unlinkat(&self.fd, &aside, AtFlags::empty());
        })
    }

    /// A path to the file of this name, for calls that take paths only. It goes through the descriptor, and is valid
    /// while this is open.
    pub fn place_of(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()).into()
    }

    /// Whether a file of this name exists.
    pub fn has(&self, name: &str) -> bool {
        rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// The identity of the file of this name; it survives a rename.
    ///
    /// # Errors
    /// The system's reason.
    pub fn identity(&self, name: &str) -> io::Result<(u64, u64)> {
        check(name)?;
        let facts = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((facts.st_dev, facts.st_ino))
    }

    /// Removes a file; a missing one is no error.
    ///
    /// # Errors
    /// The system's reason.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        check(name)?;
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Err(errno) if errno != Errno::NOENT => Err(errno.into()),
            _ => Ok(()),
        }
    }

    /// Removes a file, or a folder with its content; a missing one is no error.
    ///
    /// # Errors
    /// The system's reason.
    pub fn remove_all(&self, name: &str) -> io::Result<()> {
        check(name)?;
        tree::remove(self.fd.as_fd(), OsStr::new(name), 0)
    }

    /// Renames `from` to `to`, which replaces a file of that name.
    ///
    /// # Errors
    /// The system's reason.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check(from)?;
        check(to)?;
        Ok(renameat(&self.fd, from, &self.fd, to)?)
    }

    /// A link to `target`, which the agent never follows; programs' loaders do.
    ///
    /// # Errors
    /// The system's reason.
    pub fn symlink(&self, target: &str, name: &str) -> io::Result<()> {
        check(name)?;
        Ok(symlinkat(target, &self.fd, name)?)
    }

    /// A second name here for the file at `source`, or a copy. A file of another file system or of another user cannot
    /// have a second name.
    ///
    /// # Errors
    /// The system's reason.
    pub fn link_or_copy(&self, source: &Path, name: &str) -> io::Result<()> {
        check(name)?;
        if linkat(CWD, source, &self.fd, name, AtFlags::empty()).is_ok() {
            return Ok(());
        }
        let mut from = File::open(source)?;
        let mut to = self.create(name)?;
        io::copy(&mut from, &mut to)?;
        Ok(fchmod(&to, Mode::from_raw_mode(0o755))?)
    }

    /// The names in it.
    ///
    /// # Errors
    /// The system's reason.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let entries = Dir::read_from(&self.fd)?;
        let names = entries.filter_map(Result::ok).filter_map(|entry| {
            let name = entry.file_name().to_str().ok()?.to_owned();
            (name != "." && name != "..").then_some(name)
        });
        Ok(names.collect())
    }
}

/// Checks that a folder belongs to this user or to root, and that no other user can write in it.
fn may_change(folder: &Stat) -> bool {
    let own = rustix::process::geteuid().as_raw();
    (folder.st_uid == own || folder.st_uid == 0) && folder.st_mode & 0o022 == 0
}

/// Checks a parent folder. In a sticky one other users can add files, but not replace this user's.
fn may_pass(folder: &Stat) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let is_sticky = folder.st_mode & 0o1000 != 0;
    (folder.st_uid == own || is_roots(folder.st_uid)) && (is_sticky || folder.st_mode & 0o022 == 0)
}

fn not_ours(path: &Path) -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("another user can write in `{}`", path.display()),
    )
}

/// Checks that a name is a single entry and no path.
fn check(name: &str) -> io::Result<()> {
    match name {
        "" | "." | ".." => Err(io::Error::from(io::ErrorKind::InvalidInput)),
        name if name.contains('/') || name.contains('\0') => {
            Err(io::Error::from(io::ErrorKind::InvalidInput))
        }
        _ => Ok(()),
    }
}

/// A name that no other process uses, for a file that is not to be seen yet.
fn aside(name: &str) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!(".{name}.{}.{number}", std::process::id())
}

#[cfg(test)]
mod tests;
