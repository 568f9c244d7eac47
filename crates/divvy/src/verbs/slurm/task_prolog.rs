//! `divvy slurm task-prolog`: the variables of a task. slurmstepd reads lines `export NAME=VALUE` from what it prints.
//!
//! It runs as the job's user and has no right that the user has not: a user who changes what it prints has changed variables
//! that any program could change.

use std::path::Path;

use divvy_agent::{Client, launch};
use divvy_jobs::Asked;
use divvy_model::{Bytes, Code, Compute, DeviceRecord, Fault, MemoryAmount, SliceRecord};

use super::job::{SLURM, of_slurmd};
use super::{node, steps};
use crate::output;

/// What a job with devices has in its tasks' environments. Slurm takes these out of what a user hands on, and leaves
/// `SLURM_STEP_GPUS` in: a job that is submitted from a step with devices has that one.
const SIGNS: [&str; 3] = ["SLURM_SHARDS_ON_NODE", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS"];

/// Prints the variables.
///
/// # Errors
/// The job has devices and no slice, or the agent does not answer: the task does not start.
pub fn run(node_file: &Path) -> Result<u8, Fault> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let told = variable("SLURM_JOB_ID").ok_or_else(|| of_slurmd("SLURM_JOB_ID"))?;
    let job = steps::own_job().unwrap_or(told);
    let name = variable("SLURMD_NODENAME").ok_or_else(|| of_slurmd("SLURMD_NODENAME"))?;
    let asked = Asked::of_step(|name| variable(name)).map_err(|refusal| refusal.fault)?;
    if !SIGNS.iter().any(|sign| variable(sign).is_some()) {
        if !asked.is_nothing() {
            return Err(asked.of_no_device().fault);
        }
        // No device was asked for, and none is shown.
        output::print("export CUDA_VISIBLE_DEVICES=\nunset DIVVY_SLICE\n")?;
        return Ok(0);
    }
    let node = node::read(&node::file_of(node_file, &name)?)?;
    let run = node::run_dir(&node);
    let (agent, slices) =
        node::ask(&node, |agent| node::slices(agent, &name)).map_err(|refusal| refusal.fault)?;
    let uid = rustix::process::getuid().as_raw();
    let own = slices.iter().find(|slice| {
        let is_jobs = slice
            .job
            .as_ref()
            .is_some_and(|record| record.manager == SLURM && record.id == job);
        is_jobs && slice.uid == uid
    });
    let slice = own.ok_or_else(|| {
        Fault::new(Code::Job, format!("job {job} has devices and no slice on {name}"))
            .cause("its prolog made none, or the job was sent back")
            .hint("`scontrol show job` has the reason in AdminComment")
    })?;
    judge(&agent, &asked, slice)?;
    let plan = launch::join_step(&run, &slice.id)?;
    let mut text = String::new();
    for (name, value) in &plan.environment {
        let value = value.to_string_lossy();
        if value.contains('\n') {
            return Err(Fault::new(
                Code::Usage,
                format!("{name} has a line break, which slurmstepd cannot be told"),
            )
            .hint("submit the job with a value without line breaks"));
        }
        text.push_str(&format!("export {name}={value}\n"));
    }
    output::print(&text)?;
    Ok(0)
}

/// Refuses a step that asks by options for something else than its job's slice has.
fn judge(agent: &Client, asked: &Asked, slice: &SliceRecord) -> Result<(), Fault> {
    // Only a part of a device needs the devices' sizes.
    let devices = match asked.memory {
        Some(MemoryAmount::Share(_)) => agent.devices()?.body.items,
        _ => Vec::new(),
    };
    let size = |uuid: &str| {
        let device = devices.iter().find(|device| device.uuid == uuid);
        device.map_or(Bytes(0), DeviceRecord::memory_usable_bytes)
    };
    let compute = slice.terms.compute.share.unwrap_or(Compute::WHOLE);
    asked
        .judge_step(
            slice.shares.first.memory_limit_bytes,
            compute,
            slice.shares.iter().map(|share| size(&share.device_uuid)),
        )
        .map_err(|refusal| refusal.fault)
}
