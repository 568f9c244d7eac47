//! Jobs of a Slurm cluster, which is real: each is held to its shards, and no slice outlives its job.

mod devices;
mod former;
mod interrupted;
mod options;
mod unlike;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use divvy_tests::host::{finish, stderr, succeeded};
use divvy_tests::slurm::{Cluster, NodeLine, is_installed};
use divvy_tests::system::System;
use divvy_tests::users::User;
use divvy_tests::wait::until;
use divvy_tests::{clients, isolation, processes};
use rustix::process::Signal;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// A job that runs until it is ended.
const SLEEP: &str = "touch started.$SLURM_JOB_ID; exec sleep 600";

/// A machine with an agent for all, and a cluster that `divvy slurm setup` has set up.
struct Site {
    /// First, so that jobs end before their agent.
    cluster: Cluster,
    system: System,
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
    fn new(devices: &str, shards: &str) -> Option<Self> {
        let mut site = Self::prepared(devices, &["n1"])?;
        site.set_up("n1", &["--shards", shards]);
        site.start(&["n1"]);
        Some(site)
    }

    fn prepared(devices: &str, nodes: &[&str]) -> Option<Self> {
        Self::with(devices, nodes, &[])
    }

    /// The same, with these variables for the agent.
    fn with(devices: &str, nodes: &[&str], settings: &[(&str, &str)]) -> Option<Self> {
        Self::with_lines(devices, nodes, settings, "")
    }

    /// The same, with more lines of slurm.conf.
    fn with_lines(devices: &str, nodes: &[&str], settings: &[(&str, &str)], more: &str) -> Option<Self> {
        // The level is the agent's to choose here.
        if isolation::asked_for().is_some()
            || !clients::require(is_installed(), "Slurm and munge (cargo xtask setup)")
        {
            return None;
        }
        let own = [("DIVVY_EMULATED", devices), ("DIVVY_ADMIT_OTHERS", "false")];
        let system = System::with(&[&own, settings].concat())?;
        let lines: Vec<NodeLine> = nodes.iter().map(|name| node(name)).collect();
        let cluster = Cluster::configure(&system.folder().join("slurm"), &lines, more);
        Some(Self { cluster, system })
    }

    fn node_files(&self) -> PathBuf {
        self.system.folder().join("slurm/%n.toml")
    }

    /// `divvy slurm setup` for a node, with these words behind it.
    fn setup(&self, node: &str, words: &[&str]) -> Output {
        let mut command = self.system.command(self.system.program("divvy"));
        command
            .args(["slurm", "setup", "--node", node, "--conf-dir"])
            .arg(self.cluster.conf_dir())
            .arg("--node-file")
            .arg(self.node_files())
            .args(words);
        finish(&mut command)
    }

    fn set_up(&self, node: &str, words: &[&str]) {
        let said = self.setup(node, &[words, &["--apply"]].concat());
        let said = succeeded(&said);
        assert!(said.contains("restart slurmctld"), "{said}");
        // What a job used is written down.
        let file = self.node_file(node);
        let text = std::fs::read_to_string(&file).expect("the node's file");
        let accounting = format!("accounting = \"{}\"\n{text}", self.accounting().display());
        std::fs::write(&file, accounting).expect("written");
    }

    fn node_file(&self, node: &str) -> PathBuf {
        PathBuf::from(self.node_files().display().to_string().replace("%n", node))
    }

    fn accounting(&self) -> PathBuf {
        self.system.folder().join("slurm/jobs.jsonl")
    }

    fn start(&mut self, nodes: &[&str]) {
        self.cluster.start(nodes, &[]);
    }

    /// A program of Slurm's as this user, from a folder that the user may enter.
    fn command_as(&self, user: &User, program: &str) -> Command {
        let mut command = self.system.command_as(user, program);
        command
            .env_remove("DIVVY_RUN_DIR")
            .env("SLURM_CONF", self.cluster.conf_dir().join("slurm.conf"));
        command
    }

    /// `srun` with these words and a script for a shell.
    fn srun(&self, user: &User, words: &[&str], script: &str) -> Command {
        let mut command = self.command_as(user, "srun");
        command.args(words).args(["sh", "-c", script]);
        command
    }

    /// A script that has the probe answer these lines.
    fn ask_probe(&self, lines: &[&str]) -> String {
        let lines = lines.join("\\n");
        format!("printf '{lines}\\n' | {}", self.system.program("probe").display())
    }

    /// Submits a script; the job's number.
    fn sbatch(&self, user: &User, words: &[&str], script: &str) -> String {
        let mut command = self.command_as(user, "sbatch");
        command.args(["--parsable", "--output", "job-%j.out"]).args(words);
        let said = finish(command.arg(format!("--wrap={script}")));
        succeeded(&said).trim().to_owned()
    }

    /// The slice of a job, as `divvy ps` shows it.
    fn slice_of(&self, job: &str) -> Option<Value> {
        let list = self.system.json(["ps"]);
        let mut items = list["items"].as_array().expect("slices").iter();
        items.find(|slice| slice["job"]["id"] == job).cloned()
    }

    /// Waits until programs of so many jobs run, of those that [`SLEEP`] is the script of: Slurm forgets to end a job that it
    /// is just starting, for a while.
    fn until_started(&self, user: &User, count: usize) {
        until(&format!("{count} jobs run"), || {
            let files = std::fs::read_dir(&user.home).expect("a folder").flatten();
            let started = files.filter(|file| file.file_name().to_string_lossy().starts_with("started."));
            (started.count() == count).then_some(())
        });
    }

    fn job_slices(&self) -> usize {
        let list = self.system.json(["ps"]);
        let items = list["items"].as_array().expect("slices");
        items.iter().filter(|slice| !slice["job"].is_null()).count()
    }

    /// How many jobs of a user have a slice.
    fn slices_of(&self, user: &User) -> usize {
        let list = self.system.json(["ps"]);
        let items = list["items"].as_array().expect("slices");
        let is_own = |slice: &&Value| !slice["job"].is_null() && slice["uid"] == user.uid;
        items.iter().filter(is_own).count()
    }

    fn until_none_of(&self, user: &User) {
        until(&format!("no job of {} has a slice", user.name), || {
            (self.slices_of(user) == 0).then_some(())
        });
    }

    /// Waits for it, with a slurmd that is started again where it ends by itself, as an administrator or systemd would.
    fn until_with_slurmd<T>(&mut self, what: &str, is_so: impl Fn(&Self) -> Option<T>) -> T {
        let site = std::cell::RefCell::new(self);
        until(what, || {
            if let Some(status) = site.borrow_mut().cluster.revive_slurmd("n1") {
                println!("slurmd ended by itself, {status}");
            }
            is_so(&site.borrow())
        })
    }

    fn until_no_slice(&self) {
        until("no job has a slice", || (self.job_slices() == 0).then_some(()));
    }

    /// Bytes that programs can have of the device at `index`.
    fn usable(&self, index: usize) -> u64 {
        let device = &self.system.json(["devices"])["items"][index];
        let of = |name: &str| device[name].as_u64().unwrap_or_default();
        of("memory_total_bytes") - of("memory_reserved_bytes")
    }

    /// What so many shards of a device are.
    fn shards(&self, index: usize, count: u64, all: u64) -> u64 {
        self.usable(index) * count / all / MIB * MIB
    }

    fn state_of(&self, job: &str) -> String {
        self.cluster
            .ask("squeue", &["-h", "-t", "all", "-j", job, "-o", "%T"])
            .trim()
            .to_owned()
    }

    fn reason(&self, node: &str) -> String {
        self.cluster.ask("scontrol", &["show", "node", node])
    }
}

/// A job that holds device memory until it is ended.
fn hold_memory(site: &Site) -> String {
    let probe = site.system.program("probe");
    format!("(echo allocate 1048576; sleep 600) | {}", probe.display())
}

/// The lines that a probe printed.
fn answers(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect()
}

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

/// A few numbers that look random, and are the same in each run with the same beginning.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(below).expect("small")).expect("small")
    }

    /// An end of a job, and some of the killings, two in three of them.
    fn order(&mut self) -> Vec<&'static str> {
        let mut steps = vec!["scancel", "slurmstepd", "slurmd", "agent"];
        let mut done = Vec::new();
        while !steps.is_empty() {
            let step = steps.remove(self.next(steps.len()));
            if step == "scancel" || self.next(3) != 0 {
                done.push(step);
            }
        }
        done
    }
}

/// DIVVY_SLURM_ORDERS is how many random orders are tried, a few by default; DIVVY_SLURM_SEED repeats those of a failure.
#[test]
fn no_slice_outlives_its_job_whatever_is_killed_and_in_which_order() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().expect("a number"))
    };
    let orders = number("DIVVY_SLURM_ORDERS").unwrap_or(4);
    // Slurm's controller asks for a lost epilog again after up to 90 s. What slurmd runs by itself has to be quicker.
    let Some(mut site) = Site::with_lines("h100", &["n1"], &[], "HealthCheckInterval=1") else {
        return;
    };
    site.set_up("n1", &["--shards", "80"]);
    site.start(&["n1"]);
    let seed = number("DIVVY_SLURM_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        (u64::from(now.expect("after 1970").subsec_nanos()) << 16) | u64::from(std::process::id())
    });
    println!("DIVVY_SLURM_SEED={seed}");
    let mut numbers = Numbers(seed.max(1));
    let alice = site.system.users.alice.clone();
    for order in 0..orders {
        let begin = std::time::Instant::now();
        // A program of it leaves its session, as a daemon does, and holds memory.
        let probe = site.system.program("probe");
        let script = format!(
            "setsid sh -c '(echo allocate 1048576; sleep 600) | {} & wait' & sleep 600",
            probe.display()
        );
        let job = site.sbatch(&alice, &["--gres=shard:8"], &script);
        site.until_with_slurmd("the job's program uses its slice", |site| {
            let slice = site.slice_of(&job)?;
            (slice["processes"].as_array()?.len() == 1).then_some(())
        });
        let daemon = site.slice_of(&job).expect("a slice")["processes"][0]["pid"]
            .as_u64()
            .expect("a number");
        let daemon = u32::try_from(daemon).expect("a process");
        let done = match order {
            // The one that lost an epilog: slurmd ends while the job does.
            0 => vec!["scancel", "slurmd", "agent"],
            _ => numbers.order(),
        };
        for &step in &done {
            match step {
                "scancel" => drop(site.cluster.root("scancel", &[&job])),
                "slurmstepd" => {
                    for pid in site.cluster.steps_of(&job) {
                        processes::signal(pid, Signal::KILL);
                    }
                }
                "slurmd" => {
                    site.cluster.kill_slurmd("n1");
                    site.cluster.start_slurmd("n1", &[]);
                }
                _ => {
                    processes::signal(site.system.agent_pid(), Signal::KILL);
                    until("the agent is gone", || site.system.agent_status());
                    site.system.start_agent();
                }
            }
        }
        site.until_with_slurmd(
            &format!("order {order}, {done:?}: the slice of job {job} is gone"),
            |site| site.slice_of(&job).is_none().then_some(()),
        );
        assert!(
            !processes::is_alive(daemon),
            "order {order}, {done:?}: {daemon} lives"
        );
        let state = site.cluster.ask("sinfo", &["-h", "-N", "-o", "%T"]);
        assert!(
            !state.contains("drain"),
            "order {order}, {done:?}: {}\n{}",
            site.reason("n1"),
            site.cluster.log_of("n1")
        );
        println!("order {order}, {done:?}: {:.1} s", begin.elapsed().as_secs_f64());
        // Where an epilog was lost, the job is completing for a minute more, and the node takes no other.
        if site.state_of(&job) == "COMPLETING" {
            let node = |site: &Site, state: &str| {
                let words = ["update", "NodeName=n1", state, "Reason=next"];
                site.cluster.root("scontrol", &words)
            };
            assert!(node(&site, "State=DOWN").status.success());
            site.until_with_slurmd("the node takes jobs", |site| {
                // It may be up by itself: then this is refused.
                let _up = node(site, "State=RESUME");
                let states = site.cluster.ask("sinfo", &["-h", "-N", "-o", "%T"]);
                (states.trim() == "idle").then_some(())
            });
        }
    }
    site.until_no_slice();
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

/// Each of examples/jobs/slurm, with a program in the place of the user's.
#[test]
fn the_examples_run() {
    let Some(site) = Site::new("h100", "80") else {
        return;
    };
    let alice = &site.system.users.alice;
    for program in ["train.py", "serve.py"] {
        let text = "import os\nprint('ran', os.environ['DIVVY_SLICE'])\n";
        std::fs::write(alice.home.join(program), text).expect("written");
    }
    // What a job used is in its comment for administrators, where the node's file says so.
    let file = site.node_file("n1");
    let text = std::fs::read_to_string(&file).expect("the node's file");
    assert!(text.contains("comment = false"), "{text}");
    std::fs::write(&file, text.replace("comment = false", "comment = true")).expect("written");
    let folder = divvy_tests::build::workspace().join("examples/jobs/slurm");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("examples").flatten() {
        let script = std::fs::File::open(entry.path()).expect("a script");
        let mut command = site.command_as(alice, "sbatch");
        command
            .args(["--parsable", "--wait", "--output", "example-%j.out"])
            .stdin(script);
        let job = succeeded(&finish_with_input(&mut command));
        let job = job.trim();
        let files = std::fs::read_dir(&alice.home).expect("a folder").flatten();
        let outputs = files.filter(|file| file.file_name().to_string_lossy().starts_with("example-"));
        let text: String = outputs
            .filter_map(|file| {
                let text = std::fs::read_to_string(file.path()).ok();
                std::fs::remove_file(file.path()).expect("removed");
                text
            })
            .collect();
        let expected = match entry.file_name().to_str() {
            Some("array.sh") => 10,
            Some("steps.sh") => 2,
            _ => 1,
        };
        assert_eq!(
            text.matches("ran /").count(),
            expected,
            "{job}: {text}\n{}",
            site.cluster.logs()
        );
        until("its use is in its comment", || {
            let shown = site.cluster.ask("scontrol", &["show", "job", job]);
            shown.contains("AdminComment=divvy: peak ").then_some(())
        });
        count += 1;
    }
    assert_eq!(count, 3);
    site.until_no_slice();
}

/// As [`finish`], without closing the input.
fn finish_with_input(command: &mut Command) -> Output {
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .expect("it starts")
}

#[test]
fn what_is_wrong_has_a_sentence_and_only_a_broken_node_is_drained() {
    let Some(site) = Site::new("h100", "80") else {
        return;
    };
    let users = &site.system.users;
    let alice = &users.alice;
    let is_sound = || {
        let state = site.cluster.ask("sinfo", &["-h", "-N", "-o", "%T"]);
        assert!(!state.contains("drain"), "{}", site.reason("n1"));
    };
    // A job without a device starts, and sees none.
    let none = finish(&mut site.srun(
        alice,
        &[],
        &format!("{} < /dev/null", site.system.program("probe").display()),
    ));
    assert!(!none.status.success());
    // Nor does what a step with devices hands on to the jobs that it submits count as one.
    let mut from_a_step = site.command_as(alice, "sbatch");
    from_a_step
        .env("SLURM_STEP_GPUS", "0")
        .args(["--wait", "--wrap=true"]);
    succeeded(&finish(&mut from_a_step));
    is_sound();
    // What the job has to change: it is held, or ended, and told why.
    let whole = ["--gres=shard:1,divvy_compute:100"];
    succeeded(&finish(&mut site.srun(alice, &whole, "true")));
    let forged = "x\n     Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:80(IDX:0)";
    let refused = finish(&mut site.srun(alice, &["--gres=shard:1", "-J", forged], "echo ran"));
    assert!(!refused.status.success() && !String::from_utf8_lossy(&refused.stdout).contains("ran"));
    let job = site.sbatch(alice, &["--gres=shard:1", "-J", forged], "echo ran");
    until("it is held", || {
        let shown = site.cluster.root("scontrol", &["show", "job", &job]);
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        (shown.contains("JobHeld") || shown.contains("held")).then_some(())
    });
    is_sound();
    site.cluster.ask("scancel", &[&job]);
    site.until_no_slice();

    // What an administrator has to repair drains the node, and says what.
    let broken = |what: &str| {
        let refused = finish(&mut site.srun(alice, &["--gres=shard:1"], "echo ran"));
        let said = String::from_utf8_lossy(&refused.stdout).into_owned();
        assert!(!said.contains("ran"), "{what}: {said}");
        let drained = until(what, || {
            let shown = site.reason("n1");
            shown.contains("DRAIN").then_some(shown)
        });
        assert!(drained.contains(what), "{drained}");
        let _gone = site.cluster.root("scancel", &["--full", "-u", &alice.name]);
        until("the queue is empty", || {
            site.cluster.ask("squeue", &["-h"]).is_empty().then_some(())
        });
        site.cluster
            .ask("scontrol", &["update", "NodeName=n1", "State=RESUME"]);
        site.cluster.until("it takes jobs again", |cluster| {
            cluster.ask("sinfo", &["-h", "-o", "%T"]).contains("idle")
        });
    };
    let file = site.node_file("n1");
    let sound = std::fs::read_to_string(&file).expect("the node's file");
    let with = |text: &str| std::fs::write(&file, text).expect("written");
    let usable = site.usable(0);
    with(&sound.replace(
        &format!("memory_bytes = {usable}"),
        &format!("memory_bytes = {}", usable + 1),
    ));
    broken("shards were made of");
    with(&sound.replace("uuid = \"", "uuid = \"GPU-0"));
    broken("is not on this node");
    with("colour = 1\n");
    broken("was not understood");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("a mode");
    broken("others may write it");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("a mode");
    with(&format!("agent_timeout_s = 1\n{sound}"));
    site.system.stop_agent();
    broken("no agent of Divvy answers");
    // Jobs without a device run all the same.
    succeeded(&finish(&mut site.srun(alice, &[], "true")));
    site.system.start_agent();
    with(&sound);
    succeeded(&finish(&mut site.srun(alice, &["--gres=shard:1"], "true")));

    // The mistakes of a configuration.
    let conf = site.cluster.conf_dir().join("slurm.conf");
    let text = std::fs::read_to_string(&conf).expect("slurm.conf");
    std::fs::write(&conf, text.replace("PrologFlags=Alloc\n", "")).expect("written");
    let checked = site.setup("n1", &["--shards", "7"]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert_eq!(checked.status.code(), Some(1), "{said}{}", stderr(&checked));
    for sentence in [
        "before its slice is made",
        "names other devices, memory or shards",
        "do not divide",
        "counts 80 of `shard`",
    ] {
        assert!(said.contains(sentence), "{sentence}: {said}");
    }
}

#[test]
fn a_user_over_the_quota_is_sent_back_and_the_node_stays() {
    let Some(mut site) = Site::with("h100", &["n1"], &[("DIVVY_USER_MEMORY", "10GiB")]) else {
        return;
    };
    site.set_up("n1", &["--shards", "80"]);
    site.start(&["n1"]);
    let alice = &site.system.users.alice;
    let small = site.sbatch(alice, &["--gres=shard:8"], SLEEP);
    until("a job within the quota has its slice", || site.slice_of(&small));
    for (shards, state) in [("--gres=shard:20", "held"), ("--gres=shard:4", "PENDING")] {
        let job = site.sbatch(alice, &[shards], "echo ran");
        let said = until("the next job is sent back", || {
            let shown = site.cluster.ask("scontrol", &["show", "job", &job]);
            (shown.contains("AdminComment=divvy D00") && shown.contains("PENDING")).then_some(shown)
        });
        assert!(said.contains(state), "{said}");
        assert!(
            said.contains("divvy D0017") || said.contains("divvy D0035"),
            "{said}"
        );
        site.cluster.ask("scancel", &[&job]);
    }
    let state = site.cluster.ask("sinfo", &["-h", "-N", "-o", "%T"]);
    assert!(!state.contains("drain"), "{}", site.reason("n1"));
    site.until_started(alice, 1);
    site.cluster.ask("scancel", &[&small]);
    site.until_no_slice();
}

#[test]
fn a_jobs_user_cannot_enlarge_steal_or_outlive_the_slice() {
    let Some(site) = Site::new("h100", "80") else {
        return;
    };
    let users = &site.system.users;
    let divvy = site.system.program("divvy");
    let run = site.system.run_directory();
    let job = site.sbatch(&users.alice, &["--gres=shard:8"], SLEEP);
    let slice = until("alice's job has its slice", || site.slice_of(&job));
    let id = slice["id"].as_str().expect("an id").to_owned();
    assert_eq!(slice["uid"], users.alice.uid);
    let refused = |user: &User, words: &[&str]| {
        let mut command = site.system.divvy_as(user, words.iter().copied());
        let output = finish(&mut command);
        assert!(
            !output.status.success(),
            "{} {words:?}: {}",
            user.name,
            String::from_utf8_lossy(&output.stdout)
        );
        stderr(&output)
    };
    // Its owner joins it, and changes nothing about it; nor does another user.
    for user in [&users.alice, &users.mallory] {
        for words in [
            vec!["resize", &id, "--memory", "60GiB"],
            vec!["resize", &id, "--compute", "90%"],
            vec!["slice", "delete", &id],
            vec!["run", "--memory", "60GiB", "--", "true"],
            vec!["slice", "create", "mine", "--memory", "60GiB"],
        ] {
            let said = refused(user, &words);
            assert!(said.contains("error[D"), "{words:?}: {said}");
        }
    }
    assert!(
        refused(&users.mallory, &["run", "--slice", &id, "--", "true"]).contains("D0"),
        "another's"
    );
    // From inside it is no other: neither a variable nor a new name leads to more.
    let inside = format!(
        "{} --run-dir {} resize {id} --memory 60GiB; echo $?",
        divvy.display(),
        run.display()
    );
    let said = finish(&mut site.srun(&users.bob, &["--gres=shard:8"], &inside));
    assert!(
        succeeded(&said).trim().ends_with(['1', '2', '3', '4']),
        "{said:?}"
    );
    // The prolog and the epilog by hand, with another's job in the variables.
    for verb in ["prolog", "epilog", "sweep"] {
        let mut command = site.system.divvy_as(&users.mallory, ["slurm", verb]);
        command
            .env("SLURM_JOB_ID", &job)
            .env("SLURM_JOB_UID", users.alice.uid.to_string())
            .env("SLURMD_NODENAME", "n1")
            .env("SLURM_JOB_GPUS", "0");
        let output = finish(&mut command);
        assert!(
            !output.status.success() && stderr(&output).contains("for root only"),
            "{}",
            stderr(&output)
        );
    }
    // A task's variables are for the job's user only.
    let mut command = site
        .system
        .divvy_as(&users.mallory, ["slurm", "task-prolog", "--node-file"]);
    command
        .arg(site.node_files())
        .env("SLURM_JOB_ID", &job)
        .env("SLURMD_NODENAME", "n1")
        .env("SLURM_SHARDS_ON_NODE", "8");
    let output = finish(&mut command);
    assert!(
        !output.status.success() && stderr(&output).contains("no slice"),
        "{}",
        stderr(&output)
    );
    // The reason, and no variable.
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.starts_with("print divvy D0098") && said.lines().count() == 1,
        "{said}"
    );
    // The variables of a job's own choosing reach neither prolog nor epilog.
    let mut command = site.srun(&users.mallory, &["--gres=shard:1"], "true");
    command
        .env("SLURM_JOB_UID", users.alice.uid.to_string())
        .env("DIVVY_RUN_DIR", "/nonexistent")
        .env("SLURM_JOB_GPUS", "0,1,2,3");
    succeeded(&finish(&mut command));
    assert_eq!(
        site.slice_of(&job).expect("still there")["memory_limit_bytes"],
        site.shards(0, 8, 80)
    );
    // What joins from outside the job keeps its slice no longer than the job.
    let mut outside = site
        .system
        .divvy_as(&users.alice, ["run", "--slice", &id, "--", "sleep", "600"]);
    let mut outside = outside
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    until("it has joined", || {
        let slice = site.slice_of(&job)?;
        let runs = slice["runs"].as_array()?;
        runs.iter().any(|run| run["pid"] == outside.id()).then_some(())
    });
    // It would notice the end of its program, so it is not to notice anything.
    processes::signal(outside.id(), Signal::STOP);
    site.cluster.ask("scancel", &[&job]);
    site.until_no_slice();
    until("what joined from outside is ended", || {
        outside.try_wait().expect("a child")
    });
    assert!(is_clean(&site.cluster.log_of("n1")));
}

/// Whether no prolog and no epilog failed.
fn is_clean(log: &str) -> bool {
    !log.contains("prolog failed") && !log.contains("epilog failed")
}
