//! Which slices were made for which claim, on disk: written before the slices are made, removed after they have ended.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::claim::Allocated;

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

    /// The record of a claim, if there is one.
    ///
    /// # Errors
    /// [`Code::Claim`]: it cannot be read.
    pub fn read(&self, uid: &str) -> Result<Option<Record>, Fault> {
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

    /// All records.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn all(&self) -> Result<Vec<Record>, Fault> {
        let entries = fs::read_dir(&self.folder).map_err(|error| cannot("read", &self.folder, &error))?;
        let mut all = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| cannot("read", &self.folder, &error))?;
            let name = entry.file_name();
            let uid = name.to_str().and_then(|name| name.strip_suffix(".json"));
            if let Some(uid) = uid.filter(|uid| is_uid(uid)) {
                all.extend(self.read(uid)?);
            }
        }
        all.sort_by(|one, other| one.uid.cmp(&other.uid));
        Ok(all)
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
            fs::rename(&aside, &path)?;
            File::open(&self.folder)?.sync_all()
        };
        write().map_err(|error| cannot("write", &path, &error))
    }

    /// Removes a claim's record, which may be gone.
    ///
    /// # Errors
    /// [`Code::Claim`]: it cannot be removed.
    pub fn remove(&self, uid: &str) -> Result<(), Fault> {
        let path = self.path(uid);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(cannot("remove", &path, &error)),
            _ => Ok(()),
        }
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

    #[test]
    fn what_is_no_record_is_said_and_not_lost() {
        let base = tempfile::tempdir().expect("a folder");
        let state = State::open(base.path()).expect("opened");
        fs::write(base.path().join("u-1.json"), "{").expect("written");
        assert!(state.read("u-1").is_err() && state.all().is_err());
        fs::remove_file(base.path().join("u-1.json")).expect("removed");
        std::os::unix::fs::symlink("/etc/passwd", base.path().join("u-1.json")).expect("a link");
        assert!(state.read("u-1").is_err());
        for uid in ["", "../x", "a/b", "a.b", &"x".repeat(65)] {
            assert!(!is_uid(uid), "{uid}");
        }
        assert_ne!(digest(&["a", "bc"]), digest(&["ab", "c"]));
    }
}
