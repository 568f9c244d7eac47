//! A place for one part: a folder that no other user can put anything into.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::kit::beside;

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

/// A place for the part's agent, and for the names of the emulated driver. Its path is short: sockets have 107 bytes.
pub(crate) struct Place {
    folder: PathBuf,
    emulated: Option<String>,
}

impl Place {
    /// For parts that ask this device.
    pub fn new(device: Option<&str>) -> io::Result<Self> {
        let folder = private_folder("dvk")?;
        let emulated = device
            .and_then(|device| device.strip_prefix("emulated:"))
            .map(str::to_owned);
        let place = Self { folder, emulated };
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

    /// Has a command use this place, and nothing that the user has set for Divvy.
    pub fn enter(&self, command: &mut Command) {
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"DIVVY_"))
        {
            command.env_remove(name);
        }
        command.envs(self.variables());
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
        variables
    }
}

/// By this a part finds the place that was made for it.
const PLACE: &str = "KIT_PLACE";

/// A file in this part's own place, which goes with the place however the part ends.
pub(crate) fn own_file(name: &str) -> Option<PathBuf> {
    std::env::var_os(PLACE).map(|folder| Path::new(&folder).join(name))
}

impl Drop for Place {
    fn drop(&mut self) {
        let _left = fs::remove_dir_all(&self.folder);
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
