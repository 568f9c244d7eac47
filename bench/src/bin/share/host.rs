//! A host of the bench's own: a run directory that no other process uses, one emulated device under the timing model,
//! and tenants on it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::engine::Engine;
use crate::tenant::{Said, Work};

/// How tenants share the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Divvy's leases, with these arguments of `divvy run` beside the share.
    Leases(&'static [&'static str]),
    /// `divvy run --share timeslice`: the hardware's own turns, as long as its driver can make them.
    TimeSlicing,
    /// No limiter in any program: what the device does by itself. A figure that this reaches shows nothing.
    Off,
}

impl Way {
    /// Its name in a report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Leases(["--cap", "hard"]) => "leases, hard",
            Self::Leases(_) => "leases, soft",
            Self::TimeSlicing => "time-slicing",
            Self::Off => "limiter off",
        }
    }

    /// Whether it has hard caps.
    pub fn is_hard(self) -> bool {
        self == Self::Leases(&["--cap", "hard"])
    }

    /// Whether it is what this project promises.
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Leases(_))
    }
}

/// A host with one emulated device.
pub struct Host {
    folder: tempfile::TempDir,
    programs: PathBuf,
    device: String,
}

impl Host {
    /// A host whose programs lie in `programs`.
    pub fn new(programs: PathBuf, device: &str) -> anyhow::Result<Self> {
        Ok(Self {
            folder: tempfile::Builder::new().prefix("divvy-").tempdir()?,
            programs,
            device: device.to_owned(),
        })
    }

    /// The run directory.
    pub fn run_directory(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// Its device's engine.
    pub fn engine(&self) -> anyhow::Result<Engine> {
        Engine::open(&self.run_directory(), &self.device)
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"DIVVY_") {
                command.env_remove(name);
            }
        }
        command
            .env_remove("LD_PRELOAD")
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env("DIVVY_RUN_DIR", self.run_directory())
            .env("DIVVY_EMULATED", &self.device);
        command
    }

    /// `divvy` with these arguments, which must succeed; answers what it printed.
    pub fn divvy(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self
            .command(self.programs.join("divvy"))
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            bail!("divvy {} ended with {}", arguments.join(" "), output.status);
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Starts a tenant called `name`; it waits, its context made, until it is told to go.
    pub fn start(&self, way: Way, name: &str, share: f64, work: &Work) -> anyhow::Result<Tenant> {
        let tenant = std::env::current_exe()?;
        let mut command = match way {
            Way::Leases(more) => {
                let mut command = self.command(self.programs.join("divvy"));
                command.args(["run", "--name", name, "--memory", "256MiB"]);
                if share > 0.0 {
                    command.args(["--compute", &format!("{share}%")]);
                }
                command.args(more).arg("--").arg(tenant);
                command
            }
            Way::TimeSlicing => {
                let mut command = self.command(self.programs.join("divvy"));
                command.args(["run", "--name", name, "--memory", "256MiB"]);
                command.args(["--share", "timeslice", "--replicas", "16", "--time-slice", "long"]);
                command.arg("--").arg(tenant);
                command
            }
            Way::Off => {
                let mut command = self.command(tenant);
                command.env("LD_PRELOAD", self.programs.join("libdivvy_emulated_cuda.so"));
                command
            }
        };
        let mut child = command
            .arg("--tenant")
            .arg(serde_json::to_string(work)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("Cannot start a tenant")?;
        let input = child.stdin.take().context("A pipe was asked for")?;
        let mut output = BufReader::new(child.stdout.take().context("A pipe was asked for")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let Some(pid) = line.strip_prefix("running ") else {
            bail!("Tenant {name} says {line:?}");
        };
        Ok(Tenant {
            pid: pid.trim().parse()?,
            child,
            input: Some(input),
            output,
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // A host that never had an agent has none to stop.
        let _stopped = self
            .command(self.programs.join("divvy"))
            .args(["agent", "stop"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

/// A running tenant.
pub struct Tenant {
    /// The program's own process.
    pub pid: u32,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Tenant {
    /// Lets it begin.
    pub fn go(&mut self) -> anyhow::Result<()> {
        let input = self.input.as_mut().context("It was told to stop")?;
        input.write_all(b"go\n")?;
        Ok(input.flush()?)
    }

    /// Has it launch a kernel that outlasts this bench; returns when the launch has returned.
    pub fn launch_what_does_not_end(&mut self) -> anyhow::Result<()> {
        let input = self.input.as_mut().context("It was told to stop")?;
        input.write_all(b"stuck\n")?;
        input.flush()?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        anyhow::ensure!(line == "stuck\n", "A tenant says {line:?}");
        Ok(())
    }

    /// Tells it to stop.
    pub fn stop(&mut self) {
        self.input = None;
    }

    /// Waits for its end, and what it says of itself.
    pub fn end(mut self) -> anyhow::Result<Said> {
        self.stop();
        let mut said = String::new();
        self.output.read_to_string(&mut said)?;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("A tenant ended with {status}");
        }
        serde_json::from_str(said.trim()).with_context(|| format!("A tenant says {said:?}"))
    }

    /// Sends a signal to the program itself.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.pid)
            .ok()
            .and_then(Pid::from_raw)
            .context("A process id")?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        self.input = None;
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _killed = self.child.kill();
            let _reaped = self.child.wait();
        }
    }
}
