//! What interrupts jobs: others of a higher partition, a prolog that takes too long, a node that starts again.

use std::path::Path;
use std::process::Command;

use divvy_tests::processes;
use divvy_tests::wait::until;
use rustix::process::Signal;

use super::{MIB, SLEEP, Site, hold_memory};

/// Jobs of `high` suspend those of `low`, where they want the same processors.
const PREEMPTION: &str = "PreemptType=preempt/partition_prio\nPreemptMode=SUSPEND,GANG\nPrologEpilogTimeout=2\n\
                          PartitionName=low Nodes=n1 PriorityTier=1 OverSubscribe=FORCE:1 PreemptMode=SUSPEND\n\
                          PartitionName=high Nodes=n1 PriorityTier=9 OverSubscribe=FORCE:1";

#[test]
fn a_preempted_job_keeps_its_memory_and_nothing_outlives_a_late_prolog_or_a_reboot() {
    let Some(mut site) = Site::with_lines("h100*2", &["n1"], &[], |_| PREEMPTION.into()) else {
        return;
    };
    site.set_up("n1", &["--shards", "80"]);
    site.start(&["n1"]);
    let (alice, bob) = (site.system.users.alice.clone(), site.system.users.bob.clone());
    let used = |site: &Site, job: &str| {
        let slice = site.slice_of(job)?;
        (slice["processes"].as_array()?.len() == 1)
            .then(|| slice["memory_used_bytes"].as_u64().expect("bytes"))
    };

    // Preempted, a job stands still with its memory, and goes on when the other is done.
    let low = site.sbatch(
        &alice,
        &["-p", "low", "-c", "128", "--gres=shard:40"],
        &hold_memory(&site),
    );
    let before = until("the low job uses its slice", || {
        used(&site, &low).filter(|bytes| *bytes > MIB)
    });
    let script = format!(
        "{}; until [ -e go ]; do sleep 0.1; done",
        site.ask_probe(&["copy", "info"])
    );
    let high = site.sbatch(&bob, &["-p", "high", "-c", "128", "--gres=shard:40"], &script);
    let output = bob.home.join(format!("job-{high}.out"));
    until("the high job's program has run", || {
        std::fs::read_to_string(&output)
            .ok()?
            .contains("total_bytes")
            .then_some(())
    });
    assert_eq!(site.state_of(&low), "SUSPENDED");
    assert_eq!(used(&site, &low), Some(before));
    std::fs::write(bob.home.join("go"), "").expect("written");
    until("the low job goes on", || {
        (site.state_of(&low) == "RUNNING").then_some(())
    });
    assert_eq!(used(&site, &low), Some(before));
    site.cluster.ask("scancel", &[&low]);
    site.until_no_slice();

    // Two devices of one job, each with the same part.
    let words = ["--gres=gpu:2", "--divvy-memory=4GiB", "--divvy-compute=20%"];
    let job = site.sbatch(&alice, &words, &format!("{}; {SLEEP}", site.ask_probe(&["info"])));
    let slice = until("the job has its slice", || site.slice_of(&job));
    let devices = slice["devices"].as_array().expect("devices");
    assert_eq!(devices.len(), 2, "{slice}");
    for device in devices {
        assert_eq!(device["memory_limit_bytes"], 4_u64 << 30, "{slice}");
    }
    assert_eq!(slice["compute"], 2000, "{slice}");
    let output = alice.home.join(format!("job-{job}.out"));
    until("its program sees the part", || {
        let text = std::fs::read_to_string(&output).ok()?;
        text.contains(&format!("\"total_bytes\":{}", 4_u64 << 30))
            .then_some(())
    });
    site.cluster.ask("scancel", &[&job]);
    site.until_no_slice();

    // The agent stands still: Slurm ends the prolog, and what the agent made afterwards goes too.
    processes::signal(site.system.agent_pid(), Signal::STOP);
    let late = site.sbatch(&alice, &["--no-requeue", "--gres=shard:8"], "echo ran");
    until("Slurm has drained the node", || {
        site.reason("n1").contains("DRAIN").then_some(())
    });
    processes::signal(site.system.agent_pid(), Signal::CONT);
    let _gone = site.cluster.root("scancel", &[&late]);
    site.until_no_slice();
    assert!(!alice.home.join(format!("job-{late}.out")).exists());
    resume(&site);

    // The node loses its power: nothing of it is left but its disk, and its run directory is empty.
    let job = site.sbatch(&alice, &["--requeue", "--gres=shard:8"], &hold_memory(&site));
    until("the job uses its slice", || used(&site, &job));
    let former = site.slice_of(&job).expect("a slice");
    site.cluster.kill_slurmd("n1");
    // As the controller finds by itself after SlurmdTimeout.
    let down = ["update", "NodeName=n1", "State=DOWN", "Reason=no power"];
    site.cluster.ask("scontrol", &down);
    let mut lost = site.cluster.steps_of(&job);
    lost.extend(jobs_processes(&job));
    lost.push(site.system.agent_pid());
    for pid in lost {
        processes::signal(pid, Signal::KILL);
    }
    until("the agent is gone", || site.system.agent_status());
    empty(&site.system.run_directory());
    site.system.start_agent();
    site.cluster.start_rebooted_slurmd("n1");
    resume(&site);
    site.cluster
        .until("the requeued job uses a slice of its own", |cluster| {
            // It would wait for two minutes. Once is enough: each change has the scheduler look later.
            let why = cluster.ask("squeue", &["-h", "-t", "all", "-j", &job, "-o", "%T %r"]);
            if why.trim() == "PENDING BeginTime" {
                let update = format!("JobId={job}");
                let _not_yet = cluster.root("scontrol", &["update", &update, "StartTime=now"]);
            }
            used(&site, &job).is_some()
        });
    let after = site.slice_of(&job).expect("a slice");
    assert_ne!(former["id"], after["id"]);
    assert_eq!(
        (&after["job"]["restarts"], site.job_slices()),
        (&1.into(), 1),
        "{after}"
    );
    site.cluster.ask("scancel", &[&job]);
    site.until_no_slice();
}

/// Waits until the node takes jobs again.
fn resume(site: &Site) {
    site.cluster.until("the node takes jobs", |cluster| {
        let _up = cluster.root("scontrol", &["update", "NodeName=n1", "State=RESUME"]);
        let states = cluster.ask("sinfo", &["-h", "-N", "-p", "all", "-o", "%T"]);
        ["idle", "mixed"].contains(&states.trim())
    });
}

/// The processes that have this job's number in their environment.
fn jobs_processes(job: &str) -> Vec<u32> {
    let sign = format!("SLURM_JOB_ID={job}");
    let entries = std::fs::read_dir("/proc").expect("processes").flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers
        .filter(|pid| {
            let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            variables
                .split(|byte| *byte == 0)
                .any(|variable| variable == sign.as_bytes())
        })
        .collect()
}

/// Removes what is in a folder, as a memory file system loses it.
fn empty(folder: &Path) {
    let emptied = Command::new("find")
        .arg(folder)
        .args(["-mindepth", "1", "-delete"])
        .status()
        .expect("find starts");
    assert!(emptied.success());
}
