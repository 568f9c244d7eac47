//! What is remembered of groups that were handed over, so that they can be given back after a crash, and again after a
//! restart of the machine: a file for each in `/var/lib/divvy/vm`.
//!
//! The folder, and each above it, belongs to root or the caller and is written by no other user: what a record says is
//! done by root.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use divvy_host::machine::Sysroot;
use divvy_model::{Code, Fault};
use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, fchmod, flock, fstat, fsync, mkdirat, open, openat, renameat,
    unlinkat,
};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Where records lie, below the root.
pub const FOLDER: &str = "var/lib/divvy/vm";
/// No record is longer.
const LONGEST: u64 = 1 << 16;
/// The version of the format.
const VERSION: u32 = 1;

/// How far a group's change has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Its functions are on their way to VFIO.
    Binding,
    /// All of them are there.
    Bound,
    /// They are on their way back.
    Unbinding,
}

/// A function as it was first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// `0000:65:00.0`.
    pub address: String,
    /// `10de:2330`: another card in the same slot is another device.
    pub id: String,
    /// Its driver then.
    pub driver: Option<String>,
    /// Its override then.
    pub driver_override: Option<String>,
    /// The driver that it was given.
    pub target: String,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The version of the format.
    pub version: u32,
    /// The GPU that was asked for. Its address names the file.
    pub asked: String,
    /// Which start of the machine this was in.
    pub boot: String,
    /// How far it has come.
    pub phase: Phase,
    /// Its functions.
    pub functions: Vec<Saved>,
    /// The functions of other cards to whose going along the caller agreed.
    #[serde(default)]
    pub with: Vec<String>,
    /// Whether the caller agreed to lose the display of the boot messages.
    #[serde(default)]
    pub boot_display: bool,
    /// The process for whose time the group is on VFIO; None where that is until someone gives it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<Runner>,
}

/// A process: `divvy vm run`, which gives the group back itself unless it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runner {
    /// Its number.
    pub pid: u32,
    /// When it began, in ticks since the machine's start: numbers are given out again.
    pub started: u64,
}

impl Runner {
    /// The process of this number; None where there is none.
    #[must_use]
    pub fn of(root: &Sysroot, pid: u32) -> Option<Self> {
        let text = root.text(&format!("proc/{pid}/stat"))?;
        // The name may have spaces and brackets.
        let (_, rest) = text.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        let is_dead = fields.next().is_none_or(|state| state == "Z" || state == "X");
        let started = fields.nth(18)?.parse().ok()?;
        (!is_dead).then_some(Self { pid, started })
    }

    /// Whether it is still there.
    #[must_use]
    pub fn is_alive(&self, root: &Sysroot) -> bool {
        Self::of(root, self.pid).as_ref() == Some(self)
    }
}

impl Record {
    /// A record of this format.
    #[must_use]
    pub fn new(asked: &str, boot: String, functions: Vec<Saved>) -> Self {
        Self {
            version: VERSION,
            asked: asked.to_owned(),
            boot,
            phase: Phase::Binding,
            functions,
            with: Vec::new(),
            boot_display: false,
            runner: None,
        }
    }
}

/// Which start of the machine this is.
#[must_use]
pub fn boot(root: &Sysroot) -> String {
    root.text("proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// The folder of records, open, and locked against other administrators.
#[derive(Debug)]
pub struct Store {
    folder: OwnedFd,
    path: PathBuf,
    _lock: OwnedFd,
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Fault {
    let code = match error.kind() {
        io::ErrorKind::PermissionDenied => Code::Privilege,
        _ => Code::VmBind,
    };
    Fault::new(code, format!("{what} {}", path.display()))
        .because(error)
        .hint("`divvy vm` keeps its records in /var/lib/divvy/vm, which root alone may write")
}

impl Store {
    /// Opens the folder below `root`, makes it where it is missing, and locks it.
    ///
    /// # Errors
    /// [`Code::Privilege`]; [`Code::VmBind`] where another user could write the folder; [`Code::VmHeld`] where another
    /// `divvy vm` is at work.
    pub fn open(root: &Path) -> Result<Self, Fault> {
        let path = root.join(FOLDER);
        let folder = walk(root).map_err(|error| failed("cannot use the folder", &path, &error))?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = openat(&folder, "lock", flags, Mode::from_raw_mode(0o600))
            .map_err(|errno| failed("cannot use the lock in", &path, &errno.into()))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(
                    Fault::new(Code::VmHeld, "another `divvy vm` is changing devices just now")
                        .hint("let it end, look with `divvy vm status`, and try again"),
                );
            }
            Err(errno) => return Err(failed("cannot lock", &path, &errno.into())),
        }
        Ok(Self {
            folder,
            path,
            _lock: lock,
        })
    }

    /// The same, which waits for another `divvy vm` to end, at most so long.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_within(root: &Path, most: Duration) -> Result<Self, Fault> {
        let begin = Instant::now();
        loop {
            match Self::open(root) {
                Err(fault) if fault.code == Code::VmHeld && begin.elapsed() < most => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                opened => return opened,
            }
        }
    }

    /// Writes a record, which is on disk when this returns.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn save(&self, record: &Record) -> Result<(), Fault> {
        self.put(&format!("{}.json", record.asked), record)
    }

    /// Writes a file of the folder, which is on disk when this returns.
    pub(crate) fn put(&self, name: &str, what: &impl Serialize) -> Result<(), Fault> {
        let aside = format!("{name}.new");
        let write = || -> io::Result<()> {
            let text = serde_json::to_vec_pretty(what)?;
            // What could not be read again must not be relied on.
            if text.len() as u64 >= LONGEST {
                return Err(io::Error::other(
                    "the group has more functions than a record may have",
                ));
            }
            let _left = unlinkat(&self.folder, &aside, AtFlags::empty());
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut file: std::fs::File =
                openat(&self.folder, &aside, flags, Mode::from_raw_mode(0o600))?.into();
            file.write_all(&text)?;
            file.sync_all()?;
            renameat(&self.folder, &aside, &self.folder, name)?;
            Ok(fsync(&self.folder)?)
        };
        write().map_err(|error| failed("cannot write a record in", &self.path, &error))
    }

    /// Removes a record.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn remove(&self, record: &Record) -> Result<(), Fault> {
        self.take_away(&format!("{}.json", record.asked))
    }

    /// Removes a file of the folder.
    pub(crate) fn take_away(&self, name: &str) -> Result<(), Fault> {
        match unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed("cannot remove a record in", &self.path, &errno.into())),
        }
    }

    /// Its records, by address.
    ///
    /// # Errors
    /// [`Code::VmBind`] for one that is damaged: what it said must not be guessed.
    pub fn records(&self) -> Result<Vec<Record>, Fault> {
        records_in(&self.folder, &self.path)
    }

    /// The files of the folder whose names end so, each with what it says.
    pub(crate) fn all<T: DeserializeOwned>(&self, end: &str) -> Result<Vec<(String, T)>, Fault> {
        all_in(&self.folder, &self.path, end)
    }
}

/// The records below a root, for those who only look. None where there is no folder, or it may not be read.
#[must_use]
pub fn peek(root: &Path) -> Vec<Record> {
    let Some((folder, path)) = open_to_look(root) else {
        return Vec::new();
    };
    records_in(&folder, &path).unwrap_or_default()
}

/// The same for the files whose names end so.
pub(crate) fn peek_all<T: DeserializeOwned>(root: &Path, end: &str) -> Vec<(String, T)> {
    let Some((folder, path)) = open_to_look(root) else {
        return Vec::new();
    };
    all_in(&folder, &path, end).unwrap_or_default()
}

fn open_to_look(root: &Path) -> Option<(OwnedFd, PathBuf)> {
    let path = root.join(FOLDER);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Some((open(&path, flags, Mode::empty()).ok()?, path))
}

/// A record that says what it must not.
pub(crate) fn damaged(path: &Path, why: impl Into<String>) -> Fault {
    Fault::new(
        Code::VmBind,
        format!("the record {} cannot be read", path.display()),
    )
    .cause(why)
    .hint("look at the devices with `divvy vm status`, and remove the file once they are as they should be")
}

fn records_in(folder: &OwnedFd, path: &Path) -> Result<Vec<Record>, Fault> {
    let mut records = Vec::new();
    for (name, record) in all_in::<Record>(folder, path, ".json")? {
        let named_so =
            crate::function::address(&record.asked).is_ok_and(|asked| name == format!("{asked}.json"));
        let in_form =
            |saved: &Saved| crate::function::address(&saved.address).as_deref() == Ok(&saved.address);
        if record.version != VERSION || !named_so || !record.functions.iter().all(in_form) {
            let why = "it is of another version, or was changed by hand";
            return Err(damaged(&path.join(name), why));
        }
        records.push(record);
    }
    Ok(records)
}

fn all_in<T: DeserializeOwned>(folder: &OwnedFd, path: &Path, end: &str) -> Result<Vec<(String, T)>, Fault> {
    let list =
        rustix::fs::Dir::read_from(folder).map_err(|errno| failed("cannot read", path, &errno.into()))?;
    let mut names: Vec<String> = list
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str().ok()?.to_owned()))
        .filter(|name| name.ends_with(end))
        .collect();
    names.sort();
    let read = |name: String| match read(folder, &name) {
        Ok(what) => Ok((name, what)),
        Err(error) => Err(damaged(&path.join(&name), error.to_string())),
    };
    names.into_iter().map(read).collect()
}

fn read<T: DeserializeOwned>(folder: &OwnedFd, name: &str) -> io::Result<T> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file: std::fs::File = openat(folder, name, flags, Mode::empty())?.into();
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// Opens the folder part by part, and makes what is missing. No part may be a link, or be written by another user.
fn walk(root: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = open(root, flags, Mode::empty())?;
    for (depth, part) in FOLDER.split('/').enumerate() {
        let mode = Mode::from_raw_mode(if depth < 2 { 0o755 } else { 0o700 });
        let made = mkdirat(&at, part, mode);
        // Where nothing can be made, the folder may be there all the same.
        let below = match openat(&at, part, flags, Mode::empty()) {
            Ok(below) => below,
            Err(errno) => return Err(made.err().unwrap_or(errno).into()),
        };
        if made.is_ok() {
            fchmod(&below, mode)?;
        }
        at = below;
        let facts = fstat(&at)?;
        let owner_is_right = facts.st_uid == 0 || facts.st_uid == rustix::process::geteuid().as_raw();
        if !owner_is_right || facts.st_mode & 0o022 != 0 {
            let message = format!("another user could write the folder `{part}` of it");
            return Err(io::Error::other(message));
        }
    }
    Ok(at)
}
