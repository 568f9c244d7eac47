//! Which folders and sockets are trusted: their content is believed, and the process that answers there is used.
//! docs/adr/0033.

use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault};

use crate::files::kernel;

/// The system agent's run directory, unless [`SYSTEM_RUN_DIR`] names another.
const SYSTEM: &str = "/run/divvy";
/// Names the system agent's run directory, to try a system agent beside the host's own. The variable affects programs
/// of the same user only, who may choose any run directory anyway.
pub const SYSTEM_RUN_DIR: &str = "DIVVY_SYSTEM_RUN_DIR";
/// A file of the system agent's run directory that says that the agent admits other users.
pub(crate) const ADMITS_OTHERS: &str = "admits-others";

/// The system agent's run directory, if there is one.
#[must_use]
pub fn system_run_dir() -> PathBuf {
    let named = std::env::var_os(SYSTEM_RUN_DIR).filter(|path| !path.is_empty());
    named.map_or_else(|| SYSTEM.into(), PathBuf::from)
}

/// Whether this is the system agent's run directory, which root made or gave to the agent's user.
pub(crate) fn is_system(run_dir: &Path) -> bool {
    run_dir == system_run_dir() && root_put_it_there(run_dir)
}

/// Whether an agent of this run directory has said that it admits other users, and is to be believed.
#[must_use]
pub fn admits_others(run_dir: &Path) -> bool {
    check_run_dir(run_dir).is_ok()
        && fs::symlink_metadata(run_dir.join(ADMITS_OTHERS)).is_ok_and(|meta| meta.is_file())
}

/// Checks that a run directory's owner is the caller, root, or a user that root put there, and that only the owner
/// writes in it. Returns the owner.
///
/// # Errors
/// [`Code::RunDir`].
pub(crate) fn check_run_dir(path: &Path) -> Result<u32, Fault> {
    let shown = path.display();
    let meta = fs::symlink_metadata(path).map_err(|error| {
        Fault::new(
            Code::RunDir,
            format!("cannot look at the run directory `{shown}`"),
        )
        .because(&error)
    })?;
    if !meta.is_dir() {
        return Err(Fault::new(
            Code::RunDir,
            format!("the run directory `{shown}` is no directory"),
        )
        .hint("remove it, or set DIVVY_RUN_DIR to a directory of your own"));
    }
    let refuse = |message: String| {
        Err(Fault::new(Code::RunDir, message)
            .hint("remove it, or set DIVVY_RUN_DIR to a directory of your own"))
    };
    let uid = rustix::process::getuid().as_raw();
    if meta.uid() != uid && meta.uid() != 0 && !root_put_it_there(path) {
        return refuse(format!(
            "the run directory `{shown}` belongs to user {}, not to user {uid}, to root or to a user that root put there",
            meta.uid()
        ));
    }
    let mode = meta.permissions().mode();
    if mode & 0o022 != 0 {
        return refuse(format!(
            "the run directory `{shown}` is writable by others (mode {:03o})",
            mode & 0o777
        ));
    }
    Ok(meta.uid())
}

/// Whether every folder above a path is root's and writable by root alone.
fn root_put_it_there(path: &Path) -> bool {
    path.is_absolute()
        && path.ancestors().skip(1).all(|folder| {
            fs::symlink_metadata(folder)
                .is_ok_and(|meta| meta.is_dir() && meta.uid() == 0 && meta.mode() & 0o022 == 0)
        })
}

/// The real path of a file that root may trust. The file and every folder above it are root's, and no other user can
/// write there or replace one of them.
///
/// # Errors
/// The reason why not, in words; and errors that prevent a look at the file.
pub fn root_may_believe(path: &Path) -> Result<PathBuf, String> {
    let real = fs::canonicalize(path).map_err(|error| error.to_string())?;
    for part in real.ancestors() {
        let meta = fs::symlink_metadata(part).map_err(|error| error.to_string())?;
        if !is_roots(meta.uid()) {
            return Err(format!("`{}` belongs to user {}", part.display(), meta.uid()));
        }
        if is_writable_by_others(&meta) {
            return Err(format!("`{}` is writable by others", part.display()));
        }
    }
    Ok(real)
}

/// In a sticky folder such as /tmp other users can add files beside root's, but not replace root's.
fn is_writable_by_others(meta: &Metadata) -> bool {
    let mode = meta.mode();
    mode & 0o022 != 0 && !(meta.is_dir() && mode & 0o1000 != 0)
}

/// In a user namespace of an unprivileged user, the machine's root is shown as the overflow user.
pub(crate) fn is_roots(uid: u32) -> bool {
    const OVERFLOW: u32 = 65_534;
    let of_machine = || {
        let map = kernel::text("self", "uid_map").unwrap_or_default();
        map.split_whitespace().eq(["0", "0", "4294967295"])
    };
    uid == 0 || (uid == OVERFLOW && !of_machine())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::chown;

    use super::*;

    #[test]
    fn a_run_directory_is_the_callers_or_of_a_user_that_root_put_there() {
        let base = tempfile::tempdir().expect("a folder");
        let own = base.path().join("run");
        fs::create_dir(&own).expect("a folder");
        fs::set_permissions(&own, Permissions::from_mode(0o711)).expect("a mode");
        let uid = rustix::process::getuid().as_raw();
        assert_eq!(check_run_dir(&own), Ok(uid));
        assert!(!admits_others(&own));
        fs::write(own.join(ADMITS_OTHERS), "").expect("written");
        assert!(admits_others(&own));
        fs::set_permissions(&own, Permissions::from_mode(0o770)).expect("a mode");
        assert_eq!(
            check_run_dir(&own).expect_err("a group writes").code,
            Code::RunDir
        );
        assert!(!admits_others(&own));
        if uid != 0 {
            return;
        }
        // All users write in /tmp: the owner of a folder there may have put it there.
        fs::set_permissions(&own, Permissions::from_mode(0o711)).expect("a mode");
        chown(&own, Some(64_321), None).expect("given away");
        let refusal = check_run_dir(&own).expect_err("another user's");
        assert!(refusal.message.contains("64321"), "{refusal:?}");
        assert!(!admits_others(&own));
    }

    #[test]
    fn root_believes_files_that_no_other_user_can_write() {
        assert!(root_may_believe(Path::new("/etc/passwd")).is_ok());
        let base = tempfile::tempdir().expect("a folder");
        let file = base.path().join("config.toml");
        fs::write(&file, "").expect("written");
        let is_root = rustix::process::getuid().is_root();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("a mode");
        assert_eq!(root_may_believe(&file).is_ok(), is_root);
        let link = base.path().join("link");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        for mode in [0o664, 0o646] {
            fs::set_permissions(&file, Permissions::from_mode(mode)).expect("a mode");
            assert!(root_may_believe(&file).is_err() && root_may_believe(&link).is_err());
        }
        fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("a mode");
        fs::set_permissions(base.path(), Permissions::from_mode(0o777)).expect("a mode");
        assert!(root_may_believe(&file).is_err());
    }
}
