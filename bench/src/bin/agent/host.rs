//! An agent of root's that admits others, with slices that must outlive every flood.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use divvy_bench::artifacts;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::flood::{Flood, exchange, message};

/// The user that the agent becomes: one that every machine has.
const AGENT: &str = "daemon";
/// The user that floods, and the one that looks meanwhile.
const FLOODER: u32 = 65534;
pub const LOOKER: u32 = 65533;

/// See the module.
pub struct Host {
    folder: tempfile::TempDir,
    agent: Child,
    /// What one of the slices goes with.
    anchor: Child,
    slices: Vec<String>,
}

/// Times in milliseconds, and how many looks were refused.
pub struct Looks(Vec<f64>, usize);

/// A flood that runs.
pub struct Running(Vec<Child>);

impl Host {
    /// Starts the agent and makes the slices.
    pub fn start() -> anyhow::Result<Self> {
        // For the flooder, which inherits it.
        let descriptors = Rlimit {
            current: Some(20_000),
            maximum: Some(20_000),
        };
        setrlimit(Resource::Nofile, descriptors).context("20,000 descriptors cannot be had")?;
        let programs = artifacts::build(&artifacts::PRODUCT)?;
        // Every folder above a run directory of several users is root's.
        let folder = tempfile::Builder::new().prefix("divvy-").tempdir_in("/run")?;
        // The other users start the command here.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let bin = folder.path().join("bin");
        fs::create_dir(&bin)?;
        for entry in fs::read_dir(&programs)? {
            let path = entry?.path();
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            if name == "divvy" || name.ends_with(".so") {
                fs::copy(&path, bin.join(name))?;
            }
        }
        fs::copy(std::env::current_exe()?, bin.join("flood"))?;
        fs::create_dir_all(folder.path().join("config/divvy"))?;
        fs::write(
            folder.path().join("config/divvy/config.toml"),
            format!("admit_others = true\nagent_user = \"{AGENT}\"\n"),
        )?;
        let mut serve = divvy(folder.path(), &["agent", "serve"]);
        let agent = serve
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.path().join("log"))?);
        let agent = agent.spawn()?;
        let anchor = Command::new("sleep").arg("3600").spawn()?;
        let mut host = Self {
            folder,
            agent,
            anchor,
            slices: Vec::new(),
        };
        let begin = Instant::now();
        while exchange(&host.socket(), &message("GET", "/v1/status", "")).is_none() {
            if begin.elapsed() > Duration::from_secs(30) {
                bail!(
                    "The agent does not answer: {}",
                    fs::read_to_string(host.folder.path().join("log"))?
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        for name in ["steady", "attended"] {
            host.create(name)?;
        }
        let goes_with = format!(r#"{{"process":{}}}"#, host.anchor.id());
        let attend = message("POST", "/v1/slices/attended/attend", &goes_with);
        match exchange(&host.socket(), &attend) {
            Some((200, _)) => Ok(host),
            other => bail!("A slice cannot go with a process: {other:?}"),
        }
    }

    fn create(&mut self, name: &str) -> anyhow::Result<()> {
        let made = divvy(self.folder.path(), &["slice", "create", name, "--memory", "1GiB"]).output()?;
        if !made.status.success() {
            bail!("No slice was made: {}", String::from_utf8_lossy(&made.stderr));
        }
        self.slices.push(name.into());
        Ok(())
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("run/agent.sock")
    }

    /// How long `divvy ps` takes user `uid`, again and again for so long.
    pub fn looks(&self, duration: Duration, uid: u32) -> anyhow::Result<Looks> {
        let (mut times, mut refused) = (Vec::new(), 0);
        let begin = Instant::now();
        while begin.elapsed() < duration {
            let mut look = divvy(self.folder.path(), &["ps"]);
            let at = Instant::now();
            let seen = look.uid(uid).gid(uid).output()?;
            times.push(at.elapsed().as_secs_f64() * 1e3);
            refused += usize::from(!seen.status.success());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Looks(times, refused))
    }

    /// Starts a flood.
    pub fn flood(&self, flood: Flood, seconds: u64) -> anyhow::Result<Running> {
        let socket = self.socket();
        let start = || -> anyhow::Result<Child> {
            let mut command = Command::new(self.folder.path().join("bin/flood"));
            command.args([
                "--flood",
                flood.name(),
                "--seconds",
                &seconds.to_string(),
                "--socket",
            ]);
            command
                .arg(&socket)
                .uid(FLOODER)
                .gid(FLOODER)
                .stdin(Stdio::null())
                .stdout(Stdio::piped());
            Ok(command.spawn()?)
        };
        let processes = (0..flood.processes()).map(|_| start());
        Ok(Running(processes.collect::<anyhow::Result<_>>()?))
    }

    /// Resets the agent's peak of memory.
    pub fn forget_peak(&self) -> anyhow::Result<()> {
        Ok(fs::write(format!("/proc/{}/clear_refs", self.agent.id()), "5")?)
    }

    /// The agent's memory at its peak.
    pub fn peak_mib(&self) -> anyhow::Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.agent.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        Ok(kib.context("The agent has ended")? / 1024.0)
    }

    /// How many descriptors the agent has open.
    pub fn descriptors(&self) -> anyhow::Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.agent.id()))?.count())
    }

    /// How many of the slices are not there any more.
    pub fn lost(&self) -> anyhow::Result<usize> {
        let listed = divvy(self.folder.path(), &["ps", "--quiet"]).output()?;
        if !listed.status.success() {
            bail!("`divvy ps` failed: {}", String::from_utf8_lossy(&listed.stderr));
        }
        let names = String::from_utf8(listed.stdout)?;
        let is_gone = |name: &&String| names.lines().all(|line| line != name.as_str());
        Ok(self.slices.iter().filter(is_gone).count())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for name in &self.slices {
            let _deleted = divvy(self.folder.path(), &["slice", "delete", name, "--yes"]).output();
        }
        for child in [&mut self.agent, &mut self.anchor] {
            let _ended = child.kill();
            let _reaped = child.wait();
        }
    }
}

impl Looks {
    /// The time that such a part of the looks did not take longer than.
    pub fn part(&mut self, part: f64) -> f64 {
        self.0.sort_by(f64::total_cmp);
        let last = self.0.len().saturating_sub(1);
        self.0
            .get((last as f64 * part).round() as usize)
            .copied()
            .unwrap_or(0.0)
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// How many the agent did not answer.
    pub fn refused(&self) -> usize {
        self.1
    }
}

impl Running {
    /// Waits for the flood's end; what its first process says became of it.
    pub fn end(self) -> anyhow::Result<String> {
        let mut said = Vec::new();
        for child in self.0 {
            said.push(child.wait_with_output()?);
        }
        let first = said.first().context("Nothing ran")?;
        if !first.status.success() {
            bail!("The flood failed");
        }
        Ok(String::from_utf8_lossy(&first.stdout).trim().to_owned())
    }
}

/// The command, with nothing of the caller's environment.
fn divvy(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(folder.join("bin/divvy"));
    command
        .args(words)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/")
        .env("DIVVY_RUN_DIR", folder.join("run"))
        .env("DIVVY_SYSTEM_RUN_DIR", folder.join("run"))
        .env("DIVVY_EMULATED", "h100")
        .env("XDG_CONFIG_HOME", folder.join("config"))
        .current_dir(folder)
        .stdin(Stdio::null());
    command
}
