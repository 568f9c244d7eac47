//! A place for one part: a folder that no other user can put anything into.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};

use crate::kit::beside;
use crate::processes::end_those_with;

/// Makes a folder in the temporary one, for this user alone. One that is there already is never taken: in /tmp it may be
/// another user's, and what lies in it is loaded and written to.
///
/// # Errors
/// The system's reason.
pub fn private_folder(name: &str) -> io::Result<PathBuf> {
    const TRIES: u32 = 100;
    let mut outcome = Err(io::ErrorKind::AlreadyExists.into());
    for _ in 0..TRIES {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Short, for the agent's sockets are below it.
        let folder = std::env::temp_dir().join(format!("{name}-{:x}", now.subsec_nanos()));
        outcome = DirBuilder::new().mode(0o700).create(&folder).map(|()| folder);
        match &outcome {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            _ => break,
        }
    }
    outcome
}

/// The begin of each place's name.
const NAME: &str = "dvk";
/// In each place: held for as long as its maker lives.
const LOCK: &str = "lock";
/// A developer's word: the specification of an emulated device that stands in the place of the machine's card, under NVIDIA's
/// names. Without `--device` the kit takes it for a card.
const AS_A_CARD: &str = "KIT_AS_A_CARD";
/// Variables that name files. What they name stays the same in the place.
const FILES: [&str; 4] = ["KIT_PYTHON", "KIT_PROGRAMS", "KIT_KERNELS", "KIT_CASES"];

/// A place for the part's agent, and for the names of the emulated driver. Its path is short: sockets have 107 bytes.
pub(crate) struct Place {
    folder: PathBuf,
    emulated: Option<String>,
    /// The one card that all programs of this place see, by its UUID.
    card: Option<String>,
    _lock: Option<File>,
}

impl Place {
    /// For parts that ask this device.
    pub fn new(device: Option<&str>) -> io::Result<Self> {
        Self::over(private_folder(NAME)?, device)
    }

    /// For another device, inside the place that this part has: it goes with that one.
    pub fn inside_own(device: &str) -> io::Result<Self> {
        match own_file("other") {
            Some(folder) => {
                DirBuilder::new().mode(0o700).create(&folder)?;
                Self::over(folder, Some(device))
            }
            None => Self::new(Some(device)),
        }
    }

    fn over(folder: PathBuf, device: Option<&str>) -> io::Result<Self> {
        let lock = File::create(folder.join(LOCK))?;
        // Without locks, what a former run left is not found.
        let _no_locks = flock(&lock, FlockOperation::NonBlockingLockExclusive);
        let emulated = match device {
            Some(device) => device.strip_prefix("emulated:").map(str::to_owned),
            None => std::env::var(AS_A_CARD).ok(),
        };
        let is_uuid = |device: &&str| device.starts_with("GPU-") || device.starts_with("MIG-");
        let place = Self {
            folder,
            emulated,
            card: device.filter(is_uuid).map(str::to_owned),
            _lock: Some(lock),
        };
        if place.emulated.is_some() {
            place.name_libraries()?;
        }
        Ok(place)
    }

    /// Has the loader find the emulated libraries under NVIDIA's names: there they are the machine's driver.
    fn name_libraries(&self) -> io::Result<()> {
        for (name, file) in [
            ("libcuda.so.1", "libdivvy_emulated_cuda.so"),
            ("libnvidia-ml.so.1", "libdivvy_emulated_nvml.so"),
        ] {
            symlink(library(file), self.folder.join(name))?;
        }
        Ok(())
    }

    /// Has a command use this place, and nothing that the user has set for Divvy. The place is its current directory too:
    /// Python imports from there.
    pub fn enter(&self, command: &mut Command) {
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"DIVVY_"))
        {
            command.env_remove(name);
        }
        for name in FILES {
            let value = std::env::var_os(name).filter(|value| value.as_encoded_bytes().contains(&b'/'));
            if let Some(Ok(path)) = value.map(std::path::absolute) {
                command.env(name, path);
            }
        }
        command.envs(self.variables()).current_dir(&self.folder);
        // Python writes nothing beside its programs: they are the archive's, and are packed as they lie.
        command.env("PYTHONDONTWRITEBYTECODE", "1");
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn variables(&self) -> Vec<(&'static str, OsString)> {
        let mut variables = vec![
            ("DIVVY_RUN_DIR", self.folder.join("run").into_os_string()),
            (PLACE, self.folder.clone().into_os_string()),
        ];
        if let Some(spec) = &self.emulated {
            variables.push(("DIVVY_EMULATED", spec.into()));
            variables.push(("LD_LIBRARY_PATH", self.folder.clone().into_os_string()));
        }
        if let Some(card) = &self.card {
            variables.push(("CUDA_VISIBLE_DEVICES", card.into()));
        }
        variables
    }
}

/// By this a part finds the place that was made for it.
const PLACE: &str = "KIT_PLACE";

/// A file in this part's own place, which goes with the place however the part ends.
pub(crate) fn own_file(name: &str) -> Option<PathBuf> {
    std::env::var_os(PLACE).map(|folder| Path::new(&folder).join(name))
}

/// Removes this part's own place, where its maker cannot.
pub(crate) fn remove_own() {
    let name = |place: &Path| place.file_name()?.to_str()?.strip_prefix(NAME).map(str::len);
    if let Some(place) = std::env::var_os(PLACE).map(PathBuf::from)
        && name(&place).is_some()
    {
        let _left = fs::remove_dir_all(place);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _left = fs::remove_dir_all(&self.folder);
    }
}

/// Ends what runs that were killed have left, and removes their places.
pub(crate) fn clear_stale() {
    let own = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_place = name.to_str().is_some_and(|name| {
            let number = name.strip_prefix(NAME).and_then(|rest| rest.strip_prefix('-'));
            number.is_some_and(|number| u32::from_str_radix(number, 16).is_ok())
        });
        let path = entry.path();
        let Ok(meta) = fs::symlink_metadata(&path) else {
            continue;
        };
        if is_place && meta.is_dir() && meta.uid() == own && is_stale(&path) {
            let variable = [b"DIVVY_RUN_DIR=", path.join("run").as_os_str().as_encoded_bytes()].concat();
            end_those_with(&variable);
            let _left = fs::remove_dir_all(&path);
        }
    }
}

/// Whether a place's maker has ended: its lock can be had.
fn is_stale(place: &Path) -> bool {
    match File::open(place.join(LOCK)) {
        Ok(lock) => flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok(),
        // One that is just being made has no lock yet.
        Err(_) => {
            let age = fs::metadata(place).and_then(|meta| meta.modified());
            age.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > Duration::from_secs(60)))
        }
    }
}

/// A library of ours: beside the programs where they were built, and in lib/divvy where they were installed.
pub(crate) fn library(file: &str) -> PathBuf {
    let own = beside(file);
    let installed = own
        .parent()
        .and_then(Path::parent)
        .map(|home| home.join("lib/divvy").join(file));
    match installed {
        Some(installed) if !own.exists() && installed.exists() => installed,
        _ => own,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_place_is_stale_when_its_maker_has_ended() {
        let place = Place::new(Some("GPU-0")).expect("a place");
        assert!(!is_stale(&place.folder));
        let variables = place.variables();
        assert!(variables.contains(&("CUDA_VISIBLE_DEVICES", "GPU-0".into())));
        let mut command = Command::new("pwd");
        place.enter(&mut command);
        let said = command.output().expect("pwd").stdout;
        let here = place.folder.canonicalize().expect("there");
        assert_eq!(
            String::from_utf8_lossy(&said).trim(),
            here.to_str().expect("text")
        );

        let other = private_folder("dvk-test").expect("a folder");
        assert!(!is_stale(&other), "none has a lock");
        drop(Place::over(other.clone(), None).map(|mut place| {
            // Its maker was killed: the lock goes, and the folder stays.
            place._lock = None;
            assert!(is_stale(&other));
        }));
        assert!(!other.exists());
    }

    #[test]
    fn a_private_folder_is_new_and_ours_alone() {
        let folders = [(); 20].map(|()| private_folder("divvy-kit-test").expect("a folder"));
        for (at, folder) in folders.iter().enumerate() {
            assert!(!folders[..at].contains(folder));
            let meta = fs::symlink_metadata(folder).expect("there");
            assert!(meta.is_dir() && meta.permissions().mode() & 0o777 == 0o700);
            fs::remove_dir(folder).expect("empty");
        }
    }
}
