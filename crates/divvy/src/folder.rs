//! Files of one command: a folder for the time that it runs, and those that it is told to write.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault};

/// A folder that no other user can enter. It goes when this is dropped.
pub struct PrivateFolder(PathBuf);

impl PrivateFolder {
    /// A new one, with the verb in its name.
    ///
    /// # Errors
    /// [`Code::OutputFile`].
    pub fn new(verb: &str) -> Result<Self, Fault> {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let name = format!("divvy-{verb}-{}-{}", std::process::id(), since.subsec_nanos());
        make(std::env::temp_dir().join(name)).map(Self)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A folder in it.
    ///
    /// # Errors
    /// [`Code::OutputFile`].
    pub fn with(&self, name: &str) -> Result<PathBuf, Fault> {
        make(self.0.join(name))
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

/// It must not be there yet: another user may have made it.
fn make(path: PathBuf) -> Result<PathBuf, Fault> {
    match fs::DirBuilder::new().mode(0o700).create(&path) {
        Ok(()) => Ok(path),
        Err(error) => Err(
            Fault::new(Code::OutputFile, format!("cannot make `{}`", path.display()))
                .because(&error)
                .hint("Divvy needs a folder for the time that the program runs: name one by TMPDIR"),
        ),
    }
}

/// A file that the command line names, empty. What is wrong with it is said before anything runs.
///
/// # Errors
/// [`Code::OutputFile`].
pub fn output_file(path: &Path) -> Result<File, Fault> {
    File::create(path).map_err(|error| cannot_write(path, &error))
}

/// Why a file cannot be written, and what to do.
pub fn cannot_write(path: &Path, error: &std::io::Error) -> Fault {
    let fault = Fault::new(Code::OutputFile, format!("cannot write `{}`", path.display())).because(error);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match (error.kind(), folder) {
        (ErrorKind::NotFound, Some(folder)) => {
            fault.hint(format!("make the folder first: mkdir -p {}", folder.display()))
        }
        (ErrorKind::StorageFull | ErrorKind::QuotaExceeded, _) => {
            fault.hint("the disk is full: make space, or name a file on another disk")
        }
        (ErrorKind::IsADirectory, _) => fault.hint("name a file in that folder"),
        _ => fault.hint("name a file that you may write"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_private_folder_goes_with_all_that_is_in_it() {
        let folder = PrivateFolder::new("test").expect("a folder");
        let inner = folder.with("inner").expect("a folder in it");
        fs::write(inner.join("file"), "text").expect("written");
        let mode = fs::metadata(folder.path()).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(folder.with("inner").is_err(), "what is there is not taken");
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn what_cannot_be_written_has_a_hint_of_its_own() {
        let folder = PrivateFolder::new("test-hint").expect("a folder");
        let fault = |path: &Path| output_file(path).expect_err("refused").to_string();
        let missing = folder.path().join("missing/file");
        assert!(
            output_file(&missing)
                .expect_err("refused")
                .hint
                .is_some_and(|hint| hint.contains("mkdir -p"))
        );
        assert!(fault(folder.path()).contains("cannot write"));
        let full = output_file(Path::new("/dev/full")).expect("it opens");
        let error = std::io::Write::write_all(&mut &full, b"text").expect_err("full");
        let hint = cannot_write(Path::new("/dev/full"), &error).hint;
        assert!(hint.is_some_and(|hint| hint.contains("disk is full")));
    }
}
