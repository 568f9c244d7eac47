//! A host of a scenario's own: a run directory and an emulated device that no other test uses. When it is
//! dropped, every process that was started under it has ended.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

use crate::build::binaries;
use crate::isolation;
use crate::processes;
use crate::tenant::Tenant;
use crate::wait::until;

const RUN_DIRECTORY: &str = "DIVVY_RUN_DIR";

/// A host with emulated devices and, once something runs, an agent.
pub struct Host {
    folder: Folder,
    /// What programs are told of emulated devices; nothing where only the agent knows.
    devices: Option<String>,
}

/// Where a host's files lie.
enum Folder {
    /// In a folder that only this user may enter, removed with the host.
    Own(TempDir),
    /// In a folder that others may reach; its maker removes it.
    Given(PathBuf),
}

/// A slice as `divvy ps -o json` promises to show it.
#[derive(Debug, Clone, Deserialize)]
pub struct Slice {
    /// Its name.
    pub name: String,
    /// The device it is a share of.
    pub device_uuid: String,
    /// Its share, in bytes.
    pub memory_limit_bytes: u64,
    /// What its processes hold, in bytes.
    pub memory_used_bytes: u64,
    /// Its processes that use the device.
    pub processes: Vec<Process>,
}

/// A process of a slice.
#[derive(Debug, Clone, Deserialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
}

impl Host {
    /// A host with one emulated H100.
    pub fn new() -> Self {
        Self::with_devices("h100")
    }

    /// A host with the emulated devices of `specification`, a value of DIVVY_EMULATED.
    pub fn with_devices(specification: &str) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("divvy-")
            .tempdir()
            .expect("a temporary folder");
        if isolation::asked_for().is_some() {
            // Workers of another user reach sockets in it.
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(folder.path(), mode).expect("a folder");
        }
        Self {
            folder: Folder::Own(folder),
            devices: Some(specification.into()),
        }
    }

    /// A host that has what this machine has: where that is no GPU, what Divvy does then.
    pub fn without_devices() -> Self {
        let mut host = Self::new();
        host.devices = None;
        host
    }

    /// A host whose files lie in `folder`, and whose programs are told of no device: its agent alone knows them.
    pub(crate) fn in_folder(folder: &Path) -> Self {
        Self {
            folder: Folder::Given(folder.into()),
            devices: None,
        }
    }

    /// The run directory of this host's agent.
    pub fn run_directory(&self) -> PathBuf {
        self.folder().join("run")
    }

    /// A folder for the scenario's own files.
    pub fn folder(&self) -> &Path {
        match &self.folder {
            Folder::Own(folder) => folder.path(),
            Folder::Given(folder) => folder,
        }
    }

    /// A command that runs `program` on this host, as a user's shell would.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"DIVVY_"))
        {
            command.env_remove(name);
        }
        command
            .env_remove("LD_PRELOAD")
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env(RUN_DIRECTORY, self.run_directory())
            .stdin(Stdio::null());
        if let Some(devices) = &self.devices {
            command.env("DIVVY_EMULATED", devices);
        }
        command
    }

    /// `divvy` with these arguments. What makes a slice and names no isolation level has that of [`isolation`].
    pub fn divvy<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = self.command(binaries().join("divvy"));
        command.args(isolation::among(arguments));
        command
    }

    /// `divvy run --memory MEMORY -- PROGRAM`, to which the caller may add the program's arguments.
    pub fn run(&self, memory: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.divvy(["run", "--memory", memory, "--"]);
        command.arg(program);
        command
    }

    /// A probe in a slice called `name`, waited for until it has its device open.
    pub fn probe(&self, name: &str, memory: &str) -> Tenant {
        let mut command = self.divvy(["run", "--name", name, "--memory", memory, "--"]);
        command.arg(crate::clients::probe());
        Tenant::start(command)
    }

    /// What `divvy` with these arguments prints as JSON; it must succeed.
    pub fn json<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Value {
        let output = finish(self.divvy(arguments).args(["-o", "json"]));
        let text = succeeded(&output);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in: {text}"))
    }

    /// The slices that `divvy ps` shows.
    pub fn slices(&self) -> Vec<Slice> {
        let list = self.json(["ps"]);
        assert_eq!(list["kind"], "SliceList");
        serde_json::from_value(list["items"].clone()).expect("slices as the JSON promises them")
    }

    /// The slice called `name`.
    pub fn slice(&self, name: &str) -> Slice {
        self.slices()
            .into_iter()
            .find(|slice| slice.name == name)
            .unwrap_or_else(|| panic!("no slice is called {name}"))
    }

    /// Waits until `divvy ps` shows that the slice called `name` uses `bytes`.
    pub fn until_used(&self, name: &str, bytes: u64) {
        let mut last = None;
        until(&format!("slice {name} uses {bytes} bytes"), || {
            last = self
                .slices()
                .into_iter()
                .find(|slice| slice.name == name)
                .map(|slice| slice.memory_used_bytes);
            (last == Some(bytes)).then_some(())
        });
    }

    /// What the agent's socket answers to a question for `path`; it must succeed.
    pub fn get(&self, path: &str) -> String {
        let socket = self.run_directory().join("agent.sock");
        let mut agent = UnixStream::connect(socket).expect("an agent listens");
        write!(
            agent,
            "GET {path} HTTP/1.1\r\nHost: divvy\r\nConnection: close\r\n\r\n"
        )
        .expect("it reads");
        let mut answer = String::new();
        agent.read_to_string(&mut answer).expect("an answer of text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        body.to_owned()
    }

    /// Process ids of this host's agents: one, once something has run.
    pub fn agents(&self) -> Vec<u32> {
        let mut agents = processes::with_environment(RUN_DIRECTORY, &self.run_directory());
        agents.retain(|&pid| {
            processes::arguments(pid)
                .get(1)
                .is_some_and(|word| word == "agent")
        });
        agents
    }

    /// Kills the agent as the kernel's out-of-memory killer would, and waits until it is gone.
    pub fn kill_agent(&self) {
        let agents = self.agents();
        assert_eq!(agents.len(), 1, "one agent serves a host");
        processes::signal(agents[0], Signal::KILL);
        until("the agent is gone", || {
            (!processes::is_alive(agents[0])).then_some(())
        });
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let run = self.run_directory();
        // A process may be starting another while we look: look until there is none.
        for _ in 0..100 {
            let ours = processes::with_environment(RUN_DIRECTORY, &run);
            if ours.is_empty() {
                return;
            }
            for pid in ours {
                processes::signal(pid, Signal::KILL);
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Runs `command` to its end and keeps what it printed.
pub fn finish(command: &mut Command) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
        .output()
        .unwrap_or_else(|error| panic!("{command:?} does not start: {error}"))
}

/// What a command printed that must have succeeded.
pub fn succeeded(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}\nstdout: {}\nstderr: {}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        stderr(output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a command printed on standard error. Scenarios run as root, and the level `enforced` says that it does not keep
/// the host's root out: that line is left out.
pub fn stderr(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let of_root = |line: &&str| isolation::asked_for().is_some() && line.contains("which it cannot keep out");
    text.split_inclusive('\n').filter(|line| !of_root(line)).collect()
}
