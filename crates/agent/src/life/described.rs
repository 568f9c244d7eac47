//! Files outside the run directory that describe slices to container engines, and go with their slices.

use std::io::{self, ErrorKind};
use std::path::Path;

use divvy_model::{Code, Fault};

use crate::files::Folder;
use crate::start::rundir::{CONTAINERS, ENTER_ONLY, RunDir};
use crate::system::privilege;

/// The name of the file that containers have as /etc/ld.so.preload, in the folder of the files for containers.
pub(crate) const PRELOAD: &str = "ld.so.preload";
/// The list of a slice's files, in the folder of the files for containers.
const FILES: &str = "files";
/// The mode of a folder for the agent's user and root.
const AGENT_ONLY: u32 = 0o700;

/// Writes down which file outside the run directory describes the slice to container engines, so that the file is
/// removed with the slice.
///
/// # Errors
/// [`Code::RunDir`].
pub(crate) fn remember(run: &RunDir, id: &str, file: &Path) -> Result<(), Fault> {
    let line = file.to_string_lossy();
    let add = || -> io::Result<()> {
        let folder = run
            .folder()?
            .folder(CONTAINERS, ENTER_ONLY)?
            .folder(id, AGENT_ONLY)?;
        let known = folder.read_text(FILES).unwrap_or_default();
        match known.lines().any(|known| known == line) {
            true => Ok(()),
            false => folder.write(FILES, format!("{known}{line}\n").as_bytes(), 0o600),
        }
    };
    add().map_err(|error| {
        let list = run.container(id).join(FILES);
        Fault::new(Code::RunDir, format!("cannot write `{}`", list.display())).because(&error)
    })
}

/// Removes the files that describe a slice.
pub fn forget(run: &RunDir, id: &str) {
    let list = || run.folder()?.below(CONTAINERS)?.below(id)?.read_text(FILES);
    let Ok(text) = list() else {
        return;
    };
    for file in text.lines().map(Path::new) {
        // Only names of our own form are removed, because the list may have been damaged.
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if file.is_absolute() && name.starts_with("divvy-") && name.ends_with(".json") {
            let folder = file.parent().unwrap_or(file);
            let removed = match Folder::settled(folder).and_then(|folder| folder.remove(&name)) {
                Err(error) if error.kind() == ErrorKind::PermissionDenied => privilege::remove_cdi(file),
                removed => removed,
            };
            match removed {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    tracing::warn!(slice = id, file = %file.display(), %error, "cannot remove a slice's CDI file");
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_describes_a_slice_goes_with_it_and_nothing_else_does() {
        let base = tempfile::tempdir().expect("a folder");
        let run = RunDir::open(&base.path().join("run")).expect("a run directory");
        fs::create_dir_all(run.container("ab")).expect("a folder");
        let (spec, other) = (
            base.path().join("divvy-slice-a.json"),
            base.path().join("another.json"),
        );
        for file in [&spec, &other] {
            fs::write(file, "{}").expect("written");
            remember(&run, "ab", file).expect("remembered");
        }
        remember(&run, "ab", &spec).expect("once");
        crate::life::records::discard(&run, "ab");
        assert!(!spec.exists() && other.exists());
        assert!(!run.container("ab").exists());
    }
}
