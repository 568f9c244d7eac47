//! The run directory: where a user's emulated devices have their files, and which user owns it.

use crate::error::HardwareError;
use crate::granted::{self, granted};
use crate::product::identity::Uuid;
use crate::stand_in;
use divvy_ledger::PAGE_ABI_VERSION;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Only the user's own processes share the user's emulated devices.
pub const PAGE_MODE: u32 = 0o600;

/// Pages of another layout are other files: after an upgrade, programs that still run go on with their own.
pub fn page_name(uuid: Uuid) -> PathBuf {
    pages(Path::new("")).join(format!("emulated-{uuid}.{PAGE_ABI_VERSION}.page"))
}

/// Where a run directory has its devices' files: on the host no other user enters it.
pub fn pages(directory: &Path) -> PathBuf {
    directory.join("emulated")
}

/// Makes that folder, where the run directory is.
pub fn make_folder(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(pages(directory)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Whether a run directory is this user's own, and not a container's part of one.
pub fn is_own(directory: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    granted().is_none() && fs::symlink_metadata(directory).is_ok_and(|meta| meta.uid() == user)
}

/// Where processes of one user put what they share with each other alone: ownership records and events. In a run
/// directory of another user's that is a folder of this user's own. `makes`: it is made where it is missing.
pub fn private(directory: &Path, makes: bool) -> PathBuf {
    if is_own(directory) || granted().is_some() {
        return directory.to_owned();
    }
    // Beside the user's own run directory: root's is perhaps the one that another user's agent serves.
    let mut own = default_run_directory().into_os_string();
    own.push(".shared");
    let own = PathBuf::from(own);
    if makes {
        let _exists = DirBuilder::new().mode(0o700).create(&own);
    }
    let user = rustix::process::geteuid().as_raw();
    match fs::symlink_metadata(&own) {
        // In /tmp another user may have made it first.
        Ok(meta) if meta.is_dir() && meta.uid() == user && meta.mode() & 0o022 == 0 => own,
        // Nothing can be written there: nothing is shared.
        _ => directory.to_owned(),
    }
}

/// The directory that a container has in its place, else `DIVVY_RUN_DIR`, else [`default_run_directory`].
pub fn run_directory() -> PathBuf {
    if let Some((_, directory)) = stand_in::settings() {
        return directory;
    }
    if granted().is_some() {
        return granted::FOLDER.into();
    }
    match std::env::var_os("DIVVY_RUN_DIR").filter(|value| !value.is_empty()) {
        Some(directory) => std::path::absolute(&directory).unwrap_or_else(|_| directory.into()),
        None => default_run_directory(),
    }
}

/// The run directory when none is named: /run/divvy for root, else under $XDG_RUNTIME_DIR, else /tmp/divvy-UID. The
/// agent keeps its socket and its slices there too.
pub fn default_run_directory() -> PathBuf {
    let user = match rustix::process::getuid().as_raw() {
        // A process that podman runs for a user without root is root in the user namespace that podman made.
        0 => rootless(
            std::env::var("_CONTAINERS_ROOTLESS_UID").ok().as_deref(),
            &fs::read_to_string("/proc/self/uid_map").unwrap_or_default(),
        ),
        user => user,
    };
    if user == 0 {
        return "/run/divvy".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(base) if Path::new(&base).is_absolute() => Path::new(&base).join("divvy"),
        _ => format!("/tmp/divvy-{user}").into(),
    }
}

/// The user that podman's variable names, in a namespace where root is not the machine's; else root.
fn rootless(named: Option<&str>, map: &str) -> u32 {
    let of_machine = map.split_whitespace().eq(["0", "0", "4294967295"]);
    let named = named.filter(|_| !of_machine).and_then(|text| text.parse().ok());
    named.unwrap_or(0)
}

/// Makes the run directory where it is missing, and refuses another user's.
pub fn prepare(directory: &Path) -> Result<(), HardwareError> {
    let failed = |why| HardwareError::Directory(directory.to_owned(), why);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(failed)?;
    // In /tmp another user may have made it first. Root may look into all of them anyway.
    let owner = fs::symlink_metadata(directory).map_err(failed)?.uid();
    let user = rustix::process::geteuid().as_raw();
    let chosen = std::env::var_os("DIVVY_RUN_DIR").is_some() || granted().is_some();
    if owner != user && user != 0 && !chosen {
        return Err(HardwareError::Foreign(directory.to_owned()));
    }
    // Another user's pages come from a holder.
    if granted().is_some() || owner != user && user != 0 {
        return Ok(());
    }
    make_folder(directory).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn podmans_user_is_believed_in_a_namespace_only() {
        let (machine, namespace) = (
            "         0          0 4294967295\n",
            "         0      65534          1\n",
        );
        assert_eq!(rootless(Some("65534"), namespace), 65534);
        assert_eq!(rootless(Some("65534"), machine), 0);
        assert_eq!(
            (rootless(None, namespace), rootless(Some("x"), namespace)),
            (0, 0)
        );
    }
}
