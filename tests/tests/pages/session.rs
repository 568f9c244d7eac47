//! A page's home, and a shell that runs one block in it.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use divvy_tests::build::{binaries, workspace};
use divvy_tests::clients;
use divvy_tests::host::Host;
use divvy_tests::wait::TIMEOUT;

use crate::block::{Block, Command};

/// The programs that pages run by these names. Each is `examples/python/train.py`: the reader has others.
const PROGRAMS: [&str; 6] = [
    "train.py",
    "serve.py",
    "notebook.py",
    "program.py",
    "exercise-1.py",
    "exercise-2.py",
];

/// What separates the output of a block's commands: a control character that no command prints.
const MARK: char = '\u{1e}';

/// One page's home: a folder, and an agent that no other page has. Its processes end with it.
pub struct Home {
    host: Host,
    path: std::ffi::OsString,
}

/// What a command did.
#[derive(Debug, PartialEq, Eq)]
pub struct Done {
    pub printed: Vec<String>,
    /// The exit status. None where the shell ended before it could be told.
    pub status: Option<i32>,
}

impl Home {
    /// A machine without a GPU, as most readers have one. None where Python was not set up.
    pub fn new() -> Option<Self> {
        let python = clients::python()?;
        let tools = clients::tools_python()?;
        let host = Host::without_devices();
        let home = host.folder().join("home");
        std::fs::create_dir(&home).expect("a folder");
        symlink(workspace().join("examples"), home.join("examples")).expect("a link");
        for program in PROGRAMS {
            std::fs::copy(clients::python_example("train.py"), home.join(program)).expect("a copy");
        }
        // Debian's gpustat is a module and no program.
        let programs = host.folder().join("bin");
        std::fs::create_dir(&programs).expect("a folder");
        let gpustat = programs.join("gpustat");
        let text = format!("#!/bin/sh\nexec {} -m gpustat \"$@\"\n", tools.display());
        std::fs::write(&gpustat, text).expect("written");
        std::fs::set_permissions(&gpustat, PermissionsExt::from_mode(0o755)).expect("a program");
        let folder = |file: &Path| file.parent().expect("a program's folder").to_owned();
        let mut folders: Vec<PathBuf> =
            vec![programs, binaries().to_owned(), folder(&python), folder(&tools)];
        folders.extend(std::env::split_paths(
            &std::env::var_os("PATH").unwrap_or_default(),
        ));
        let path = std::env::join_paths(folders).expect("no folder has a colon");
        Some(Self { host, path })
    }

    /// Runs a block's commands in one shell, which ends at the first that fails.
    ///
    /// # Errors
    /// The block did not end in time: the line of the command that it was at.
    pub fn run(&self, block: &Block) -> Result<Vec<Done>, usize> {
        let folder = self.host.folder();
        let (script, output) = (folder.join("block.sh"), folder.join("output"));
        std::fs::write(&script, script_of(&block.commands)).expect("written");
        let written = std::fs::File::create(&output).expect("a file");
        let mut shell = self
            .host
            .command("bash")
            .arg("--norc")
            .arg(&script)
            .current_dir(folder.join("home"))
            .env("HOME", folder.join("home"))
            .env("XDG_RUNTIME_DIR", folder)
            .env("PATH", &self.path)
            .env("LC_ALL", "C.UTF-8")
            .env("TERM", "dumb")
            // numba warns that small kernels leave a GPU idle.
            .env("PYTHONWARNINGS", "ignore")
            .env_remove("PYTHONPATH")
            .stdin(Stdio::null())
            .stdout(written.try_clone().expect("a descriptor"))
            .stderr(written)
            .spawn()
            .expect("bash starts");
        let start = Instant::now();
        let in_time = loop {
            match shell.try_wait().expect("a child") {
                Some(_) => break true,
                None if start.elapsed() > TIMEOUT => break false,
                None => std::thread::sleep(std::time::Duration::from_millis(10)),
            }
        };
        if !in_time {
            // What it started ends with the home.
            let _ = shell.kill();
            let _ = shell.wait();
        }
        let text = String::from_utf8_lossy(&std::fs::read(&output).expect("the output")).into_owned();
        let done = done(&text, &self.hidden());
        if in_time {
            return Ok(done);
        }
        let at = done.iter().filter(|done| done.status.is_some()).count();
        Err(block.commands[at.min(block.commands.len() - 1)].line)
    }

    /// Paths of this home, and what a reader has in their place.
    fn hidden(&self) -> [(String, &'static str); 3] {
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        [
            (text(self.host.folder().join("home")), "~"),
            (text(self.host.run_directory()), "/run/divvy"),
            (text(binaries().to_owned()), "/usr/lib/divvy"),
        ]
    }
}

/// The block as a script: each command as it is written, and its status behind it.
fn script_of(commands: &[Command]) -> String {
    // What still runs in the background goes with the shell.
    let mut script = "trap 'kill $(jobs -p) 2>/dev/null' EXIT\n".to_owned();
    for command in commands {
        script.push_str(&command.text);
        script.push_str(
            "\n__status=$?; printf '\\036%d\\036' $__status; [ $__status = 0 ] || exit $__status\n",
        );
    }
    script
}

/// What each command did that ran.
fn done(text: &str, hidden: &[(String, &'static str)]) -> Vec<Done> {
    let mut done = Vec::new();
    let mut parts = text.split(MARK);
    while let Some(printed) = parts.next() {
        let status = parts.next().and_then(|status| status.parse().ok());
        // Behind the last status stands nothing, or what a background program said as it was ended.
        if status.is_none() && !done.is_empty() && printed.trim().is_empty() {
            break;
        }
        let mut printed = printed.to_owned();
        for (path, shown) in hidden {
            printed = printed.replace(path, shown);
        }
        let printed = printed.lines().map(|line| line.trim_end().to_owned()).collect();
        done.push(Done { printed, status });
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_told_apart_by_its_command() {
        let hidden = [("/tmp/x/home".to_owned(), "~")];
        let done = done("a\n/tmp/x/home/b\n\u{1e}0\u{1e}no line\u{1e}3\u{1e}", &hidden);
        let first = Done {
            printed: vec!["a".into(), "~/b".into()],
            status: Some(0),
        };
        let second = Done {
            printed: vec!["no line".into()],
            status: Some(3),
        };
        assert_eq!(done, [first, second]);
    }

    #[test]
    fn a_shell_that_ended_has_no_status() {
        let done = done("\u{1e}0\u{1e}syntax error\n", &[]);
        assert_eq!(done[1].status, None);
        assert_eq!(done[1].printed, ["syntax error"]);
    }
}
