//! A cluster beside an agent for all, as the scenarios of Slurm have it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use divvy_tests::host::{finish, succeeded};
use divvy_tests::slurm::{Cluster, NodeLine, is_installed};
use divvy_tests::slurm_accounts::{self, Programs};
use divvy_tests::system::System;
use divvy_tests::users::User;
use divvy_tests::wait::until;
use divvy_tests::{clients, isolation};
use serde_json::Value;

use super::MIB;

/// A machine with an agent for all, and a cluster that `divvy slurm setup` has set up.
pub(super) struct Site {
    /// First, so that jobs end before their agent.
    pub(super) cluster: Cluster,
    pub(super) system: System,
}

/// A node by its name: no generic resource is in its line before the setup.
fn node(name: &str) -> NodeLine {
    NodeLine {
        name: name.into(),
        gres: String::new(),
    }
}

impl Site {
    /// With these emulated devices; nothing where Slurm is missing and need not be there.
    pub(super) fn new(devices: &str, shards: &str) -> Option<Self> {
        let mut site = Self::prepared(devices, &["n1"])?;
        site.set_up("n1", &["--shards", shards]);
        site.start(&["n1"]);
        Some(site)
    }

    pub(super) fn prepared(devices: &str, nodes: &[&str]) -> Option<Self> {
        Self::with(devices, nodes, &[])
    }

    /// The same, with these variables for the agent.
    pub(super) fn with(devices: &str, nodes: &[&str], settings: &[(&str, &str)]) -> Option<Self> {
        Self::with_lines(devices, nodes, settings, |_| String::new())
    }

    /// The same, with more lines of slurm.conf.
    pub(super) fn with_lines(
        devices: &str,
        nodes: &[&str],
        settings: &[(&str, &str)],
        more: impl Fn(&Path) -> String,
    ) -> Option<Self> {
        // The level is the agent's to choose here.
        if isolation::asked_for().is_some()
            || !clients::require(is_installed(), "Slurm and munge (cargo xtask setup)")
        {
            return None;
        }
        let own = [("DIVVY_EMULATED", devices), ("DIVVY_ADMIT_OTHERS", "false")];
        let system = System::with(&[&own, settings].concat())?;
        let lines: Vec<NodeLine> = nodes.iter().map(|name| node(name)).collect();
        let folder = system.folder().join("slurm");
        let cluster = Cluster::configure(&folder, &lines, &more(&folder));
        Some(Self { cluster, system })
    }

    /// [`Self::prepared`], with an accounting database.
    pub(super) fn prepared_with_accounts(devices: &str, nodes: &[&str], programs: Programs) -> Option<Self> {
        let port = slurm_accounts::free_port();
        let more = |folder: &Path| slurm_accounts::lines(folder, port);
        let mut site = Self::with_lines(devices, nodes, &[], more)?;
        slurm_accounts::start(&mut site.cluster, &programs, port);
        Some(site)
    }

    pub(super) fn node_files(&self) -> PathBuf {
        self.system.folder().join("slurm/%n.toml")
    }

    /// `divvy slurm setup` for a node, with these words behind it.
    pub(super) fn setup(&self, node: &str, words: &[&str]) -> Output {
        let mut command = self.system.command(self.system.program("divvy"));
        command
            .args(["slurm", "setup", "--node", node, "--conf-dir"])
            .arg(self.cluster.conf_dir())
            .arg("--node-file")
            .arg(self.node_files())
            .args(words);
        finish(&mut command)
    }

    pub(super) fn set_up(&self, node: &str, words: &[&str]) {
        let said = self.setup(node, &[words, &["--apply"]].concat());
        let said = succeeded(&said);
        assert!(said.contains("restart slurmctld"), "{said}");
        // What a job used is written down.
        let file = self.node_file(node);
        let text = std::fs::read_to_string(&file).expect("the node's file");
        let accounting = format!("accounting = \"{}\"\n{text}", self.accounting().display());
        std::fs::write(&file, accounting).expect("written");
    }

    pub(super) fn node_file(&self, node: &str) -> PathBuf {
        PathBuf::from(self.node_files().display().to_string().replace("%n", node))
    }

    pub(super) fn accounting(&self) -> PathBuf {
        self.system.folder().join("slurm/jobs.jsonl")
    }

    pub(super) fn start(&mut self, nodes: &[&str]) {
        self.cluster.start(nodes, &[]);
    }

    /// A program of Slurm's as this user, from a folder that the user may enter.
    pub(super) fn command_as(&self, user: &User, program: &str) -> Command {
        let mut command = self.system.command_as(user, program);
        command
            .env_remove("DIVVY_RUN_DIR")
            .env("SLURM_CONF", self.cluster.conf_dir().join("slurm.conf"));
        command
    }

    /// `srun` with these words and a script for a shell.
    pub(super) fn srun(&self, user: &User, words: &[&str], script: &str) -> Command {
        let mut command = self.command_as(user, "srun");
        command.args(words).args(["sh", "-c", script]);
        command
    }

    /// A script that has the probe answer these lines.
    pub(super) fn ask_probe(&self, lines: &[&str]) -> String {
        let lines = lines.join("\\n");
        format!("printf '{lines}\\n' | {}", self.system.program("probe").display())
    }

    /// Submits a script; the job's number.
    pub(super) fn sbatch(&self, user: &User, words: &[&str], script: &str) -> String {
        let mut command = self.command_as(user, "sbatch");
        command.args(["--parsable", "--output", "job-%j.out"]).args(words);
        let said = finish(command.arg(format!("--wrap={script}")));
        succeeded(&said).trim().to_owned()
    }

    /// The slice of a job, as `divvy ps` shows it.
    pub(super) fn slice_of(&self, job: &str) -> Option<Value> {
        let list = self.system.json(["ps"]);
        let mut items = list["items"].as_array().expect("slices").iter();
        items.find(|slice| slice["job"]["id"] == job).cloned()
    }

    /// Waits until programs of so many jobs run, of those that [`SLEEP`] is the script of: Slurm forgets to end a job that it
    /// is just starting, for a while.
    pub(super) fn until_started(&self, user: &User, count: usize) {
        until(&format!("{count} jobs run"), || {
            let files = std::fs::read_dir(&user.home).expect("a folder").flatten();
            let started = files.filter(|file| file.file_name().to_string_lossy().starts_with("started."));
            (started.count() == count).then_some(())
        });
    }

    pub(super) fn job_slices(&self) -> usize {
        let list = self.system.json(["ps"]);
        let items = list["items"].as_array().expect("slices");
        items.iter().filter(|slice| !slice["job"].is_null()).count()
    }

    /// How many jobs of a user have a slice.
    pub(super) fn slices_of(&self, user: &User) -> usize {
        let list = self.system.json(["ps"]);
        let items = list["items"].as_array().expect("slices");
        let is_own = |slice: &&Value| !slice["job"].is_null() && slice["uid"] == user.uid;
        items.iter().filter(is_own).count()
    }

    pub(super) fn until_none_of(&self, user: &User) {
        until(&format!("no job of {} has a slice", user.name), || {
            (self.slices_of(user) == 0).then_some(())
        });
    }

    /// Waits for it, with a slurmd that is started again where it ends by itself, as an administrator or systemd would.
    pub(super) fn until_with_slurmd<T>(&mut self, what: &str, is_so: impl Fn(&Self) -> Option<T>) -> T {
        let site = std::cell::RefCell::new(self);
        until(what, || {
            if let Some(status) = site.borrow_mut().cluster.revive_slurmd("n1") {
                println!("slurmd ended by itself, {status}");
            }
            is_so(&site.borrow())
        })
    }

    pub(super) fn until_no_slice(&self) {
        until("no job has a slice", || (self.job_slices() == 0).then_some(()));
    }

    /// Bytes that programs can have of the device at `index`.
    pub(super) fn usable(&self, index: usize) -> u64 {
        let device = &self.system.json(["devices"])["items"][index];
        let of = |name: &str| device[name].as_u64().unwrap_or_default();
        of("memory_total_bytes") - of("memory_reserved_bytes")
    }

    /// What so many shards of a device are.
    pub(super) fn shards(&self, index: usize, count: u64, all: u64) -> u64 {
        self.usable(index) * count / all / MIB * MIB
    }

    pub(super) fn state_of(&self, job: &str) -> String {
        self.cluster
            .ask("squeue", &["-h", "-t", "all", "-j", job, "-o", "%T"])
            .trim()
            .to_owned()
    }

    pub(super) fn reason(&self, node: &str) -> String {
        self.cluster.ask("scontrol", &["show", "node", node])
    }
}

/// A job that holds device memory until it is ended.
pub(super) fn hold_memory(site: &Site) -> String {
    let probe = site.system.program("probe");
    format!("(echo allocate 1048576; sleep 600) | {}", probe.display())
}

/// The lines that a probe printed.
pub(super) fn answers(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect()
}
