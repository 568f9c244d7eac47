//! Which slices were made for which claim, on disk: written before the slices are made, removed after they have ended.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::claim::Allocated;
use crate::points::reach;

/// The version of the records.
const VERSION: u32 = 1;
/// The largest record that is read, in bytes.
const LARGEST: u64 = 1 << 20;

/// A claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The version of this record's schema.
    pub version: u32,
    /// Its UID.
    pub uid: String,
    /// Its namespace, for people.
    pub namespace: String,
    /// Its name, for people.
    pub name: String,
    /// Whether every slice of it was made.
    pub prepared: bool,
    /// Its requests.
    pub requests: Vec<Prepared>,
}

/// A request of a claim, with its slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// The request's whole name.
    pub request: String,
    /// Its devices.
    pub devices: Vec<Allocated>,
    /// The slice's name at the agent.
    pub slice: String,
    /// The slice's id at the agent, once it is made: its size may be changed, its id is not.
    #[serde(default)]
    pub slice_id: String,
    /// What a container runtime calls the slice.
    #[serde(default)]
    pub cdi: String,
    /// What was asked of the agent, to make the slice again.
    pub ask: divvy_model::SliceRequest,
}

impl Record {
    /// Of a claim of which nothing is made yet.
    #[must_use]
    pub fn new(uid: &str, namespace: &str, name: &str, requests: Vec<Prepared>) -> Self {
        Self {
            version: VERSION,
            uid: uid.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            prepared: false,
            requests,
        }
    }
}

/// The folder of the records.
#[derive(Debug)]
pub struct State {
    folder: PathBuf,
    /// Held as long as this driver runs.
    _lock: File,
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Fault {
    Fault::new(Code::Claim, format!("cannot {what} `{}`", path.display())).because(error)
}

/// Twenty-four hexadecimal digits that no other parts have.
pub(crate) fn digest(parts: &[&str]) -> String {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part.as_bytes());
    }
    let digest = context.finish();
    digest
        .as_ref()
        .iter()
        .take(12)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Whether it is a UID that can name a file. Kubernetes' are.
#[must_use]
pub fn is_uid(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

impl State {
    /// Opens the folder, which is made where it is missing, for this process alone.
    ///
    /// # Errors
    /// [`Code::Claim`]: another process has it, it is another user's, or it cannot be made.
    pub fn open(folder: &Path) -> Result<Self, Fault> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| cannot("make", folder, &error))?;
        let facts = fs::symlink_metadata(folder).map_err(|error| cannot("look at", folder, &error))?;
        let own = rustix::process::geteuid().as_raw();
        if !facts.is_dir() || facts.uid() != own || facts.mode() & 0o022 != 0 {
            return Err(Fault::new(
                Code::Claim,
                format!("`{}` is not this user's alone", folder.display()),
            )
            .hint("it says which slices are whose: a folder of root's, writable by root alone"));
        }
        let path = folder.join("lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(flags(OFlags::NOFOLLOW))
            .open(&path)
            .map_err(|error| cannot("open", &path, &error))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).map_err(|error| {
            cannot("lock", &path, &error.into()).hint("another driver serves this node; end it first")
        })?;
        Ok(Self {
            folder: folder.to_owned(),
            _lock: lock,
        })
    }

    fn path(&self, uid: &str) -> PathBuf {
        self.folder.join(format!("{uid}.json"))
    }

    fn aside(&self, uid: &str) -> PathBuf {
        self.folder.join(format!("{uid}.unreadable"))
    }

    /// The record of a claim, if there is one.
    ///
    /// # Errors
    /// [`Code::Claim`]: it cannot be read, or was set aside.
    pub fn read(&self, uid: &str) -> Result<Option<Record>, Fault> {
        if fs::symlink_metadata(self.aside(uid)).is_ok() {
            let message = format!(
                "the record of this claim was damaged and is set aside as `{}`",
                self.aside(uid).display()
            );
            return Err(
                Fault::new(Code::Claim, message).hint("delete the claim's pods: that ends its slices too")
            );
        }
        self.read_here(uid)
    }

    fn read_here(&self, uid: &str) -> Result<Option<Record>, Fault> {
        let path = self.path(uid);
        let file = File::options()
            .read(true)
            .custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK))
            .open(&path);
        let file = match file {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|error| cannot("read", &path, &error))?,
        };
        let mut bytes = Vec::new();
        let read = file.take(LARGEST).read_to_end(&mut bytes);
        read.map_err(|error| cannot("read", &path, &error))?;
        let record: Record =
            serde_json::from_slice(&bytes).map_err(|error| cannot("understand", &path, &error.into()))?;
        if record.version != VERSION || record.uid != uid {
            return Err(Fault::new(
                Code::Claim,
                format!("`{}` is of another version", path.display()),
            ));
        }
        Ok(Some(record))
    }

    /// All records that can be read. One that cannot is set aside, so that one damaged file does not stop a node.
    ///
    /// # Errors
    /// [`Code::Claim`]: the folder cannot be read, or a damaged record cannot be set aside.
    pub fn all(&self) -> Result<Vec<Record>, Fault> {
        let mut all = Vec::new();
        for uid in self.names(".json")? {
            match self.read_here(&uid) {
                Ok(record) => all.extend(record),
                Err(damage) => {
                    let (path, aside) = (self.path(&uid), self.aside(&uid));
                    fs::rename(&path, &aside)
                        .and_then(|()| self.sync())
                        .map_err(|error| cannot("set aside", &path, &error).cause(damage.to_string()))?;
                }
            }
        }
        all.sort_by(|one, other| one.uid.cmp(&other.uid));
        Ok(all)
    }

    /// The claims whose records were set aside.
    ///
    /// # Errors
    /// [`Code::Claim`]: the folder cannot be read.
    pub fn set_aside(&self) -> Result<Vec<String>, Fault> {
        self.names(".unreadable")
    }

    /// The UIDs that name files with this end, in order.
    fn names(&self, end: &str) -> Result<Vec<String>, Fault> {
        let cannot = |error: &std::io::Error| cannot("read", &self.folder, error);
        let mut uids = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(|error| cannot(&error))? {
            let name = entry.map_err(|error| cannot(&error))?.file_name();
            let uid = name.to_str().and_then(|name| name.strip_suffix(end));
            uids.extend(uid.filter(|uid| is_uid(uid)).map(str::to_owned));
        }
        uids.sort();
        Ok(uids)
    }

    /// What was renamed or removed is so after a loss of power too.
    fn sync(&self) -> std::io::Result<()> {
        reach("folder synced");
        File::open(&self.folder)?.sync_all()
    }

    /// Writes a record, whole or not at all, so that it is there after a loss of power.
    ///
    /// # Errors
    /// [`Code::Claim`]: it cannot be written.
    pub fn write(&self, record: &Record) -> Result<(), Fault> {
        let path = self.path(&record.uid);
        let aside = self.folder.join(format!("{}.new", record.uid));
        let write = || -> std::io::Result<()> {
            let _earlier = fs::remove_file(&aside);
            let mut file = File::options()
                .create_new(true)
                .write(true)
                .mode(0o600)
                .open(&aside)?;
            file.write_all(&serde_json::to_vec_pretty(record)?)?;
            file.sync_all()?;
            reach("record written aside");
            fs::rename(&aside, &path)?;
            self.sync()
        };
        write().map_err(|error| cannot("write", &path, &error))
    }

    /// Removes a claim's record, which may be gone, and one that was set aside.
    ///
    /// # Errors
    /// [`Code::Claim`]: it cannot be removed.
    pub fn remove(&self, uid: &str) -> Result<(), Fault> {
        for path in [self.path(uid), self.aside(uid)] {
            match fs::remove_file(&path) {
                Ok(()) => self.sync().map_err(|error| cannot("remove", &path, &error))?,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(cannot("remove", &path, &error)),
            }
        }
        Ok(())
    }
}

fn flags(flags: OFlags) -> i32 {
    i32::try_from(flags.bits()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn records_are_kept_and_one_driver_has_them() {
        let base = tempfile::tempdir().expect("a folder");
        let folder = base.path().join("claims");
        let state = State::open(&folder).expect("opened");
        assert!(State::open(&folder).is_err(), "one at a time");
        let record = Record::new("u-1", "default", "c", Vec::new());
        state.write(&record).expect("written");
        state.write(&record).expect("written again");
        assert_eq!(state.read("u-1").expect("read"), Some(record.clone()));
        assert_eq!(state.all().expect("read"), [record]);
        state.remove("u-1").expect("removed");
        state.remove("u-1").expect("gone already");
        assert_eq!(state.read("u-1").expect("read"), None);
        drop(state);
        State::open(&folder).expect("free again");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("changed");
        assert!(State::open(&folder).is_err(), "others could write");
    }

    /// A removal that a loss of power takes back is a claim that was never unprepared.
    #[test]
    fn what_is_written_and_removed_is_synced() {
        let base = tempfile::tempdir().expect("a folder");
        let state = State::open(base.path()).expect("opened");
        let record = Record::new("u-1", "default", "c", Vec::new());
        for (what, work) in [
            (
                "write",
                &(|| state.write(&record)) as &dyn Fn() -> Result<(), Fault>,
            ),
            ("remove", &|| state.remove("u-1")),
        ] {
            crate::points::kill_at("folder synced");
            let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            assert!(died.is_err(), "{what} does not sync the folder");
        }
    }

    #[test]
    fn what_is_no_record_is_said_and_not_lost() {
        let base = tempfile::tempdir().expect("a folder");
        let state = State::open(base.path()).expect("opened");
        fs::write(base.path().join("u-1.json"), "{").expect("written");
        let good = Record::new("u-2", "default", "c", Vec::new());
        state.write(&good).expect("written");
        assert!(state.read("u-1").is_err());
        assert_eq!(state.all().expect("the others"), std::slice::from_ref(&good));
        let refused = state.read("u-1").expect_err("still");
        assert!(refused.message.contains("u-1.unreadable"), "{refused:?}");
        assert_eq!(state.set_aside().expect("read"), ["u-1"]);
        std::os::unix::fs::symlink("/etc/passwd", base.path().join("u-3.json")).expect("a link");
        assert_eq!(state.all().expect("the others"), [good]);
        assert_eq!(state.set_aside().expect("read"), ["u-1", "u-3"]);
        state.remove("u-1").expect("removed");
        assert_eq!(state.read("u-1").expect("free again"), None);
        for uid in ["", "../x", "a/b", "a.b", &"x".repeat(65)] {
            assert!(!is_uid(uid), "{uid}");
        }
        assert_ne!(digest(&["a", "bc"]), digest(&["ab", "c"]));
    }
}
