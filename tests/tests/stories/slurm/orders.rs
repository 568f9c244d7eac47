//! Whatever is killed, in random orders, no slice outlives its job.

use divvy_tests::processes;
use divvy_tests::wait::until;
use rustix::process::Signal;

use super::Site;

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
    let Some(mut site) = Site::with_lines("h100", &["n1"], &[], |_| "HealthCheckInterval=1".into()) else {
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
