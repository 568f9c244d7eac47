//! The node's file, and the node's agent.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use divvy_agent::{Client, RunDir, system_run_dir};
use divvy_jobs::{Node, Refusal, Remedy};
use divvy_model::{Code, Fault, SliceRecord};

/// The largest file that is read.
const LARGEST: u64 = 1 << 20;

/// The node's file: `%n` in its path is the node's name, for hosts with several slurmds.
///
/// # Errors
/// [`Code::Usage`] for a name that would lead elsewhere.
pub fn file_of(path: &Path, node: &str) -> Result<PathBuf, Fault> {
    let text = path.to_string_lossy();
    if !text.contains("%n") {
        return Ok(path.into());
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if node.is_empty() || node.starts_with('.') || !node.bytes().all(is_plain) {
        return Err(Fault::new(Code::Usage, format!("`{node}` is no name of a node")));
    }
    Ok(text.replace("%n", node).into())
}

/// The files of this host's nodes, and the node of each where its path says so. slurmd names its node to prologs; its health
/// check may have to do without.
///
/// # Errors
/// As [`file_of`], and a folder that cannot be read.
pub fn files(path: &Path) -> Result<Vec<(Option<String>, PathBuf)>, Fault> {
    let told = std::env::var("SLURMD_NODENAME")
        .ok()
        .filter(|name| !name.is_empty());
    let text = path.to_string_lossy();
    let Some((before, after)) = text.split_once("%n") else {
        return Ok(vec![(None, path.into())]);
    };
    if let Some(name) = told {
        let file = file_of(path, &name)?;
        return Ok(vec![(Some(name), file)]);
    }
    let (folder, start) = before.rsplit_once('/').unwrap_or((".", before));
    let failed = |error: std::io::Error| {
        Fault::new(Code::Config, format!("cannot read the folder `{folder}/`")).because(&error)
    };
    let mut found = Vec::new();
    let entries = match fs::read_dir(format!("{folder}/")) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let name = name.to_string_lossy();
        let node = name.strip_prefix(start).and_then(|rest| rest.strip_suffix(after));
        if let Some(node) = node.filter(|node| !node.is_empty()) {
            found.push((Some(node.to_owned()), file_of(path, node)?));
        }
    }
    Ok(found)
}

/// Reads the node's file. What root acts on is root's: another user's file is refused.
///
/// # Errors
/// [`Code::Config`].
pub fn read(path: &Path) -> Result<Node, Fault> {
    let shown = path.display();
    let failed = |error: std::io::Error| {
        Fault::new(Code::Config, format!("cannot read the node's file `{shown}`"))
            .because(&error)
            .hint("`divvy slurm setup --apply` writes it")
    };
    let file = File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if meta.uid() != 0 || meta.mode() & 0o022 != 0 || !meta.is_file() {
        return Err(Fault::new(
            Code::Config,
            format!("`{shown}` is not root's file, or others may write it"),
        )
        .hint("chown root FILE; chmod 644 FILE"));
    }
    let mut text = String::new();
    file.take(LARGEST).read_to_string(&mut text).map_err(failed)?;
    Node::read(&text)
}

/// The run directory of the node's agent. No variable of a user's counts here.
pub fn run_dir(node: &Node) -> RunDir {
    let path = node.run_dir.as_ref().map_or_else(system_run_dir, PathBuf::from);
    RunDir::peek(&path)
}

/// The node's agent, and what it answers to a first question. One that is being started again is waited for.
///
/// # Errors
/// A node without an agent, which an administrator has to repair.
pub fn ask<T>(node: &Node, question: impl Fn(&Client) -> Result<T, Fault>) -> Result<(Client, T), Refusal> {
    const LOOK: Duration = Duration::from_millis(50);
    let run = run_dir(node);
    let begin = Instant::now();
    let client = Client::new(run.clone());
    loop {
        let fault = match question(&client) {
            Ok(answer) => return Ok((client, answer)),
            Err(fault) => fault,
        };
        let may_come = matches!(fault.code, Code::AgentUnreachable | Code::Busy | Code::RunDir);
        if !may_come || begin.elapsed() >= Duration::from_secs(node.agent_timeout_s) {
            let path = run.path().display();
            let mut refusal = Refusal::new(Remedy::Repair, format!("no agent of Divvy answers at {path}"));
            refusal.fault = refusal.fault.after(&fault);
            return Err(
                refusal.hint("start it: `systemctl start divvy-agent`; `divvy doctor` says what it lacks")
            );
        }
        std::thread::sleep(LOOK);
    }
}

/// The slices of jobs of this manager.
///
/// # Errors
/// As [`Client::slices`].
pub fn all_slices(client: &Client) -> Result<Vec<SliceRecord>, Fault> {
    let slices = match client.slices_of_jobs() {
        Err(fault) if fault.code == Code::AgentVersion => client.slices(),
        answer => answer,
    };
    let mut slices = slices?.body.items;
    slices.retain(|slice| {
        let job = slice.job.as_ref();
        job.is_some_and(|job| job.manager == super::job::SLURM)
    });
    Ok(slices)
}

/// The same on one node.
///
/// # Errors
/// As [`Client::slices`].
pub fn slices(client: &Client, name: &str) -> Result<Vec<SliceRecord>, Fault> {
    let mut slices = all_slices(client)?;
    slices.retain(|slice| slice.job.as_ref().is_some_and(|job| job.node == name));
    Ok(slices)
}

/// Refuses a process that is not root.
///
/// # Errors
/// [`Code::Privilege`].
pub fn require_root(verb: &str) -> Result<(), Fault> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(
        Fault::new(Code::Privilege, format!("`divvy slurm {verb}` is for root only"))
            .hint("slurmd runs it as root"),
    )
}

/// Whether there is such a file.
pub fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}
