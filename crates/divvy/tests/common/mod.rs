//! A host of a test's own: a run directory that no other test uses. When it is dropped, everything started under it
//! ends.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;

pub mod schema;

/// The command under test, with its drop-ins beside it: `cargo test` builds this package only.
pub fn divvy() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let divvy = PathBuf::from(env!("CARGO_BIN_EXE_divvy"));
        // `cargo xtask test` has built everything already.
        if std::env::var_os("DIVVY_TEST_BUILT").is_some() {
            return divvy;
        }
        let profile = match divvy
            .parent()
            .and_then(Path::file_name)
            .and_then(|name| name.to_str())
        {
            None | Some("debug") => "dev",
            Some(name) => name,
        };
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--profile", profile])
            .args(
                [
                    "cudart-12",
                    "cudart-13",
                    "limit-cuda",
                    "limit-nvml",
                    "limit-opencl",
                    "emulated-cuda",
                    "emulated-nvml",
                ]
                .map(|name| format!("--package={name}")),
            )
            .output()
            .expect("cargo starts");
        assert!(built.status.success(), "the drop-ins do not build: {built:?}");
        divvy
    })
}

/// See the module.
pub struct Host {
    folder: tempfile::TempDir,
}

impl Host {
    pub fn new() -> Self {
        divvy();
        let folder = tempfile::Builder::new()
            .prefix("dv-")
            .tempdir()
            .expect("a folder");
        Self { folder }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn run_dir(&self) -> PathBuf {
        self.folder().join("run")
    }

    /// `divvy` with these words, in an environment that has nothing of the tester's own.
    pub fn divvy(&self, words: &[&str]) -> Command {
        let mut command = Command::new(divvy());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("DIVVY_") || name.starts_with("CUDA_") || name == "LD_PRELOAD" {
                command.env_remove(name);
            }
        }
        command
            .args(words)
            .env("DIVVY_RUN_DIR", self.run_dir())
            .env("DIVVY_EMULATED", "h100")
            .env("XDG_CONFIG_HOME", self.folder().join("config"))
            .current_dir(self.folder())
            .stdin(Stdio::null());
        command
    }

    /// Runs `divvy` with these words to its end.
    pub fn finish(&self, words: &[&str]) -> Output {
        self.divvy(words).output().expect("divvy starts")
    }

    /// What `divvy` with these words prints; it must succeed.
    pub fn text(&self, words: &[&str]) -> String {
        let output = self.finish(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// The same as JSON.
    pub fn json(&self, words: &[&str]) -> Value {
        // In front: what stands behind `--` is the program's.
        let text = self.text(&[&["-o", "json"], words].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// A refusal: its exit status and what it says.
    pub fn refused(&self, words: &[&str]) -> (i32, String) {
        let output = self.finish(words);
        assert!(!output.status.success(), "{words:?}: {output:?}");
        // What stands for an answer in a shell is in the place of nothing.
        let stands_in: &[&[u8]] = &[b"", b"false\n", b"divvy.dev/slice=refused\n"];
        assert!(stands_in.contains(&&*output.stdout), "{words:?}: {output:?}");
        let said = String::from_utf8(output.stderr).expect("text");
        (output.status.code().expect("an exit status"), said)
    }

    /// A program that does nothing in a slice of this name, once the slice is there.
    pub fn idle(&self, name: &str, memory: &str) -> Tenant {
        let child = self
            .divvy(&["run", "--name", name, "--memory", memory, "--", "sleep", "600"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("divvy starts");
        let tenant = Tenant { child };
        until("the slice runs", || {
            let slices = self.slices();
            slices
                .iter()
                .any(|slice| slice["name"] == name && slice["state"] == "running")
        });
        tenant
    }

    pub fn slices(&self) -> Vec<Value> {
        self.json(&["ps"])["items"].as_array().expect("items").clone()
    }

    pub fn slice(&self, name: &str) -> Value {
        let slices = self.slices();
        let found = slices.iter().find(|slice| slice["name"] == name);
        found
            .unwrap_or_else(|| panic!("no slice {name} in {slices:?}"))
            .clone()
    }

    pub fn agent(&self) -> u32 {
        let status = self.json(&["agent", "status"]);
        u32::try_from(status["pid"].as_u64().expect("a process id")).expect("small")
    }

    /// Ends the agent as the out-of-memory killer would.
    pub fn kill_agent(&self) {
        let agent = self.agent();
        kill(agent, "KILL");
        until("the agent is gone", || !is_alive(agent));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let ours = format!("DIVVY_RUN_DIR={}", self.run_dir().display());
        for _ in 0..100 {
            let mut left = false;
            for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
                let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                    continue;
                };
                let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
                if environment
                    .split(|byte| *byte == 0)
                    .any(|variable| variable == ours.as_bytes())
                {
                    kill(pid, "KILL");
                    left = true;
                }
            }
            if !left {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A `divvy run` that ends with the test.
pub struct Tenant {
    pub child: Child,
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Waits until `done`; a hang becomes a failure after a time that no honest run takes.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "not within a minute: {what}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn kill(pid: u32, signal: &str) {
    use rustix::process::{Pid, Signal, kill_process};
    // Not by the `kill` program: a bare machine has none.
    let signal = match signal {
        "KILL" => Signal::KILL,
        "TERM" => Signal::TERM,
        "HUP" => Signal::HUP,
        "INT" => Signal::INT,
        "QUIT" => Signal::QUIT,
        "USR1" => Signal::USR1,
        "USR2" => Signal::USR2,
        "STOP" => Signal::STOP,
        "CONT" => Signal::CONT,
        other => panic!("no test needs the signal {other} yet"),
    };
    let pid = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .expect("a process id");
    let _gone = kill_process(pid, signal);
}

/// Whether a process lives; a zombie does not.
pub fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !matches!(
            stat.rsplit(')')
                .next()
                .and_then(|rest| rest.trim().chars().next()),
            Some('Z' | 'X')
        )
    })
}
