//! What an engine says of a container, where no other source can tell.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::running::Processes;

/// How long a container that was stopped may take to come back, and how often it is looked for.
const RESTART: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(100);

/// How a container is.
struct State {
    running: bool,
    /// Its program was ended by a signal, as `stop` and `restart` do.
    by_signal: bool,
}

/// The command of an engine, with its flags before the verb.
#[derive(Clone, Copy, Debug)]
pub struct EngineCommand<'a> {
    /// Its command.
    pub program: &'a Path,
    /// Its own flags, before the verb.
    pub globals: &'a [OsString],
}

impl EngineCommand<'_> {
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

    /// Whether the container runs, or may be on its way back. The engine is asked wherever no process of its is seen: a
    /// cgroup need not name its container. One that is `removed` when it ends is not started again. Another that a signal
    /// ended may be between the two halves of a restart, which no engine reports: it is looked for a while longer.
    #[must_use]
    pub fn runs(&self, id: &str, removed: bool) -> bool {
        let begin = Instant::now();
        loop {
            if !Processes::default().of_container(id).is_empty() {
                return true;
            }
            match self.state(id) {
                Some(State { running: true, .. }) => return true,
                Some(state) if !removed && state.by_signal && begin.elapsed() < RESTART => {
                    std::thread::sleep(LOOK);
                }
                _ => return false,
            }
        }
    }

    /// The container's first process, as the engine says; none where it does not run.
    #[must_use]
    pub fn first_process(&self, id: &str) -> Option<u32> {
        let format = "{{.State.Pid}}";
        let text = self.says(&["inspect", "--type", "container", "--format", format, id])?;
        text.parse().ok().filter(|pid| *pid != 0)
    }

    /// What the engine says of a container; nothing of one that it does not know.
    fn state(&self, id: &str) -> Option<State> {
        let format = "{{.State.Running}} {{.State.ExitCode}}";
        let text = self.says(&["inspect", "--type", "container", "--format", format, id])?;
        let (running, code) = text.split_once(' ')?;
        Some(State {
            running: running == "true",
            by_signal: code.parse::<u32>().is_ok_and(|code| code >= 128),
        })
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

    /// An engine that answers for one format. Another test may start a program while this one's file is open for writing,
    /// and the kernel executes no such file: it is tried until that program has closed it.
    fn engine(base: &Path, format: &str, answer: &Path) -> PathBuf {
        let program = base.join("engine");
        let script = format!(
            "#!/bin/sh\n[ \"$1 $2\" = '--root /x' ] || exit 9\nshift 2\n[ \"$5\" = '{{{{.{format}}}}}' ] || exit 1\n\
             echo '{}'\n",
            answer.display()
        );
        std::fs::write(&program, script).expect("written");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        let is_busy = |error: std::io::Error| error.kind() == std::io::ErrorKind::ExecutableFileBusy;
        while std::process::Command::new(&program).output().is_err_and(is_busy) {
            std::thread::yield_now();
        }
        program
    }

    #[test]
    fn what_a_signal_ended_may_come_back_and_what_ended_itself_does_not() {
        let base = tempfile::tempdir().expect("a folder");
        let globals = ["--root", "/x"].map(OsString::from);
        let format = "State.Running}} {{.State.ExitCode";
        // It answers by and by what `says` is told.
        let runs = |first: &str, then: &str, removed: bool| {
            let (once, later) = (base.path().join("once"), base.path().join("then"));
            std::fs::write(&once, first).expect("written");
            std::fs::write(&later, then).expect("written");
            let answer = format!("'; cat {0}; cp {1} {0}; : '", once.display(), later.display());
            let program = engine(base.path(), format, Path::new(&answer));
            let asked = EngineCommand {
                program: &program,
                globals: &globals,
            };
            asked.runs("0123", removed)
        };
        assert!(runs("true 0", "false 0", false));
        assert!(runs("true 0", "", true), "no cgroup tells of it, and it runs");
        assert!(runs("false 137", "true 0", false), "a restart");
        assert!(!runs("false 1", "true 0", false), "it ended by itself");
        assert!(!runs("false 143", "false 143", false), "it does not come back");
        assert!(!runs("false 137", "", false), "it is removed");
        assert!(!runs("false 137", "true 0", true), "its removal is under way");
    }

    #[test]
    fn the_first_process_is_the_engines_word() {
        let base = tempfile::tempdir().expect("a folder");
        let globals = ["--root", "/x"].map(OsString::from);
        let first = |answer: &str| {
            let program = engine(base.path(), "State.Pid", Path::new(answer));
            let asked = EngineCommand {
                program: &program,
                globals: &globals,
            };
            asked.first_process("0123")
        };
        assert_eq!(first("4711"), Some(4711));
        assert_eq!((first("0"), first("no")), (None, None));
    }

    #[test]
    fn the_folder_is_podmans_or_dockers_and_on_this_machine() {
        let base = tempfile::tempdir().expect("a folder");
        let globals = ["--root", "/x"].map(OsString::from);
        let folder = |format: &str, answer: &Path| {
            let program = engine(base.path(), format, answer);
            let asked = EngineCommand {
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
