//! Jobs of a Slurm cluster, which is real: each is held to its shards, and no slice outlives its job.

mod devices;
mod examples;
mod former;
mod hostile;
mod interrupted;
mod options;
mod orders;
mod refused;
mod site;
mod unlike;

use std::process::Stdio;

use divvy_tests::host::{finish, succeeded};
use divvy_tests::processes;
use divvy_tests::wait::until;
use serde_json::Value;

use self::site::{Site, answers, hold_memory};

const MIB: u64 = 1 << 20;

/// A job that runs until it is ended.
const SLEEP: &str = "touch started.$SLURM_JOB_ID; exec sleep 600";

#[test]
fn twenty_jobs_of_three_users_each_have_their_shards_to_the_byte() {
    let Some(site) = Site::new("h100", "80") else {
        return;
    };
    let limit = site.shards(0, 4, 80);
    let users = &site.system.users;
    let people = [&users.alice, &users.bob, &users.mallory];
    // The emulated device's memory is the machine's, and twenty jobs hold theirs at once.
    let held = 64 * MIB;
    let script = site.ask_probe(&[
        "info",
        &format!("allocate {held}"),
        &format!("allocate {limit}"),
        "copy",
        "info",
    ]);
    let jobs: Vec<_> = (0..20)
        .map(|number| {
            let user = people[number % people.len()];
            let mut command = site.srun(user, &["--gres=shard:4"], &script);
            command
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("srun starts")
        })
        .collect();
    for job in jobs {
        let output = job.wait_with_output().expect("it ends");
        assert!(
            output.status.success(),
            "{output:?}\n{}\n{}",
            site.system.log_text(),
            site.cluster.logs()
        );
        let said = answers(&output);
        assert_eq!(said[1]["total_bytes"], limit, "{said:?}");
        assert!(said[2]["error"].is_null(), "{said:?}");
        assert_eq!(said[3]["error"], "CUDA_ERROR_OUT_OF_MEMORY");
        assert_eq!(said[4]["right"], true);
    }
    site.until_no_slice();
    // What each used is one line of JSON, which is written once its slice has gone.
    let lines: Vec<Value> = until("all jobs are accounted for", || {
        let text = std::fs::read_to_string(site.accounting()).ok()?;
        let lines = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        let lines: Vec<Value> = lines.collect();
        (lines.len() == 20).then_some(lines)
    });
    for line in &lines {
        let device = &line["devices"][0];
        assert_eq!(
            (&line["node"], &device["memory_limit_bytes"]),
            (&"n1".into(), &limit.into())
        );
        assert!(
            device["memory_peak_bytes"].as_u64().expect("bytes") >= held,
            "{line}"
        );
        assert_eq!(device["refused_allocations"], 1);
        assert!(people.iter().any(|user| line["uid"] == user.uid));
    }
    let setup = succeeded(&site.setup("n1", &[]));
    assert!(
        setup.contains("do not divide") || setup.contains("no mistakes"),
        "{setup}"
    );
    let conf = site.cluster.conf_dir().join("slurm.conf");
    succeeded(&site.setup("n1", &["--undo"]));
    let text = std::fs::read_to_string(conf).expect("slurm.conf");
    assert!(
        !text.contains("divvy slurm setup") && !text.contains("Prolog"),
        "{text}"
    );
    assert!(!site.node_file("n1").exists());
}

/// The nodes share a host here, and so a device: its slices are of both.
#[test]
fn a_job_on_two_nodes_has_a_slice_on_each_and_whole_devices_are_whole() {
    let Some(mut site) = Site::prepared("h100", &["n1", "n2"]) else {
        return;
    };
    for node in ["n1", "n2"] {
        site.set_up(node, &["--shards", "40"]);
    }
    site.start(&["n1", "n2"]);
    let alice = &site.system.users.alice;
    let limit = site.shards(0, 5, 40);
    let ask = site.ask_probe(&["info"]);
    let ask = format!("echo DEVICES $CUDA_VISIBLE_DEVICES; {ask}");
    let both = finish(&mut site.srun(alice, &["-N2", "-n2", "--gres=shard:5"], &ask));
    let said = succeeded(&both);
    let seen = answers(&both);
    let seen = seen.iter().filter(|line| line["total_bytes"] == limit);
    assert_eq!(seen.count(), 2, "{said}");
    let job = site.sbatch(alice, &["-w", "n2", "--gres=shard:30"], SLEEP);
    let slice = until("it has its slice", || site.slice_of(&job));
    assert_eq!(
        (&slice["job"]["node"], &slice["memory_limit_bytes"]),
        (&"n2".into(), &site.shards(0, 30, 40).into())
    );
    // Which job and which user is in the list for people too.
    let shown = succeeded(&finish(&mut site.system.divvy(["ps"])));
    assert!(
        shown.contains(&format!("slurm:{job}")) && shown.contains(&alice.name),
        "{shown}"
    );
    site.until_started(alice, 1);
    site.cluster.ask("scancel", &[&job]);
    site.until_no_slice();
    let uuid = site.system.json(["devices"])["items"][0]["uuid"].clone();
    let uuid = uuid.as_str().expect("a name");
    let whole = finish(&mut site.srun(alice, &["-w", "n1", "--gres=gpu:1"], &ask));
    let said = succeeded(&whole);
    assert!(said.contains(&format!("DEVICES {uuid}")), "{said}");
    site.until_no_slice();
}

#[test]
fn steps_arrays_and_suspended_jobs() {
    let Some(site) = Site::new("h100", "80") else {
        return;
    };
    let users = &site.system.users;
    let limit = site.shards(0, 8, 80);
    // Its time is over soon. Slurm looks every half minute, so what comes of it is seen last.
    let timed = site.sbatch(&users.mallory, &["--time=5", "--gres=shard:8"], SLEEP);
    until("it has its slice", || site.slice_of(&timed));
    site.until_started(&users.mallory, 1);
    let update = format!("JobId={timed}");
    site.cluster
        .ask("scontrol", &["update", &update, "EndTime=now+1"]);
    // Two steps at once, of two tasks each, in one slice: all allocations count together.
    let tasks = site.ask_probe(&["allocate 1048576", "info"]);
    std::fs::write(
        site.system.folder().join("task.sh"),
        format!("#!/bin/sh\n{tasks}\n"),
    )
    .expect("written");
    let task = site.system.folder().join("task.sh");
    let script = format!(
        "srun --overlap -n2 sh {task} > one & srun --overlap -n2 sh {task} > two; wait; cat one two; touch done",
        task = task.display()
    );
    let job = site.sbatch(&users.alice, &["-n2", "--gres=shard:8,divvy_compute:30"], &script);
    let slice = until("the job has its slice", || site.slice_of(&job));
    assert_eq!(
        (&slice["memory_limit_bytes"], &slice["compute"]),
        (&limit.into(), &3000.into()),
        "{slice}"
    );
    until("its steps are done", || {
        users.alice.home.join("done").exists().then_some(())
    });
    site.until_none_of(&users.alice);
    let text = std::fs::read_to_string(users.alice.home.join(format!("job-{job}.out"))).expect("its output");
    assert_eq!(
        text.matches(&format!("\"total_bytes\":{limit}")).count(),
        4,
        "{text}"
    );

    // Requeued, a job has a new slice: the former one, and what ran in it, are gone.
    let job = site.sbatch(&users.bob, &["--requeue", "--gres=shard:8"], &hold_memory(&site));
    let process = |slice: &Value| slice["processes"][0]["pid"].as_u64();
    let before = until("the job uses its slice", || {
        site.slice_of(&job).filter(|slice| process(slice).is_some())
    });
    assert_eq!(before["job"]["restarts"], Value::Null, "{before}");
    site.cluster.ask("scontrol", &["requeue", &job]);
    until("it is in the queue again", || {
        // It would wait for two minutes.
        let update = format!("JobId={job}");
        let words = ["update", &update, "StartTime=now"];
        (site.state_of(&job) == "PENDING" && site.cluster.root("scontrol", &words).status.success())
            .then_some(())
    });
    let after = until("the requeued job uses a slice", || {
        site.slice_of(&job)
            .filter(|slice| slice["job"]["restarts"] == 1 && process(slice).is_some())
    });
    assert_ne!(before["id"], after["id"]);
    assert_eq!(after["memory_limit_bytes"], limit, "{after}");
    assert_eq!(site.slices_of(&users.bob), 1, "the former slice is gone");
    let former = u32::try_from(process(&before).expect("a process")).expect("a number");
    assert!(!processes::is_alive(former), "what ran before the requeue");
    site.cluster.ask("scancel", &[&job]);
    site.until_none_of(&users.bob);

    // An array: each task has a slice of its own, also the first, whose number is the array's.
    let array = site.sbatch(&users.bob, &["--array=1-3", "--gres=shard:8"], SLEEP);
    until("each task of the array has a slice", || {
        (site.slices_of(&users.bob) == 3).then_some(())
    });
    assert!(site.slice_of(&array).is_some());
    site.until_started(&users.bob, 3);
    site.cluster.ask("scancel", &[&array]);
    site.until_none_of(&users.bob);

    // Suspended, a job keeps its memory; what it had of the time goes to the others.
    let job = site.sbatch(&users.alice, &["--gres=shard:40"], &hold_memory(&site));
    let used = |job: &str| {
        let slice = site.slice_of(job)?;
        (slice["processes"].as_array()?.len() == 1)
            .then(|| slice["memory_used_bytes"].as_u64().expect("bytes"))
    };
    let before = until("it uses its slice", || used(&job).filter(|bytes| *bytes > MIB));
    site.cluster.ask("scontrol", &["suspend", &job]);
    until("it is suspended", || {
        (site.state_of(&job) == "SUSPENDED").then_some(())
    });
    let copies = finish(&mut site.srun(&users.bob, &["--gres=shard:40"], &site.ask_probe(&["copy"])));
    succeeded(&copies);
    assert_eq!(answers(&copies)[1]["right"], true);
    assert_eq!(used(&job), Some(before));
    site.cluster.ask("scontrol", &["resume", &job]);
    until("it goes on", || (site.state_of(&job) == "RUNNING").then_some(()));
    site.cluster.ask("scancel", &[&job]);

    // What is left is the job whose time is over.
    site.until_no_slice();
    assert_eq!(site.state_of(&timed), "TIMEOUT");
}
