//! The run directory: the place of one agent's socket, log and slices. All of an agent's state is files here.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_model::{Code, Fault};
use rustix::fs::{Access, access};

use crate::files::Folder;

/// A socket's path has at most 107 bytes, of which `/slices/<id>/control.sock` takes this many.
const TAIL: usize = "/slices/01234567/control.sock".len();
/// The mode of a folder that all users may enter and none may list.
pub(crate) const ENTER_ONLY: u32 = 0o711;
/// The slices' records and sockets.
pub(crate) const SLICES: &str = "slices";
/// The folders that containers have mounted for their slice's socket.
pub(crate) const BOXES: &str = "boxes";
/// The other folders and files that containers have mounted.
pub(crate) const CONTAINERS: &str = "containers";
/// The agent's socket.
pub(crate) const SOCKET: &str = "agent.sock";
/// The agent's log.
pub(crate) const LOG: &str = "agent.log";
/// Held, by flock, by the one agent of a run directory for as long as it lives.
pub(crate) const AGENT_LOCK: &str = "agent.lock";
/// The lock, by flock, of a process that starts an agent.
pub(crate) const START_LOCK: &str = "start.lock";
/// See [`RunDir::keep_socket`].
pub(crate) const KEEP_SOCKET: &str = "keep.sock";
const STAGES: &str = "stages";
use crate::start::trust::check_run_dir;

/// The function that makes the command that calls [`crate::keep()`] for a slice of a run directory.
pub type KeepCommand = fn(&RunDir, &str) -> Command;

/// A run directory that exists and is safe to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir {
    path: PathBuf,
}

/// The default directory. An emulated device's page lies there too, so the rule is the emulator's.
#[must_use]
pub fn default_run_dir() -> PathBuf {
    divvy_host::default_run_directory()
}

impl RunDir {
    /// Makes the directory where it is missing, and checks that no other user could have put anything into it.
    ///
    /// # Errors
    /// [`Code::RunDir`] when it cannot be made, is no directory, or belongs to or is writable by another user;
    /// [`Code::RunDirPath`] for a path that the loader or a socket cannot carry.
    pub fn open(path: &Path) -> Result<Self, Fault> {
        let path = std::path::absolute(path).map_err(|error| cannot(path, "use").because(&error))?;
        check_path(&path)?;
        match make(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(cannot(&path, "make").because(&error).hint(another_place(
                    &path,
                    std::env::var_os("XDG_RUNTIME_DIR").as_deref(),
                )));
            }
            _ => {}
        }
        let run = Self { path };
        run.check_owner()?;
        if run.is_own() {
            run.furnish().map_err(|error| {
                cannot(run.path(), "write in")
                    .because(&error)
                    .hint("set DIVVY_RUN_DIR to a directory you may write in")
            })?;
        }
        Ok(run)
    }

    /// Makes the folders below it. Folders that an earlier version let others list lose that right.
    fn furnish(&self) -> std::io::Result<()> {
        let home = self.folder()?;
        if let Some(mode) = narrowed(fs::symlink_metadata(&self.path)?.permissions().mode()) {
            home.set_mode(mode)?;
        }
        for folder in [SLICES, STAGES] {
            home.folder(folder, ENTER_ONLY)?;
        }
        Ok(())
    }

    /// Whether it is this user's. Of another user's directory only the sockets are used.
    pub(crate) fn is_own(&self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        fs::symlink_metadata(&self.path).is_ok_and(|meta| meta.uid() == own)
    }

    /// The directory, for changes in it.
    ///
    /// # Errors
    /// The system's reason; `PermissionDenied` where another user can write in it.
    pub(crate) fn folder(&self) -> std::io::Result<Folder> {
        Folder::open(&self.path)
    }

    /// The folder of stages.
    ///
    /// # Errors
    /// As [`Self::folder`].
    pub(crate) fn stages_folder(&self) -> std::io::Result<Folder> {
        self.folder()?.folder(STAGES, ENTER_ONLY)
    }

    /// The folder of slices.
    ///
    /// # Errors
    /// As [`Self::folder`].
    pub(crate) fn slices_folder(&self) -> std::io::Result<Folder> {
        self.folder()?.folder(SLICES, ENTER_ONLY)
    }

    /// Whether a directory could be used: it is there and safe, or can be made. This makes nothing.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn examine(path: &Path) -> Result<Self, Fault> {
        let run = Self::peek(path);
        check_path(run.path())?;
        match fs::symlink_metadata(run.path()) {
            Ok(_) => run.check_owner()?,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // The nearest existing folder decides.
                let above = run.path().ancestors().find(|folder| folder.is_dir());
                let writable = above.is_some_and(|folder| access(folder, Access::WRITE_OK).is_ok());
                if !writable {
                    return Err(
                        cannot(run.path(), "make").hint("set DIVVY_RUN_DIR to a directory of your own")
                    );
                }
            }
            Err(error) => return Err(cannot(run.path(), "look at").because(&error)),
        }
        Ok(run)
    }

    /// Another user's directory, to read its lists and to talk to its agent: nothing is made or checked.
    #[must_use]
    pub fn peek(path: &Path) -> Self {
        Self {
            path: std::path::absolute(path).unwrap_or_else(|_| path.into()),
        }
    }

    /// Whether it is a directory, or does not exist yet: for callers that only look.
    ///
    /// # Errors
    /// [`Code::RunDir`] for anything else.
    pub fn check_kind(&self) -> Result<(), Fault> {
        match fs::metadata(&self.path) {
            Ok(meta) if !meta.is_dir() => Err(no_directory(&self.path)),
            _ => Ok(()),
        }
    }

    fn check_owner(&self) -> Result<(), Fault> {
        check_run_dir(&self.path).map(drop)
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The socket at which a `divvy run` fetches the sockets of its slice.
    #[must_use]
    pub fn keep_socket(&self) -> PathBuf {
        self.path.join(KEEP_SOCKET)
    }

    /// The socket at which the agent listens.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    /// Writes down the agent's process id namespace, for emulated devices: ids of another one mean nothing here.
    #[must_use]
    pub fn namespace(&self) -> PathBuf {
        self.path.join(divvy_host::EMULATED_NAMESPACE_FILE)
    }

    /// The agent's log.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.path.join(LOG)
    }

    /// One directory per slice.
    #[must_use]
    pub fn slices(&self) -> PathBuf {
        self.path.join(SLICES)
    }

    /// One slice's directory.
    #[must_use]
    pub fn slice(&self, id: &str) -> PathBuf {
        self.slices().join(id)
    }

    /// The folder of a lasting slice that containers have mounted: it holds the page server's socket for them and
    /// nothing else. On the host, only root and the agent's user can reach it.
    #[must_use]
    pub fn slice_box(&self, id: &str) -> PathBuf {
        self.path.join(BOXES).join(id)
    }

    /// The other files of a slice that containers have mounted, one folder per slice.
    #[must_use]
    pub fn container(&self, id: &str) -> PathBuf {
        self.path.join(CONTAINERS).join(id)
    }

    /// Folders of links to the drop-ins, one per version of them.
    #[must_use]
    pub fn stages(&self) -> PathBuf {
        self.path.join(STAGES)
    }

    /// Whether any slice has a directory here. In another user's directory, which only its owner lists, there may be
    /// some.
    #[must_use]
    pub fn has_slices(&self) -> bool {
        match self.folder().and_then(|folder| folder.below(SLICES)?.names()) {
            Ok(names) => !names.is_empty(),
            Err(error) => error.kind() != ErrorKind::NotFound,
        }
    }
}

/// Other users enter root's directory and the system agent's, which have sockets for them; a user's directory is
/// private.
fn make(path: &Path) -> std::io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(_) => Err(ErrorKind::AlreadyExists.into()),
        Err(_) => Folder::make_at(path, own_mode()).map(drop),
    }
}

fn own_mode() -> u32 {
    match rustix::process::getuid().is_root() {
        true => ENTER_ONLY,
        false => 0o700,
    }
}

/// The mode without the right to list, where it gives that right to others.
fn narrowed(mode: u32) -> Option<u32> {
    let mode = mode & 0o7777;
    (mode & 0o044 != 0).then_some(mode & !0o066)
}

fn check_path(path: &Path) -> Result<(), Fault> {
    let bytes = path.as_os_str().as_bytes();
    let shown = path.display();
    if bytes
        .iter()
        .any(|byte| byte.is_ascii_whitespace() || b":;$\\".contains(byte))
    {
        return Err(Fault::new(
            Code::RunDirPath,
            format!("the run directory `{shown}` has a space, `:`, `;`, `$` or `\\` in its path"),
        )
        .hint("the dynamic loader would split or expand it: choose another with DIVVY_RUN_DIR"));
    }
    if bytes.len() + TAIL > 107 {
        return Err(Fault::new(
            Code::RunDirPath,
            format!("the run directory `{shown}` has a path of {} bytes", bytes.len()),
        )
        .hint(format!(
            "sockets below it must fit 107 bytes: choose one of at most {} with DIVVY_RUN_DIR",
            107 - TAIL
        )));
    }
    Ok(())
}

fn no_directory(path: &Path) -> Fault {
    Fault::new(
        Code::RunDir,
        format!("the run directory `{}` is no directory", path.display()),
    )
    .hint("remove it, or set DIVVY_RUN_DIR to a directory of your own")
}

fn cannot(path: &Path, verb: &str) -> Fault {
    Fault::new(
        Code::RunDir,
        format!("cannot {verb} the run directory `{}`", path.display()),
    )
}

/// What to do where a run directory cannot be made. `base`: what XDG_RUNTIME_DIR says, which `su` and cron leave as it was
/// for another user, or for a session that has ended.
fn another_place(path: &Path, base: Option<&OsStr>) -> String {
    let own = "set DIVVY_RUN_DIR to a directory of your own";
    match base.filter(|base| !base.is_empty() && path.starts_with(base)) {
        Some(base) => format!(
            "XDG_RUNTIME_DIR names `{}`: unset it if that is another session's, or {own}",
            base.display()
        ),
        None => own.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn refused(path: &Path) -> Code {
        RunDir::open(path).expect_err("refused").code
    }

    #[test]
    fn made_where_missing_and_found_again() {
        let base = tempfile::tempdir().expect("a folder");
        let path = base.path().join("deep/run");
        RunDir::examine(&path).expect("can be made");
        assert!(!path.exists(), "examining makes nothing");
        let run = RunDir::open(&path).expect("made");
        RunDir::examine(&path).expect("is there");
        assert!(run.slices().is_dir() && run.stages().is_dir());
        assert!(!run.has_slices());
        fs::create_dir(run.slice("ab")).expect("a slice");
        assert!(RunDir::open(&path).expect("found").has_slices());
        assert!(!RunDir::peek(&base.path().join("none")).has_slices());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65_534), None).expect("given away");
            assert!(run.has_slices(), "its owner knows");
        }
    }

    #[test]
    fn others_must_not_be_able_to_write_there() {
        let base = tempfile::tempdir().expect("a folder");
        let path = base.path().join("run");
        fs::create_dir(&path).expect("a folder");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("a mode");
        assert_eq!(refused(&path), Code::RunDir);
        let file = base.path().join("file");
        fs::write(&file, "").expect("a file");
        assert_eq!(refused(&file), Code::RunDir);
        assert_eq!(refused(Path::new("/proc/divvy")), Code::RunDir);
    }

    #[test]
    fn paths_that_the_loader_would_split_are_refused() {
        assert_eq!(refused(Path::new("/tmp/a b")), Code::RunDirPath);
        assert_eq!(refused(Path::new("/tmp/a:b")), Code::RunDirPath);
        assert_eq!(
            refused(Path::new(&format!("/tmp/{}", "x".repeat(90)))),
            Code::RunDirPath
        );
    }
}
