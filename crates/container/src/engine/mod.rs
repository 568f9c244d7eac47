//! Container engines' own command lines: podman's and docker's.

mod around;
mod asked;
mod diagnose;
mod flags;
mod line;

pub use around::around;
pub use asked::EngineCommand;
pub use diagnose::{diagnose, version};
pub use line::{Line, Seen, split};

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault};

/// An engine with a command line that we translate into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// podman, which needs no daemon.
    Podman,
    /// docker.
    Docker,
}

impl Engine {
    /// The command's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Podman => "podman",
            Self::Docker => "docker",
        }
    }

    /// The engine by its command's name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        [Self::Podman, Self::Docker]
            .into_iter()
            .find(|engine| engine.name() == name)
    }

    /// The command on this machine.
    ///
    /// # Errors
    /// [`Code::EngineMissing`].
    pub fn find(self) -> Result<PathBuf, Fault> {
        on_path(self.name()).ok_or_else(|| {
            Fault::new(
                Code::EngineMissing,
                format!("`{}` is not on the PATH", self.name()),
            )
            .hint(match self {
                Self::Podman => "install it (Debian: `apt-get install podman`), or use `divvy docker run`",
                Self::Docker => "install it (Debian: `apt-get install docker.io`), or use `divvy podman run`",
            })
        })
    }
}

/// The file that a shell would run by this name.
#[must_use]
pub fn on_path(name: &str) -> Option<PathBuf> {
    use rustix::fs::{Access, access};
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|file| file.is_file());
    }
    // Runtimes lie in sbin, which is not on every user's PATH.
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/sbin", "/usr/sbin", "/usr/local/bin", "/usr/bin"].map(PathBuf::from);
    std::env::split_paths(&folders)
        .chain(usual)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file() && access(file, Access::EXEC_OK).is_ok())
}

/// The words that run the container: the engine's own, with the slice's device and the file for the container's id.
#[must_use]
pub fn command(line: &Line, device: &str, id_file: &Path) -> Vec<OsString> {
    let mut words = line.globals.clone();
    words.push("run".into());
    words.extend(["--device".into(), device.into()]);
    if line.seen.id_file.is_none() {
        words.extend(["--cidfile".into(), id_file.into()]);
    }
    words.extend(line.flags.iter().cloned());
    words.extend(line.rest.iter().cloned());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_gets_its_own_words_untouched() {
        let words = ["--root", "/x", "run", "-it", "image", "cmd", "--memory", "1"].map(OsString::from);
        let line = split(&words, &|_| None).expect("a line");
        let words = command(&line, "divvy.dev/slice=a", Path::new("/tmp/cid"));
        let text: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        assert_eq!(
            text.join(" "),
            "--root /x run --device divvy.dev/slice=a --cidfile /tmp/cid -it image cmd --memory 1"
        );
    }
}
