//! A cluster of one node, with or without Divvy.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use divvy_bench::statistics::median;

use crate::slurm::{Cluster, NodeLine};

/// The user that the agent becomes, and the jobs' user: ones that every machine has.
const AGENT: &str = "daemon";
const USER: &str = "bin";
/// Shards of the device.
const SHARDS: u32 = 80;
const NODE: &str = "n1";

/// See the module.
pub struct Site {
    /// First, so that its daemons end before their agent.
    cluster: Cluster,
    user: (u32, u32),
    agent: Option<Child>,
    folder: tempfile::TempDir,
}

impl Site {
    /// A node whose shards are counted and nothing else.
    pub fn without() -> anyhow::Result<Self> {
        Self::plain(folder()?, "")
    }

    /// The same whose jobs have a prolog, a task prolog and an epilog that do nothing, under these PrologFlags: what Slurm itself
    /// takes for having them.
    pub fn with_empty_prolog(flags: &str) -> anyhow::Result<Self> {
        let folder = folder()?;
        let script = folder.path().join("nothing");
        fs::write(&script, "#!/bin/sh\nexit 0\n")?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        let programs = ["Prolog", "TaskProlog", "Epilog"];
        let lines = programs.map(|key| format!("{key}={}\n", script.display()));
        Self::plain(folder, &format!("PrologFlags={flags}\n{}", lines.concat()))
    }

    fn plain(folder: tempfile::TempDir, more: &str) -> anyhow::Result<Self> {
        let gres = format!("gpu:1,shard:{SHARDS}");
        let mut cluster = configure(folder.path(), &gres, &format!("GresTypes=gpu,shard\n{more}"));
        let lines =
            format!("AutoDetect=off\nName=gpu File=/dev/zero\nName=shard Count={SHARDS} File=/dev/zero\n");
        fs::write(cluster.conf_dir().join("gres.conf"), lines)?;
        cluster.start(&[NODE], &[]);
        Ok(Self {
            cluster,
            user: user()?,
            agent: None,
            folder,
        })
    }

    /// The same with an agent, set up by `divvy slurm setup`. Each program's time is kept where `is_timed`.
    pub fn with(built: &Path, is_timed: bool) -> anyhow::Result<Self> {
        let folder = folder()?;
        let bin = folder.path().join("bin");
        fs::create_dir(&bin)?;
        for entry in fs::read_dir(built)? {
            let path = entry?.path();
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            if name == "divvy" || name.ends_with(".so") {
                fs::copy(&path, bin.join(name))?;
            }
        }
        let log = fs::File::create(folder.path().join("agent.log"))?;
        let mut serve = divvy(folder.path(), &["agent", "serve"]);
        serve
            .env("DIVVY_AGENT_USER", AGENT)
            // `divvy slurm setup` is not told so: it is to name this agent's run directory.
            .env("DIVVY_SYSTEM_RUN_DIR", folder.path().join("agent"))
            .env("DIVVY_ADMIT_OTHERS", "false");
        let agent = serve.stdout(log.try_clone()?).stderr(log).spawn()?;
        let mut site = Self {
            cluster: configure(folder.path(), "", ""),
            user: user()?,
            agent: Some(agent),
            folder,
        };
        let begin = Instant::now();
        while !divvy(site.folder.path(), &["agent", "status"])
            .output()?
            .status
            .success()
        {
            if begin.elapsed() > Duration::from_secs(30) {
                bail!(
                    "The agent does not answer: {}",
                    fs::read_to_string(site.folder.path().join("agent.log"))?
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut setup = divvy(site.folder.path(), &["slurm", "setup", "--apply", "--node", NODE]);
        setup.args(["--shards", &SHARDS.to_string(), "--conf-dir"]);
        setup.arg(site.cluster.conf_dir()).arg("--node-file");
        let said = setup.arg(site.folder.path().join("node.toml")).output()?;
        ensure!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        if is_timed {
            site.time_programs()?;
        }
        site.cluster.start(&[NODE], &[]);
        Ok(site)
    }

    /// Puts a clock around the programs that slurmd runs.
    fn time_programs(&self) -> anyhow::Result<()> {
        let times = self.folder.path().join("times");
        fs::create_dir(&times)?;
        // A task's program runs as the job's user.
        fs::set_permissions(&times, fs::Permissions::from_mode(0o1777))?;
        for name in ["prolog", "task-prolog", "epilog"] {
            let path = self.cluster.conf_dir().join("divvy").join(name);
            let text = fs::read_to_string(&path)?;
            // slurmd gives these programs no PATH.
            let timed = text.replace("exec ", "PATH=/usr/bin:/bin\na=$(date +%s%N)\n");
            let file = times.join(format!("{name}.$$"));
            let after = format!(
                "status=$?\necho $(( $(date +%s%N) - a )) > {}\nexit $status\n",
                file.display()
            );
            fs::write(&path, format!("{timed}{after}"))?;
        }
        Ok(())
    }

    /// What the programs took, in words.
    pub fn programs(&self) -> anyhow::Result<String> {
        let mut shown = String::new();
        for name in ["prolog", "task-prolog", "epilog"] {
            let mut times = Vec::new();
            for entry in fs::read_dir(self.folder.path().join("times"))? {
                let path = entry?.path();
                let is_it = path.file_stem().is_some_and(|stem| stem == name);
                if let (true, Ok(ns)) = (is_it, fs::read_to_string(&path)?.trim().parse::<f64>()) {
                    times.push(ns / 1e6);
                }
            }
            let (count, fastest) = (times.len(), times.iter().copied().fold(f64::MAX, f64::min));
            shown.push_str(&format!(
                "{name:<12} {count:>4} runs, {fastest:>7.1} ms at least, {:>7.1} median\n",
                median(&mut times)
            ));
        }
        Ok(shown)
    }

    /// Starts so many jobs at once; milliseconds until each one's program ran. Waits until all of them have left the node.
    pub fn starts(&self, count: usize) -> anyhow::Result<Vec<f64>> {
        let begin = now_ns()?;
        let jobs = (0..count).map(|_| {
            let mut srun = self.cluster.command("srun");
            srun.args(["--gres=shard:1", "date", "+%s%N"])
                .current_dir("/")
                // A task has its home from here, and reads its user's settings there.
                .env("HOME", "/")
                .uid(self.user.0)
                .gid(self.user.1)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .context("Cannot start srun")
        });
        let jobs = jobs.collect::<anyhow::Result<Vec<Child>>>()?;
        let mut starts = Vec::new();
        for job in jobs {
            let said = job.wait_with_output()?;
            let text = String::from_utf8_lossy(&said.stdout);
            let at: u128 = text.trim().parse().with_context(|| {
                format!("{}{}", String::from_utf8_lossy(&said.stderr), self.cluster.logs())
            })?;
            starts.push(at.saturating_sub(begin) as f64 / 1e6);
        }
        self.cluster.until("all jobs have left", |cluster| {
            cluster.ask("squeue", &["--noheader"]).is_empty()
        });
        Ok(starts)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(agent) = &mut self.agent {
            let _stopped = divvy(self.folder.path(), &["agent", "stop"]).output();
            let _ended = agent.kill();
            let _reaped = agent.wait();
        }
    }
}

/// Every folder above a run directory of several users is root's, and they may enter it.
fn folder() -> anyhow::Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new().prefix("divvy-").tempdir_in("/run")?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    Ok(folder)
}

fn configure(folder: &Path, gres: &str, more: &str) -> Cluster {
    let node = NodeLine {
        name: NODE.into(),
        gres: gres.into(),
    };
    Cluster::configure(&folder.join("slurm"), &[node], more)
}

/// The numbers of the jobs' user and its group.
fn user() -> anyhow::Result<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd")?;
    let found = users.lines().find_map(|line| {
        let mut words = line.split(':');
        let is_it = words.next()? == USER;
        let (uid, gid) = (words.nth(1)?.parse().ok()?, words.next()?.parse().ok()?);
        is_it.then_some((uid, gid))
    });
    found.with_context(|| format!("This machine has no user {USER}"))
}

fn now_ns() -> anyhow::Result<u128> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())
}

/// The command, with nothing of the caller's environment.
fn divvy(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(folder.join("bin/divvy"));
    command
        .args(words)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/root")
        .env("DIVVY_RUN_DIR", folder.join("agent"))
        .env("DIVVY_EMULATED", "h100")
        .current_dir("/")
        .stdin(Stdio::null());
    command
}
