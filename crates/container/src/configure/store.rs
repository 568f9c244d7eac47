//! Changes an engine's file: the old text stays beside the new one, and a reader sees one or the other whole.

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault};

use super::Target;

/// The old file's name.
pub const BACKUP: &str = "before-divvy";

/// A change of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The file.
    pub file: PathBuf,
    /// Its text before; none where there was no file.
    pub before: Option<String>,
    /// Its text after; none where the file goes.
    pub after: Option<String>,
}

impl Change {
    /// Whether anything changes.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.before == self.after
    }

    /// Makes it.
    ///
    /// # Errors
    /// [`Code::EngineConfig`].
    pub fn make(&self, keep: bool) -> Result<(), Fault> {
        let backup = backup(&self.file);
        if keep
            && let Some(before) = &self.before
            && !backup.exists()
        {
            replace(&backup, before, &self.file)?;
        }
        match &self.after {
            Some(after) => replace(&self.file, after, &self.file)?,
            None => remove(&self.file)?,
        }
        if !keep {
            remove(&backup)?;
        }
        Ok(())
    }
}

fn backup(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(BACKUP);
    name.into()
}

/// What adding the runtime to an engine's file changes.
///
/// # Errors
/// [`Code::EngineConfig`].
pub fn change(target: Target, file: &Path, runtime: &str) -> Result<Change, Fault> {
    let before = read(file)?;
    let after = target.with(before.as_deref().unwrap_or_default(), runtime);
    Ok(Change {
        after: Some(after.map_err(|reason| fault(file).cause(reason))?),
        file: file.into(),
        before,
    })
}

/// What taking it out again changes: the old file comes back, or, where the file was changed since, only what is
/// ours goes.
///
/// # Errors
/// [`Code::EngineConfig`].
pub fn undo(target: Target, file: &Path, runtime: &str) -> Result<Change, Fault> {
    let before = read(file)?;
    let old = read(&backup(file))?;
    let after = match (&before, &old) {
        (None, _) => None,
        (Some(now), Some(old)) if target.with(old, runtime).as_ref() == Ok(now) => Some(old.clone()),
        (Some(now), _) => target.without(now).map_err(|reason| {
            fault(file)
                .cause(reason)
                .hint("take what names divvy out of it by hand")
        })?,
    };
    Ok(Change {
        file: file.into(),
        before,
        after,
    })
}

fn fault(file: &Path) -> Fault {
    Fault::new(
        Code::EngineConfig,
        format!("`{}` cannot be changed", file.display()),
    )
}

fn read(file: &Path) -> Result<Option<String>, Fault> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(fault(file).because(&error)),
    }
}

fn replace(file: &Path, text: &str, like: &Path) -> Result<(), Fault> {
    let mut aside = file.as_os_str().to_owned();
    aside.push(format!(".{}.new", std::process::id()));
    let aside = PathBuf::from(aside);
    let write = || -> std::io::Result<()> {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        let mode = fs::metadata(like).map_or(0o644, |meta| meta.permissions().mode() & 0o777);
        let mut new = File::create(&aside)?;
        new.write_all(text.as_bytes())?;
        new.set_permissions(Permissions::from_mode(mode))?;
        new.sync_all()?;
        fs::rename(&aside, file)
    };
    write().map_err(|error| {
        let _absent = fs::remove_file(&aside);
        fault(file)
            .because(&error)
            .hint("run it as root, or name another file with --file")
    })
}

fn remove(file: &Path) -> Result<(), Fault> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(fault(file).because(&error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_file_comes_back_byte_for_byte() {
        let base = tempfile::tempdir().expect("a folder");
        let file = base.path().join("deep/daemon.json");
        let old = "{\n\t\"z\": 1, \"a\": 2}";
        fs::create_dir(base.path().join("deep")).expect("a folder");
        fs::write(&file, old).expect("written");
        fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("ours");
        let added = change(Target::Docker, &file, "/r").expect("planned");
        added.make(true).expect("made");
        assert!(change(Target::Docker, &file, "/r").expect("planned").is_none());
        let mode = fs::metadata(&file).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "who could not read it still cannot");
        let back = undo(Target::Docker, &file, "/r").expect("planned");
        back.make(false).expect("made");
        assert_eq!(fs::read_to_string(&file).expect("there"), old);
        assert_eq!(
            fs::read_dir(file.parent().expect("a folder"))
                .expect("read")
                .count(),
            1
        );
    }

    #[test]
    fn what_was_changed_since_stays_changed() {
        let base = tempfile::tempdir().expect("a folder");
        let file = base.path().join("daemon.json");
        fs::write(&file, "{}").expect("written");
        let added = change(Target::Docker, &file, "/r").expect("planned");
        added.make(true).expect("made");
        let mut since: serde_json::Value =
            serde_json::from_str(added.after.as_deref().expect("a text")).expect("JSON");
        since["debug"] = true.into();
        fs::write(&file, since.to_string()).expect("written");
        undo(Target::Docker, &file, "/r")
            .expect("planned")
            .make(false)
            .expect("made");
        let left = fs::read_to_string(&file).expect("there");
        assert!(left.contains("debug") && !left.contains("divvy"), "{left}");
        let own = base.path().join("50-divvy.conf");
        change(Target::Podman, &own, "/r")
            .expect("planned")
            .make(true)
            .expect("made");
        undo(Target::Podman, &own, "/r")
            .expect("planned")
            .make(false)
            .expect("made");
        assert!(!own.exists());
        assert!(undo(Target::Podman, &own, "/r").expect("planned").is_none());
    }

    #[test]
    fn a_file_that_cannot_be_written_is_said() {
        let refused = change(Target::Crio, Path::new("/proc/divvy/50.conf"), "/r")
            .and_then(|change| change.make(true))
            .expect_err("no");
        assert_eq!(refused.code, Code::EngineConfig);
    }
}
