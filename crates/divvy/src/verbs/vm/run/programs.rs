//! Programs that are started for a machine, perhaps as root: found where no other user can put one.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// A program by its name, along the variable `PATH`.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    along(&path, name, rustix::process::geteuid().is_root())
}

/// An empty or relative part of the path is the present folder, which may be any user's. Root takes programs out of folders
/// alone that root alone writes.
fn along(path: &OsStr, name: &str, is_root: bool) -> Option<PathBuf> {
    let folders = std::env::split_paths(path).filter(|folder| folder.is_absolute());
    let mut files = folders
        .filter(|folder| !is_root || is_roots(folder))
        .map(|folder| folder.join(name));
    files.find(|file| file.is_file() && access(file, Access::EXEC_OK).is_ok())
}

/// Whether root alone can change what is in a folder.
fn is_roots(folder: &Path) -> bool {
    let Ok(real) = folder.canonicalize() else {
        return false;
    };
    // In a folder such as /tmp other users add files, and leave root's as they are.
    const STICKY: u32 = 0o1000;
    let is_kept = |(above, part): (usize, &Path)| {
        part.symlink_metadata().is_ok_and(|found| {
            let is_closed = found.mode() & 0o022 == 0;
            found.uid() == 0 && (is_closed || (above > 0 && found.mode() & STICKY != 0))
        })
    };
    real.ancestors().enumerate().all(is_kept)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_program_beside_the_user_is_not_taken() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("some-program");
        std::fs::write(&file, "").expect("written");
        let text = folder.path().to_str().expect("a path").to_owned();
        let find = |path: &str, is_root: bool| along(OsStr::new(path), "some-program", is_root);
        assert_eq!(find(&text, false), None, "it cannot be run");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        assert_eq!(find(&text, false), Some(file));
        for path in ["", ":", ".", "x:../tmp"] {
            assert_eq!(find(path, false), None, "{path}");
        }
        // Every user may write the folder.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o1777)).expect("a mode");
        assert_eq!(find(&text, true), None);
        assert_eq!(
            along(OsStr::new(":/usr/bin"), "env", true),
            Some("/usr/bin/env".into())
        );
    }
}
