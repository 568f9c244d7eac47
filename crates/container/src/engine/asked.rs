//! What an engine says of a container, where nobody else can tell.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::running::Processes;

/// An engine that can be asked, with its flags before the verb.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Its command.
    pub program: &'a Path,
    /// Its own flags, before the verb.
    pub globals: &'a [OsString],
}

impl Asked<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        command
            .args(self.globals)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Does as these words say; whether it did.
    #[must_use]
    pub fn does(&self, words: &[&str]) -> bool {
        self.command(words).status().is_ok_and(|status| status.success())
    }

    fn says(&self, words: &[&str]) -> Option<String> {
        let output = self.command(words).stdout(Stdio::piped()).output().ok()?;
        let text = output.status.success().then_some(output.stdout)?;
        Some(String::from_utf8_lossy(&text).trim().to_owned())
    }

    /// Whether the engine knows the container at all.
    #[must_use]
    pub fn knows(&self, id: &str) -> bool {
        self.says(&["inspect", "--type", "container", "--format", "{{.Id}}", id])
            .is_some()
    }

    /// Whether the container runs. One that is `removed` when it ends is not started again; of another the engine is
    /// asked, who answers when a restart is over.
    #[must_use]
    pub fn runs(&self, id: &str, removed: bool) -> bool {
        let has_processes = || !Processes::default().of_container(id).is_empty();
        let state = || {
            self.says(&[
                "inspect",
                "--type",
                "container",
                "--format",
                "{{.State.Running}}",
                id,
            ])
        };
        has_processes() || (!removed && state().is_some_and(|running| running == "true"))
    }

    /// The folder that the engine keeps of a container until it removes that; none where it is not on this machine.
    #[must_use]
    pub fn folder(&self, id: &str) -> Option<PathBuf> {
        let one = |field: &str| {
            let format = format!("{{{{.{field}}}}}");
            self.says(&["inspect", "--type", "container", "--format", &format, id])
        };
        // podman's; docker's is where it writes the container's host name.
        let folder = one("StaticDir").map(PathBuf::from);
        let folder = folder.or_else(|| Some(Path::new(&one("HostnamePath")?).parent()?.to_owned()));
        folder.filter(|folder| folder.is_absolute() && folder.is_dir())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// An engine that answers for one format.
    fn engine(base: &Path, format: &str, answer: &Path) -> PathBuf {
        let program = base.join("engine");
        let script = format!(
            "#!/bin/sh\n[ \"$1 $2\" = '--root /x' ] || exit 9\nshift 2\n[ \"$5\" = '{{{{.{format}}}}}' ] || exit 1\n\
             echo '{}'\n",
            answer.display()
        );
        std::fs::write(&program, script).expect("written");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        program
    }

    #[test]
    fn the_folder_is_podmans_or_dockers_and_on_this_machine() {
        let base = tempfile::tempdir().expect("a folder");
        let globals = ["--root", "/x"].map(OsString::from);
        let folder = |format: &str, answer: &Path| {
            let program = engine(base.path(), format, answer);
            let asked = Asked {
                program: &program,
                globals: &globals,
            };
            asked.folder("id")
        };
        let there = Some(base.path().to_owned());
        assert_eq!(folder("StaticDir", base.path()), there);
        assert_eq!(folder("HostnamePath", &base.path().join("hostname")), there);
        assert_eq!(
            folder("HostnamePath", &base.path().join("elsewhere/hostname")),
            None
        );
        assert_eq!(folder("Other", base.path()), None);
    }
}
