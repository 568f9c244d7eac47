//! The ways of sharing a device: which is in use, what it needs of the driver, and what is put back.

mod common;

use std::path::PathBuf;
use std::process::{Command, Output};

use common::{Host, Tenant, until};

fn create(host: &Host, name: &str, words: &[&str]) -> serde_json::Value {
    host.json(&[&["slice", "create", name, "--memory", "1GiB"], words].concat())
}

fn refused(host: &Host, name: &str, words: &[&str]) -> String {
    host.refused(&[&["slice", "create", name, "--memory", "1GiB"], words].concat())
        .1
}

/// A program in a slice that shares so.
fn idle(host: &Host, name: &str, words: &[&str]) -> Tenant {
    let child = host
        .divvy(
            &[
                &["run", "--name", name, "--memory", "1GiB"],
                words,
                &["--", "sleep", "600"],
            ]
            .concat(),
        )
        .spawn()
        .expect("divvy starts");
    let tenant = Tenant { child };
    until("the slice runs", || {
        let slices = host.slices();
        slices
            .iter()
            .any(|slice| slice["name"] == name && slice["state"] == "running")
    });
    tenant
}

fn row(host: &Host, name: &str) -> String {
    let table = host.text(&["ps"]);
    let row = table.lines().find(|row| row.starts_with(name));
    row.unwrap_or_else(|| panic!("no {name} in {table}")).to_owned()
}

#[test]
fn a_device_is_shared_in_one_way_at_a_time() {
    let host = Host::new();
    create(&host, "turns", &["--share", "timeslice"]);
    let said = refused(&host, "other", &[]);
    assert!(
        said.contains("error[D0039]") && said.contains("is not shared by lease"),
        "{said}"
    );
    assert!(
        said.contains("because: slice turns shares it by timeslice in 4"),
        "{said}"
    );
    assert!(said.contains("divvy explain sharing"), "{said}");
    let said = refused(&host, "other", &["--share", "mps"]);
    assert!(said.contains("error[D0039]"), "{said}");
    // A program that runs past the limiter shares nothing.
    host.text(&["run", "--isolation", "env", "--", "true"]);
    host.text(&["slice", "delete", "turns"]);
    create(&host, "leased", &["--compute", "30%"]);
    let said = refused(&host, "turns", &["--share", "timeslice"]);
    assert!(
        said.contains("because: slice leased shares it by lease"),
        "{said}"
    );
    // Another device may be shared otherwise.
    create(
        &host,
        "turns",
        &["--share", "timeslice", "--device", "emulated:l4"],
    );
}

#[test]
fn so_many_equal_turns_and_no_more() {
    let host = Host::new();
    let words = ["--share", "timeslice", "--replicas", "2", "--time-slice", "long"];
    let output = host.json(&[&["slice", "create", "a"][..], &["--memory", "1GiB"], &words].concat());
    assert_eq!(
        (&output["share_mode"], &output["replicas"]),
        (&"timeslice".into(), &2.into())
    );
    let note = host.run_dir().join("timeslice");
    assert_eq!(
        std::fs::read_dir(&note).expect("noted").count(),
        1,
        "the length was set"
    );
    for words in [&["--replicas", "3"][..], &["--time-slice", "short"]] {
        let said = refused(&host, "b", &[&["--share", "timeslice"], words].concat());
        assert!(said.contains("error[D0039]: the turns of GPU-"), "{said}");
        assert!(
            said.contains("slice a shares it by timeslice in 2, long turns"),
            "{said}"
        );
    }
    // Without a size it gets its part of the memory.
    let tenant = host
        .divvy(&["run", "--share", "timeslice", "--name", "b", "--", "sleep", "600"])
        .spawn()
        .expect("divvy starts");
    let tenant = Tenant { child: tenant };
    until("it runs", || {
        host.slices()
            .iter()
            .any(|slice| slice["name"] == "b" && slice["state"] == "running")
    });
    let total = host.json(&["devices"])["items"][0]["memory_total_bytes"]
        .as_u64()
        .expect("bytes");
    assert_eq!(host.slice("b")["memory_limit_bytes"], total / 2);
    assert!(row(&host, "b").contains(" 1/2 timeslice "), "{}", row(&host, "b"));
    let said = refused(&host, "c", &["--share", "timeslice"]);
    assert!(
        said.contains("error[D0014]: all 2 parts of GPU-") && said.contains("--wait"),
        "{said}"
    );
    let said = refused(&host, "c", &["--share", "timeslice", "--compute", "30%"]);
    assert!(
        said.contains("error[D0038]: the hardware's turns are all equal"),
        "{said}"
    );
    let (_, said) = host.refused(&["resize", "a", "--compute", "30%"]);
    assert!(
        said.contains("error[D0038]: slice a shares its device by timeslice"),
        "{said}"
    );
    drop(tenant);
    host.text(&["slice", "delete", "a"]);
    until("the length is put back", || {
        std::fs::read_dir(&note).expect("there").count() == 0
    });
}

/// What a program in a slice of MPS is told.
fn told(output: &Output) -> Vec<String> {
    let text = String::from_utf8(output.stdout.clone()).expect("text");
    let mut lines: Vec<String> = text
        .lines()
        .filter(|line| line.starts_with("CUDA_MPS"))
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines
}

fn pipe(host: &Host, uuid: &str) -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    host.run_dir().join(format!("mps/user-{uid}/{uuid}/pipe"))
}

#[test]
fn an_mps_daemon_lives_as_long_as_slices_need_it() {
    let host = Host::new();
    let uuid = host.json(&["devices"])["items"][0]["uuid"]
        .as_str()
        .expect("a UUID")
        .to_owned();
    let control = pipe(&host, &uuid).join("control");
    let run = |words: &[&str]| {
        let words = [
            &["run", "--memory", "1GiB", "--share", "mps"],
            words,
            &["--", "env"],
        ]
        .concat();
        host.finish(&words)
    };
    let plan = host.text(&[
        "run",
        "--dry-run",
        "--memory",
        "1GiB",
        "--share",
        "mps",
        "--",
        "true",
    ]);
    assert!(
        plan.contains("sharing      mps: not protected against a fault"),
        "{plan}"
    );
    assert!(!control.exists(), "a dry run starts nothing");
    let first = idle(&host, "first", &["--share", "mps"]);
    assert!(control.exists());
    let output = run(&["--compute", "30%"]);
    let folder = pipe(&host, &uuid);
    let log = folder.with_file_name("log");
    assert_eq!(
        told(&output),
        [
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30".to_owned(),
            format!("CUDA_MPS_LOG_DIRECTORY={}", log.display()),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M".into(),
            format!("CUDA_MPS_PIPE_DIRECTORY={}", folder.display()),
        ]
    );
    let said = refused(
        &host,
        "x",
        &["--share", "mps", "--compute", "30%", "--cap", "hard"],
    );
    assert!(
        said.contains("error[D0039]: under MPS") && said.contains("--cap hard"),
        "{said}"
    );
    for words in [&["--class", "latency", "--compute", "5%"][..], &["--weight", "5"]] {
        let said = refused(&host, "x", &[&["--share", "mps"], words].concat());
        assert!(
            said.contains("error[D0038]: no slice goes first under mps"),
            "{said}"
        );
    }
    // An agent that comes after one that died finds the daemon in use, and later ends it.
    host.kill_agent();
    assert!(row(&host, "first").contains(" mps "), "{}", row(&host, "first"));
    assert!(control.exists());
    drop(first);
    until("the daemon has ended", || !control.exists());
    until("nothing is left of it", || {
        host.slices().is_empty() && !folder.exists()
    });
}

#[test]
fn multiprocessors_are_set_apart_and_given_back() {
    let host = Host::new();
    let uuid = host.json(&["devices"])["items"][0]["uuid"]
        .as_str()
        .expect("a UUID")
        .to_owned();
    let partitions = pipe(&host, &uuid).join("partitions");
    let hard = ["--share", "mps", "--cap", "hard", "--compute"];
    let made = create(&host, "keeps", &[&hard[..], &["50%"]].concat());
    assert_eq!(made["mps_partition"], format!("{uuid}/0"));
    // 132 multiprocessors: eight chunks of eight for 50 %, four for 25 %.
    let held = || std::fs::read_to_string(&partitions).unwrap_or_default();
    assert_eq!(held(), format!("{uuid}/0 8\n"));
    let output = host.finish(&[&["run", "--memory", "1GiB"], &hard[..], &["25%", "--", "env"]].concat());
    let lines = told(&output);
    assert!(
        lines.contains(&format!("CUDA_MPS_SM_PARTITION={uuid}/1")),
        "{lines:?}"
    );
    assert!(lines.iter().all(|line| !line.contains("PERCENTAGE")), "{lines:?}");
    until("its part is given back", || held() == format!("{uuid}/0 8\n"));
    let said = refused(&host, "x", &[&hard[..], &["51%"]].concat());
    assert!(
        said.contains("error[D0037]") && said.contains("50% is free"),
        "{said}"
    );
    host.text(&["slice", "delete", "keeps"]);
    until("the daemon has ended", || !partitions.exists());
}

#[test]
fn a_slice_that_cannot_be_had_leaves_nothing() {
    let host = Host::new();
    host.text(&["slice", "create", "first", "--memory", "1GiB"]);
    host.text(&["slice", "delete", "first"]);
    // Something is where the daemon's folder is to be.
    std::fs::write(host.run_dir().join("mps"), "").expect("written");
    let said = refused(&host, "a", &["--share", "mps"]);
    assert!(said.contains("error[D0040]"), "{said}");
    let (status, said) = host.refused(&["run", "--memory", "1GiB", "--share", "mps", "--", "true"]);
    assert_eq!((status, said.contains("error[D0040]")), (125, true), "{said}");
    assert!(host.slices().is_empty(), "and it is free for others");
    std::fs::remove_file(host.run_dir().join("mps")).expect("removed");
    create(&host, "a", &["--share", "mps"]);
}

#[test]
fn an_instance_has_to_be_there() {
    let host = Host::new();
    let said = refused(&host, "a", &["--share", "mig"]);
    assert!(
        said.contains("error[D0084]: there is no MIG instance of 1 GiB here"),
        "{said}"
    );
    assert!(said.contains("divvy gpu mig apply"), "{said}");
    let said = refused(
        &host,
        "a",
        &["--share", "mig", "--compute", "30%", "--cap", "hard"],
    );
    assert!(said.contains("error[D0038]: an instance is a hard cap"), "{said}");
    for words in [
        &["--replicas", "3"][..],
        &["--share", "mps", "--time-slice", "long"],
    ] {
        let said = refused(&host, "a", words);
        assert!(
            said.contains("error[D0038]") && said.contains("--share timeslice"),
            "{said}"
        );
    }
    let said = refused(&host, "a", &["--share", "timeshare"]);
    assert!(
        said.contains("error[D0001]") && said.contains("lease, timeslice, mps or mig"),
        "{said}"
    );
}

#[test]
fn each_slice_has_an_instance_of_its_own() {
    let host = Host::new();
    let instances = "3g.40gb,1g.10gb,1g.10gb";
    host.text(&["mig", "apply", "--device", "0", "--instances", instances, "--yes"]);
    let profile = |slice: &serde_json::Value| {
        let devices = host.json(&["devices"]);
        let items = devices["items"].as_array().expect("items");
        let device = items.iter().find(|device| device["uuid"] == slice["device_uuid"]);
        let place = &device.expect("its device")["hardware"]["mig_instance"];
        place["profile"].as_str().expect("a profile").to_owned()
    };
    let small = create(&host, "small", &["--share", "mig"]);
    assert_eq!(profile(&small), "1g.10gb", "the smallest that fits");
    // Three of eight parts of the multiprocessors, and more memory than the small ones have.
    let large = create(&host, "large", &["--share", "mig", "--compute", "40%"]);
    assert_eq!(profile(&large), "3g.40gb");
    let said = refused(&host, "x", &["--share", "mig", "--compute", "40%"]);
    assert!(
        said.contains("error[D0039]: instance MIG-") && said.contains("slice large shares it by mig"),
        "{said}"
    );
    let (_, said) = host.refused(&["slice", "create", "x", "--memory", "60GiB", "--share", "mig"]);
    assert!(
        said.contains("error[D0084]: there is no MIG instance of 60 GiB"),
        "{said}"
    );
    // A taken instance is shared with no other; a free one may be shared in turn.
    let uuid = small["device_uuid"].as_str().expect("a UUID");
    let said = refused(&host, "x", &["--device", uuid]);
    assert!(said.contains("error[D0039]"), "{said}");
    create(&host, "other", &["--share", "mig"]);
    assert!(row(&host, "small").contains(" mig "), "{}", row(&host, "small"));
    host.text(&["slice", "delete", "large"]);
    create(&host, "again", &["--share", "mig", "--compute", "40%"]);
}

#[test]
fn the_ways_are_explained() {
    let output = Command::new(common::divvy())
        .args(["explain", "sharing"])
        .output()
        .expect("divvy starts");
    insta::assert_snapshot!("sharing", String::from_utf8(output.stdout).expect("text"));
    let host = Host::new();
    let list = host.json(&["explain", "sharing"]);
    assert_eq!(
        (&list["kind"], &list["items"][2]["mode"]),
        (&"SharingModeList".into(), &"mps".into())
    );
}
