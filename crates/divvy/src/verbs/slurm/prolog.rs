//! `divvy slurm prolog`: a job's slice, before the job starts on the node.

use std::path::Path;

use divvy_agent::api::{CreateSlice, ForJob};
use divvy_agent::{Client, launch};
use divvy_jobs::{Asked, Here, Node, Plan, Refusal, Remedy, plan};
use divvy_model::{Code, DeviceRecord, Fault, MemoryAmount, Selector, SliceRecord, SliceRequest};

use super::former::difference;
use super::job::{Job, SLURM};
use super::{controller, epilog, node, steps};
use crate::report::{self, remark};

/// Gives the job its slice. A job that cannot have one goes back into the queue.
///
/// # Errors
/// What an administrator has to repair: Slurm drains the node.
pub fn run(node_file: &Path) -> Result<u8, Fault> {
    node::require_root("prolog")?;
    let job = Job::of_environment()?;
    let asked = Asked::of_job(|name| std::env::var(name).ok());
    // A job of processors only needs neither agent nor controller.
    if !job.has_devices && asked.as_ref().is_ok_and(Asked::is_nothing) {
        return Ok(0);
    }
    let node_file = node::file_of(node_file, &job.node)?;
    match asked.and_then(|asked| give(&job, &node_file, &asked)) {
        Ok(()) => Ok(0),
        Err(refusal) if refusal.remedy == Remedy::Repair => {
            controller::drain(&job.node, &refusal.fault);
            Err(refusal.fault)
        }
        Err(refusal) if refusal.remedy == Remedy::Left => {
            report::fault(&refusal.fault, false);
            Ok(0)
        }
        Err(refusal) => {
            report::fault(&refusal.fault, false);
            controller::send_back(&job, &refusal);
            Ok(0)
        }
    }
}

fn give(job: &Job, node_file: &Path, asked: &Asked) -> Result<(), Refusal> {
    if !job.has_devices {
        return Err(asked.of_no_device());
    }
    let node = node::read(node_file).map_err(Refusal::of)?;
    // Slurm's controller and the agent are asked at the same time: each takes a part of the job's start.
    let (granted, there) = std::thread::scope(|scope| {
        let granted = scope.spawn(|| controller::granted(job));
        let there = look(job, &node);
        (granted.join(), there)
    });
    let granted = granted.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let There {
        agent,
        devices,
        slices,
    } = there?;
    let plan = plan(&granted, &node, &devices, asked)?;
    let Some(request) = request(job, &node, plan).map_err(Refusal::of)? else {
        return Ok(());
    };
    let (former, others): (Vec<SliceRecord>, Vec<SliceRecord>) =
        slices.into_iter().partition(|slice| job.has_number_of(slice));
    let has_steps = !former.is_empty() && steps::has_any(&job.id.to_string());
    let mut is_there = false;
    for slice in &former {
        // slurmd that was started again may run the prolog of a job that runs: the job keeps what it has.
        let Some(why) = difference(job, &request, slice, has_steps) else {
            is_there = true;
            continue;
        };
        remark(&format!(
            "slice {} of job {} {why}: it is ended, and the job has a new one",
            slice.name, job.id
        ));
        epilog::end(&agent, &node, slice).map_err(Refusal::of)?;
    }
    if is_there {
        return Ok(());
    }
    epilog::sweep(&agent, &node, &job.node, &others);
    make(&agent, job, request)
}

/// What the node's agent has.
struct There {
    agent: Client,
    devices: Vec<Here>,
    /// The slices of jobs on this node.
    slices: Vec<SliceRecord>,
}

/// Asks the agent, and puts the libraries in place that jobs' programs load.
fn look(job: &Job, node: &Node) -> Result<There, Refusal> {
    let (agent, devices) = node::ask(node, Client::devices)?;
    let here = |device: &DeviceRecord| Here {
        uuid: device.uuid.clone(),
        memory_bytes: device.memory_usable_bytes(),
    };
    let devices = devices.body.items.iter().map(here).collect();
    let slices = node::slices(&agent, &job.node).map_err(Refusal::of)?;
    launch::put_libraries(&node::run_dir(node)).map_err(Refusal::of)?;
    Ok(There {
        agent,
        devices,
        slices,
    })
}

/// The request for the slice of a plan; nothing for a job without devices.
fn request(job: &Job, node: &Node, plan: Plan) -> Result<Option<SliceRequest>, Fault> {
    let mut request = SliceRequest {
        name: Some(format!("{SLURM}-{}", job.id)),
        ..SliceRequest::default()
    };
    let isolation = node.isolation()?;
    request.terms.isolation = isolation.unwrap_or_default();
    request.isolation_unasked = isolation.is_none();
    let uuids = match plan {
        Plan::Nothing => return Ok(None),
        Plan::Whole(devices) => {
            request.terms.whole = true;
            request.terms.isolation = divvy_model::Isolation::default();
            request.isolation_unasked = true;
            devices
        }
        Plan::Part {
            devices,
            memory,
            compute,
        } => {
            request.memory = Some(MemoryAmount::Bytes(memory));
            request.terms.compute.share = Some(compute);
            request.terms.compute.cap = node.cap()?;
            devices
        }
    };
    let selectors = uuids.iter().map(|uuid| uuid.parse::<Selector>());
    request.select(selectors.collect::<Result<_, _>>()?);
    Ok(Some(request))
}

fn make(agent: &Client, job: &Job, request: SliceRequest) -> Result<(), Refusal> {
    let ask = CreateSlice {
        request,
        lasting: true,
        for_job: Some(ForJob {
            uid: job.uid,
            job: job.record(),
        }),
        ..CreateSlice::default()
    };
    let slice = agent.create(&ask).map_err(Refusal::of)?.slice;
    if job.owns(&slice) {
        return Ok(());
    }
    // An agent that knows no jobs has made a slice of root's.
    let _as_before = agent.end(&slice.id);
    let version = agent
        .status()
        .map_or_else(|_| "another".into(), |status| status.version);
    let fault = Fault::new(
        Code::AgentVersion,
        format!(
            "the agent is of version {version} and makes no slices for jobs, this command is of {}",
            env!("CARGO_PKG_VERSION")
        ),
    );
    Err(Refusal::of(
        fault.hint("restart the agent: `systemctl restart divvy-agent`"),
    ))
}
