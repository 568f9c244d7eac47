//! `divvy slurm epilog`: the end of a job's slice and of what is left in it, and the account of what it used.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use divvy_agent::api::Kill;
use divvy_agent::{Client, clock};
use divvy_jobs::{Node, Remedy};
use divvy_model::{Bytes, Code, Fault, SliceRecord, SliceState};
use serde::Serialize;

use super::job::Job;
use super::{controller, node, steps};
use crate::report::remark;

/// KILL, as its number.
const SIGKILL: i32 = 9;

/// A line of the accounting file.
#[derive(Debug, Serialize)]
struct Used<'a> {
    /// The job.
    job_id: &'a str,
    /// Its user.
    uid: u32,
    /// Its node.
    node: &'a str,
    /// How often it had been requeued.
    restarts: u32,
    /// When its slice was made, RFC 3339, UTC.
    started_at: &'a str,
    /// When it ended.
    ended_at: String,
    /// What it had of its devices' time.
    device_seconds: f64,
    /// Each device.
    devices: Vec<OfDevice<'a>>,
}

/// What a job used of a device.
#[derive(Debug, Serialize)]
struct OfDevice<'a> {
    uuid: &'a str,
    memory_limit_bytes: Bytes,
    memory_peak_bytes: Bytes,
    refused_allocations: u64,
}

/// Ends the job's slice.
///
/// # Errors
/// What an administrator has to repair: Slurm drains the node.
pub fn run(node_file: &Path) -> Result<u8, Fault> {
    node::require_root("epilog")?;
    let job = Job::of_environment()?;
    let node_file = &node::file_of(node_file, &job.node)?;
    if !node::is_there(node_file) && !job.has_devices {
        return Ok(0);
    }
    let node = node::read(node_file)?;
    let (agent, slices) = match node::ask(&node, |agent| node::slices(agent, &job.node)) {
        Ok(answer) => answer,
        // A node whose agent is gone keeps jobs without devices.
        Err(_) if !job.has_devices => return Ok(0),
        Err(refusal) => {
            if refusal.remedy == Remedy::Repair {
                controller::drain(&job.node, &refusal.fault);
            }
            return Err(refusal.fault);
        }
    };
    let (own, others): (Vec<SliceRecord>, Vec<SliceRecord>) =
        slices.into_iter().partition(|slice| job.owns(slice));
    for slice in &own {
        end(&agent, &node, slice)?;
    }
    sweep(&agent, &node, &job.node, &others);
    Ok(0)
}

/// Ends the slices of all jobs that left this node. slurmd runs it when it starts and every `HealthCheckInterval`, because a
/// slurmd that was killed has run no epilog, and Slurm's controller asks for it again only after a minute or two.
///
/// # Errors
/// [`Code::Privilege`], an agent that does not answer, and slices of jobs on a node whose file is not there.
pub fn sweep_all(node_file: &Path) -> Result<u8, Fault> {
    node::require_root("sweep")?;
    let files = node::files(node_file)?;
    if files.iter().all(|(_, path)| !node::is_there(path)) {
        return sweep_without(node_file);
    }
    for (name, path) in files {
        let file = node::read(&path)?;
        let (agent, mut slices) = node::ask(&file, node::all_slices).map_err(|refusal| refusal.fault)?;
        if let Some(name) = &name {
            slices.retain(|slice| slice.job.as_ref().is_some_and(|job| job.node == *name));
        }
        let mut names: Vec<String> = slices
            .iter()
            .filter_map(|slice| Some(slice.job.as_ref()?.node.clone()))
            .collect();
        names.sort();
        names.dedup();
        for name in &names {
            let of_node = slices
                .iter()
                .filter(|slice| slice.job.as_ref().is_some_and(|job| job.node == *name));
            let of_node: Vec<SliceRecord> = of_node.cloned().collect();
            end_left(&agent, &file, name, &of_node);
        }
    }
    Ok(0)
}

/// A node without devices has no file, and shares slurm.conf with those that have: its health check has nothing to do. A file
/// that was lost while jobs have slices is another thing.
fn sweep_without(node_file: &Path) -> Result<u8, Fault> {
    let shown = node_file.display();
    let agent = Client::new(node::run_dir(&Node::default()));
    let slices = node::all_slices(&agent).unwrap_or_default();
    if let Some(slice) = slices.first() {
        return Err(Fault::new(
            Code::Config,
            format!(
                "there is no node's file `{shown}`, and {} slices of jobs are here, as {}",
                slices.len(),
                slice.name
            ),
        )
        .hint("`divvy slurm setup --apply` writes the file again; `divvy slice delete` ends a slice"));
    }
    remark(&format!(
        "there is no node's file `{shown}`: no job of this node has a slice, and nothing is swept"
    ));
    Ok(0)
}

/// Ends those idle slices whose jobs have left the node: a slurmd that was killed has run no epilog.
pub fn sweep(agent: &Client, node: &Node, name: &str, slices: &[SliceRecord]) {
    /// Jobs that start now are idle too, and many that start at once would each ask the controller.
    const STARTING: Duration = Duration::from_secs(60);
    let idle: Vec<SliceRecord> = slices
        .iter()
        .filter(|slice| slice.state == SliceState::Idle && slice.runs.is_empty())
        .filter(|slice| clock::age(&slice.created_at).is_none_or(|age| age > STARTING))
        .cloned()
        .collect();
    if !idle.is_empty() {
        end_left(agent, node, name, &idle);
    }
}

/// `slices` were listed before the controller is asked, so a slice that a prolog makes meanwhile is not among them.
fn end_left(agent: &Client, node: &Node, name: &str, slices: &[SliceRecord]) {
    let Some(here) = controller::on_node(name) else {
        return;
    };
    for slice in slices {
        let Some(job) = &slice.job else { continue };
        let stays = here
            .iter()
            .find(|known| known.id == job.id)
            .is_some_and(|known| !known.is_completing || steps::has_any(&job.id));
        if !stays && let Err(fault) = end(agent, node, slice) {
            remark(&format!("slice {} stays: {fault}", slice.name));
        }
    }
}

/// Ends a slice, and writes down what its job used.
///
/// # Errors
/// As [`remove`].
pub fn end(agent: &Client, node: &Node, slice: &SliceRecord) -> Result<(), Fault> {
    let (Some(used), Some(job)) = (remove(agent, slice)?, Job::of_slice(slice)) else {
        return Ok(());
    };
    if let Err(fault) = account(node, &job, slice, &used) {
        // The slice is gone, and the next job can start.
        remark(&format!("the job's use is not written down: {fault}"));
    }
    Ok(())
}

/// What a slice used.
struct Use {
    slice: SliceRecord,
    device_seconds: f64,
}

/// Kills what is left in a slice and deletes it; what it used, or nothing where another process has deleted it and says so.
///
/// # Errors
/// [`Code::SliceBusy`] where something in it does not end.
fn remove(agent: &Client, slice: &SliceRecord) -> Result<Option<Use>, Fault> {
    const TIMEOUT: Duration = Duration::from_secs(20);
    let ask = Kill {
        signal: SIGKILL,
        dry_run: false,
    };
    let begin = Instant::now();
    let mut used = Use {
        slice: slice.clone(),
        device_seconds: 0.0,
    };
    // Whether an agent may have deleted it and could not answer.
    let mut unheard = false;
    loop {
        let _none_left = agent.kill(&slice.id, &ask);
        if let Ok(now) = agent.slice(&slice.id) {
            let compute = agent
                .compute()
                .map_or_else(|_| Vec::new(), |list| list.body.items);
            let charged = compute.iter().filter(|record| record.slice_id == slice.id);
            let ns: u64 = charged.map(|record| record.charged_ns).sum();
            used = Use {
                slice: now,
                device_seconds: Duration::from_nanos(ns).as_secs_f64(),
            };
        }
        match agent.end(&slice.id) {
            Ok(()) => return Ok(Some(used)),
            Err(fault) if fault.code == Code::UnknownSlice => return Ok(unheard.then_some(used)),
            Err(fault) if begin.elapsed() >= TIMEOUT => return Err(fault),
            Err(fault) => {
                unheard |= fault.code == Code::AgentUnreachable;
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Writes down what the job used, where the node's file says so.
fn account(node: &Node, job: &Job, slice: &SliceRecord, used: &Use) -> Result<(), Fault> {
    let shares = used.slice.shares.iter();
    let id = job.id.to_string();
    let line = Used {
        job_id: &id,
        uid: job.uid,
        node: &job.node,
        restarts: slice.job.as_ref().map_or(0, |job| job.restarts),
        started_at: &used.slice.created_at,
        ended_at: clock::now(),
        device_seconds: used.device_seconds,
        devices: shares
            .map(|share| OfDevice {
                uuid: &share.device_uuid,
                memory_limit_bytes: share.memory_limit_bytes,
                memory_peak_bytes: share.memory_peak_bytes,
                refused_allocations: share.refused_allocations,
            })
            .collect(),
    };
    // The file first: it waits for no other.
    let written = node
        .accounting
        .as_ref()
        .map_or(Ok(()), |path| append(path, &line));
    if node.comment {
        let shares = used.slice.shares.iter();
        let peak = shares
            .map(|share| share.memory_peak_bytes)
            .max()
            .unwrap_or_default();
        let words = format!(
            "divvy: peak {peak} of {}, {:.1} s of the device",
            used.slice.shares.first.memory_limit_bytes, line.device_seconds
        );
        if let Err(refusal) = controller::comment(job, &words) {
            remark(&format!("the job's comment is not written: {}", refusal.fault));
        }
    }
    written
}

/// Adds a line to the accounting file.
fn append(path: &str, line: &Used<'_>) -> Result<(), Fault> {
    let failed = |error: &dyn std::error::Error| {
        Fault::new(Code::Config, format!("cannot write the accounting file `{path}`")).because(error)
    };
    let mut text = serde_json::to_string(line).map_err(|error| failed(&error))?;
    text.push('\n');
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o640)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
        .map_err(|error| failed(&error))?;
    // One write, so that the lines of two jobs that end at once do not mix.
    file.write_all(text.as_bytes()).map_err(|error| failed(&error))
}
