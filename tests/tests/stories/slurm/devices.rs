//! Which device a job's shards are of, and how the time of one is divided among jobs.

use divvy_tests::host::{finish, succeeded};
use divvy_tests::wait::until;
use serde_json::Value;

use super::{Site, hold_memory};
use crate::compute::{MS, engine_of, standing};

/// A device of its own specification, whose kernels last as long as the model says.
const TIMED: &str = "h100,timing=model";

/// Three devices, of which one is divided.
const SEVERAL: &str = "h100*3";

#[test]
fn shards_are_of_the_device_that_slurm_chose_be_it_an_instance() {
    let Some(mut site) = Site::prepared(SEVERAL, &["n1"]) else {
        return;
    };
    // Only the agent knows of its emulated devices: other programs are told. Their files are its user's.
    let told = |words: &[&str]| {
        let agent = &site.system.users.agent;
        let mut command = site.system.divvy_as(agent, words.iter().copied());
        succeeded(&finish(command.env("DIVVY_EMULATED", SEVERAL)))
    };
    told(&["mig", "apply", "--device", "2", "--yes", "--instances", "3g.40gb"]);
    let list: Value = serde_json::from_str(&told(&["devices", "-o", "json"])).expect("JSON");
    let files = "/dev/zero,/dev/null,/dev/full";
    site.set_up("n1", &["--shards", "40", "--files", files]);
    site.start(&["n1"]);
    let alice = &site.system.users.alice;
    // Slurm's devices, in the order of gres.conf: the devices that are not divided further.
    let devices: Vec<Value> = list["items"].as_array().expect("devices").clone();
    let devices: Vec<&Value> = devices
        .iter()
        .filter(|device| {
            let facts = &device["hardware"];
            facts["mig_mode"] != true || !facts["mig_instance"].is_null()
        })
        .collect();
    let uuid = |index: usize| devices[index]["uuid"].as_str().expect("a name");
    assert_eq!(devices.len(), 3, "{list}");
    assert!(
        devices
            .iter()
            .any(|device| !device["hardware"]["mig_instance"].is_null())
    );

    // Jobs that fill a device each, and leave a part of the last.
    let script = format!(
        "echo DEVICES $CUDA_VISIBLE_DEVICES; {}; exec sleep 600",
        site.ask_probe(&["info"])
    );
    let mut chosen = Vec::new();
    for shards in [40, 40, 10] {
        let job = site.sbatch(alice, &[&format!("--gres=shard:{shards}")], &script);
        let slice = until("the job has its slice", || site.slice_of(&job));
        let shown = site.cluster.ask("scontrol", &["show", "job", "--details", &job]);
        let index = shown
            .split_once("(IDX:")
            .and_then(|(_, rest)| rest.split(')').next()?.parse::<usize>().ok());
        let index = index.unwrap_or_else(|| panic!("no index: {shown}"));
        assert_eq!(slice["device_uuid"], uuid(index), "{slice}");
        let device = devices[index];
        let of = |name: &str| device[name].as_u64().unwrap_or_default();
        let usable = of("memory_total_bytes") - of("memory_reserved_bytes");
        let limit = usable * shards / 40 / super::MIB * super::MIB;
        assert_eq!(slice["memory_limit_bytes"], limit, "{slice}");
        assert_eq!(slice["compute"], shards * 250, "{slice}");
        let output = alice.home.join(format!("job-{job}.out"));
        let said = until("its program has said what it sees", || {
            let text = std::fs::read_to_string(&output).ok()?;
            text.contains("total_bytes").then_some(text)
        });
        assert!(said.contains(&format!("DEVICES {}\n", uuid(index))), "{said}");
        assert!(
            said.contains(&format!("\"total_bytes\":{limit}")),
            "{limit}: {said}"
        );
        chosen.push(index);
    }
    chosen.sort_unstable();
    assert_eq!(chosen, [0, 1, 2]);
    site.cluster.ask("scancel", &["-u", &alice.name]);
    site.until_no_slice();

    // Two whole ones, of which one may be the instance.
    let both = finish(&mut site.srun(alice, &["--gres=gpu:2"], "echo DEVICES $CUDA_VISIBLE_DEVICES"));
    let said = succeeded(&both);
    let seen = said.trim().strip_prefix("DEVICES ").expect("a line").split(',');
    let seen: Vec<&str> = seen.collect();
    assert!(
        seen.len() == 2 && seen.iter().all(|name| (0..3).any(|index| uuid(index) == *name)),
        "{said}"
    );
    site.until_no_slice();
}

#[test]
fn two_jobs_divide_the_time_by_their_shards_and_a_suspended_one_asks_for_none() {
    let Some(site) = Site::new(TIMED, "10") else {
        return;
    };
    let users = &site.system.users;
    let spin = format!("sleep 600 | {} 1000", site.system.program("spinner").display());
    let small = site.sbatch(&users.alice, &["--gres=shard:3"], &spin);
    let large = site.sbatch(&users.bob, &["--gres=shard:7"], &spin);
    let name = |job: &str| {
        let slice = site.slice_of(job)?;
        Some(slice["name"].as_str()?.to_owned())
    };
    let small_slice = until("the small one has its slice", || name(&small));
    let large_slice = until("the large one has its slice", || name(&large));
    let divided = || {
        for (slice, share) in [(&small_slice, 0.3), (&large_slice, 0.7)] {
            let mut last = Value::Null;
            until("a second was divided by the shards", || {
                last = standing(&site.system, slice);
                let used = last["used_1s_ratio"].as_f64()?;
                ((used - share).abs() < 0.06).then_some(())
            });
            assert_eq!(last["share"], format!("{:.0}%", share * 100.0), "{last}");
        }
    };
    divided();
    site.cluster.ask("scontrol", &["suspend", &large]);
    let process = |job: &str| site.slice_of(job)?["processes"][0]["pid"].as_u64();
    let small_process = process(&small).expect("a process");
    let busy = || {
        let usage = engine_of(&site.system, TIMED, 0);
        let mut processes = usage.processes.iter();
        let own = processes.find(|process| u64::from(process.pid) == small_process);
        (usage.now_ns, own.map_or(0, |process| process.busy_ns))
    };
    let mut from = busy();
    until("the other one has nearly all of the device", || {
        let now = busy();
        let lasted = now.0 - from.0;
        if lasted < 200 * MS {
            return None;
        }
        // A reading counts what runs as if it ran to that moment; what has ended since may have ended before.
        let had = now.1.saturating_sub(from.1);
        from = now;
        (had * 10 > lasted * 8).then_some(())
    });
    site.cluster.ask("scontrol", &["resume", &large]);
    divided();

    // A third that would have more memory than is free waits in Slurm's queue, not on the device.
    let third = site.sbatch(&users.mallory, &["--gres=shard:1"], &hold_memory(&site));
    until("it waits for shards", || {
        (site.state_of(&third) == "PENDING").then_some(())
    });
    assert_eq!(site.job_slices(), 2);
    for job in [&third, &small, &large] {
        site.cluster.ask("scancel", &[job]);
    }
    site.until_no_slice();
}
