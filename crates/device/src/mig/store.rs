//! The file that holds a device's division, and the lock that changes wait for.

use super::facts::Placed;
use super::state::{GpuInstance, Malformed, State, VERSION};
use crate::granted::granted;
use crate::product::identity::Uuid;
use rustix::fs::{FlockOperation, flock};
use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Only the user's own processes change what the user's emulated devices are divided into, and so take the lock.
const LOCK_MODE: u32 = 0o600;
/// Processes that an agent gave a device read it.
const MODE: u32 = 0o644;
/// Changes take microseconds. A process that was stopped in the middle of one must not hang all others.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Why a device's division cannot be read or changed; Display is one sentence.
#[derive(Debug)]
pub enum StoreError {
    /// The file.
    Io(PathBuf, io::Error),
    /// A line of it.
    Malformed(PathBuf, Malformed),
    /// Another process has held the lock for longer than any change takes.
    Locked(PathBuf),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Io(path, why) => write!(f, "MIG state {}: {why}", path.display()),
            StoreError::Malformed(path, Malformed(line)) => {
                let path = path.display();
                write!(
                    f,
                    "MIG state {path}: line {line} is not understood; remove the file to turn MIG off"
                )
            }
            StoreError::Locked(path) => {
                write!(
                    f,
                    "MIG state: another process holds {} and does not let go",
                    path.display()
                )
            }
        }
    }
}

impl std::error::Error for StoreError {}

/// Where a device's division is written.
#[derive(Clone, Debug)]
pub struct Store {
    path: PathBuf,
    gpu: Uuid,
}

/// A lock on a division; its holder sees no change made by others.
#[derive(Debug)]
pub struct Locked {
    _file: File,
}

impl Store {
    /// That of a GPU in a run directory. Nothing is made.
    pub fn of(run_directory: &Path, gpu: Uuid) -> Store {
        Store {
            path: run_directory.join(format!("emulated-{gpu}.{VERSION}{SUFFIX}")),
            gpu,
        }
    }

    /// The division as it is now. A device that was never divided has no file. A container has what it was granted.
    pub fn read(&self) -> Result<State, StoreError> {
        if let Some(granted) = granted() {
            return Ok(granted.division(self.gpu));
        }
        match fs::read(&self.path) {
            Ok(bytes) => State::parse(&String::from_utf8_lossy(&bytes))
                .map_err(|why| StoreError::Malformed(self.path.clone(), why)),
            Err(why) if why.kind() == ErrorKind::NotFound => Ok(State::default()),
            Err(why) => Err(StoreError::Io(self.path.clone(), why)),
        }
    }

    /// Keeps others from changing the division until the lock is dropped.
    pub fn hold(&self) -> Result<Locked, StoreError> {
        self.lock(FlockOperation::NonBlockingLockShared)
    }

    /// Changes the division, or leaves it as it was where `change` refuses. Readers see the old state or the new one.
    pub fn change<T, E>(
        &self,
        change: impl FnOnce(&mut State) -> Result<T, E>,
    ) -> Result<Result<T, E>, StoreError> {
        let _alone = self.lock(FlockOperation::NonBlockingLockExclusive)?;
        let before = self.read()?;
        let mut state = before.clone();
        let made = change(&mut state);
        if made.is_ok() && state != before {
            let aside = self.path.with_extension("new");
            let write = || -> io::Result<()> {
                let mut open = OpenOptions::new();
                let mut file = open
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .mode(MODE)
                    .open(&aside)?;
                // The program's umask is not ours to change, and does not decide.
                file.set_permissions(Permissions::from_mode(MODE))?;
                file.write_all(state.to_string().as_bytes())?;
                fs::rename(&aside, &self.path)
            };
            write().map_err(|why| StoreError::Io(self.path.clone(), why))?;
        }
        Ok(made)
    }

    fn lock(&self, how: FlockOperation) -> Result<Locked, StoreError> {
        let path = self.path.with_extension("mig-lock");
        if granted().is_some() {
            // The host's division is not a container's to change.
            return Err(StoreError::Io(path, ErrorKind::PermissionDenied.into()));
        }
        let mut open = OpenOptions::new();
        let file = open
            .write(true)
            .create(true)
            .truncate(false)
            .mode(LOCK_MODE)
            .open(&path)
            .map_err(|why| StoreError::Io(path.clone(), why))?;
        let begin = Instant::now();
        loop {
            match flock(&file, how) {
                Ok(()) => return Ok(Locked { _file: file }),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(why) => return Err(StoreError::Io(path, why.into())),
            }
            if begin.elapsed() > TIMEOUT {
                return Err(StoreError::Locked(path));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

const SUFFIX: &str = ".mig";

/// Where in a run directory the compute instance of this UUID is; in a container, among those that it was granted.
pub fn find(run_directory: &Path, instance: Uuid) -> Option<Placed> {
    if let Some(granted) = granted() {
        let mut all = granted.instances.iter();
        return all.find(|placed| placed.uuid() == instance).cloned();
    }
    let end = format!(".{VERSION}{SUFFIX}");
    for entry in fs::read_dir(run_directory).ok()?.flatten() {
        let name = entry.file_name();
        let gpu = name
            .to_str()
            .and_then(|name| name.strip_prefix("emulated-")?.strip_suffix(&end));
        let Some(gpu) = gpu.and_then(Uuid::parse) else {
            continue;
        };
        let Ok(state) = Store::of(run_directory, gpu).read() else {
            continue;
        };
        for held in &state.instances {
            let placed = |compute: &_| Placed {
                gpu,
                outer: GpuInstance {
                    compute: Vec::new(),
                    ..held.clone()
                },
                compute: *compute,
            };
            let mut all = held.compute.iter().map(placed);
            if let Some(found) = all.find(|placed| placed.uuid() == instance) {
                return Some(found);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu() -> Uuid {
        Uuid([7; 16])
    }

    #[test]
    fn changes_are_seen_by_all_and_refusals_by_none() {
        let run = tempfile::tempdir().expect("a folder");
        let store = Store::of(run.path(), gpu());
        assert_eq!(store.read().expect("none is off"), State::default());
        let turn_on = |state: &mut State| -> Result<(), ()> {
            state.on = true;
            Ok(())
        };
        store.change(turn_on).expect("written").expect("changed");
        let other = Store::of(run.path(), gpu());
        assert!(other.read().expect("read").on);
        let refuse = |state: &mut State| -> Result<(), ()> {
            state.on = false;
            Err(())
        };
        assert_eq!(store.change(refuse).expect("readable"), Err(()));
        assert!(other.read().expect("read").on, "a refused change leaves no trace");
    }

    #[test]
    fn changes_of_many_at_once_are_all_made() {
        let run = tempfile::tempdir().expect("a folder");
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let store = Store::of(run.path(), gpu());
                scope.spawn(move || {
                    let add = |state: &mut State| -> Result<(), ()> {
                        let instance = super::super::state::GpuInstance {
                            id: thread,
                            profile: 19,
                            start: 0,
                            compute: Vec::new(),
                        };
                        state.instances.push(instance);
                        Ok(())
                    };
                    store.change(add).expect("written").expect("made");
                });
            }
        });
        let state = Store::of(run.path(), gpu()).read().expect("read");
        assert_eq!(state.instances.len(), 8);
    }

    #[test]
    fn rubbish_is_told_with_its_line() {
        let run = tempfile::tempdir().expect("a folder");
        let store = Store::of(run.path(), gpu());
        fs::write(&store.path, b"divvy mig 1\n\xff\xfe").expect("written");
        let why = store.read().expect_err("rubbish").to_string();
        assert!(why.contains("line 2"), "{why}");
    }
}
