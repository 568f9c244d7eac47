//! Slices of several devices: each device's limit is its own, whatever order the program sees them in.

use divvy_tests::build::binaries;
use divvy_tests::clients::probe;
use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::processes;
use divvy_tests::tenant::Tenant;
use divvy_tests::wait::until;
use divvy_tests::{GIB, MIB};
use rustix::process::Signal;
use serde_json::Value;

/// UUIDs of the host's devices, by index.
fn uuids(host: &Host) -> Vec<String> {
    let list = host.json(["devices"]);
    let items = list["items"].as_array().expect("devices");
    let uuid = |device: &Value| device["uuid"].as_str().expect("a uuid").to_owned();
    items.iter().map(uuid).collect()
}

/// What a slice holds of each of its devices, in order.
fn used(host: &Host, slice: &str) -> Vec<u64> {
    let shown = host.json(["inspect", slice]);
    let shares = shown["devices"].as_array().expect("devices");
    let used = |share: &Value| share["memory_used_bytes"].as_u64().expect("bytes");
    shares.iter().map(used).collect()
}

/// A probe in a slice of 1 GiB of devices 0 and 1, which sees the devices as `order` has them.
fn probe_in_both(host: &Host, order: &str) -> Tenant {
    let mut command = host.divvy([
        "run", "--name", "both", "--memory", "1GiB", "--device", "0,1", "--",
    ]);
    command
        .arg("env")
        .arg(format!("CUDA_VISIBLE_DEVICES={order}"))
        .arg(probe());
    Tenant::start(command)
}

#[test]
fn each_devices_limit_is_its_own_in_either_order() {
    let host = Host::with_devices("h100*3");
    for (order, first) in [("0,1,2", 0), ("1,0,2", 1)] {
        let mut tenant = probe_in_both(&host, order);
        assert_eq!(tenant.memory().1, GIB);
        assert_eq!(tenant.allocate(900 * MIB), Ok(()));
        assert!(tenant.allocate(200 * MIB).is_err());
        let mut held = vec![0, 0];
        held[first] = 900 * MIB;
        assert_eq!(used(&host, "both"), held, "under {order}");
        assert_eq!(tenant.use_device(1), Ok(()));
        assert_eq!(tenant.memory().1, GIB);
        assert_eq!(tenant.allocate(700 * MIB), Ok(()));
        assert!(tenant.allocate(400 * MIB).is_err());
        held[1 - first] = 700 * MIB;
        assert_eq!(used(&host, "both"), held, "under {order}");
        assert!(tenant.copies());
        // The third is in no slice.
        let refused = tenant.use_device(2).expect_err("no share of it");
        assert!(refused.contains("INVALID_DEVICE"), "{refused}");
        assert!(tenant.end().success());
        until("the slice is gone", || host.slices().is_empty().then_some(()));
    }
}

#[test]
fn a_program_sees_its_devices_in_the_order_asked_for() {
    let host = Host::with_devices("h100*3");
    let uuids = uuids(&host);
    let shown = |devices: &[&str]| {
        let mut command = host.divvy(["run", "--memory", "25%"]);
        command
            .args(devices)
            .args(["--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]);
        succeeded(&finish(&mut command))
    };
    assert_eq!(
        shown(&["--device", "2,0"]),
        format!("{},{}\n", uuids[2], uuids[0])
    );
    assert_eq!(
        shown(&["--device", &uuids[1], "--device", "0"]),
        format!("{},{}\n", uuids[1], uuids[0])
    );
    assert_eq!(
        shown(&["--device", "emulated:h100,emulated:h100"]),
        format!("{},{}\n", uuids[0], uuids[1])
    );
}

#[test]
fn all_are_given_or_none() {
    let host = Host::with_devices("h100*2");
    let mut second = host.divvy([
        "run", "--name", "second", "--memory", "60GiB", "--device", "1", "--",
    ]);
    second.arg(probe());
    let second = Tenant::start(second);
    for devices in ["0,1", "1,0"] {
        let words = ["run", "--memory", "40GiB", "--device", devices, "--", "true"];
        let refused = finish(&mut host.divvy(words));
        let said = stderr(&refused);
        assert!(
            said.contains("error[D0012]") && said.contains("slice second holds 60 GiB"),
            "{said}"
        );
        let whole = finish(&mut host.divvy(["run", "--whole", "--device", devices, "--", "true"]));
        assert!(
            stderr(&whole).contains("cannot be had whole"),
            "{}",
            stderr(&whole)
        );
    }
    // Nothing of the first was kept.
    let words = ["run", "--memory", "79GiB", "--device", "0", "--", "true"];
    succeeded(&finish(&mut host.divvy(words)));

    // Two that want the same two, named the other way round, stand in one line and both get them.
    let waiting: Vec<_> = ["0,1", "1,0"]
        .map(|devices| {
            let words = [
                "run", "--wait", "--memory", "70GiB", "--device", devices, "--", "true",
            ];
            host.divvy(words).spawn().expect("divvy starts")
        })
        .into();
    assert!(second.end().success());
    for mut run in waiting {
        let status = until("it had its turn", || {
            run.try_wait().expect("a child can be waited for")
        });
        assert!(status.success());
    }
    // And whole ones: no limiter, and what is used is what the devices tell.
    let mut command = host.divvy(["run", "--name", "solo", "--whole", "--device", "0,1", "--"]);
    command.arg(probe());
    let mut solo = Tenant::start(command);
    assert_eq!(solo.use_device(1), Ok(()));
    assert_eq!(solo.allocate(GIB), Ok(()));
    let held = used(&host, "solo");
    assert!(held[0] < GIB && held[1] >= GIB, "{held:?}");
    for device in ["0", "1"] {
        let words = ["run", "--memory", "1GiB", "--device", device, "--", "true"];
        let said = stderr(&finish(&mut host.divvy(words)));
        assert!(said.contains("slice solo holds the whole device"), "{said}");
    }
    assert!(solo.end().success());
}

#[test]
fn what_cannot_be_one_slice_is_refused() {
    let host = Host::with_devices("h100*2");
    for (devices, what) in [
        ("0,0", "asked for twice"),
        ("0,emulated:l4", "no driver in common"),
        ("emulated:h100,emulated:h100,emulated:h100", "asked for twice"),
    ] {
        let words = ["run", "--memory", "1GiB", "--device", devices, "--", "true"];
        let said = stderr(&finish(&mut host.divvy(words)));
        assert!(
            said.contains("error[D0034]") && said.contains(what),
            "{devices}: {said}"
        );
    }
    let words = ["run", "--memory", "1GiB", "--device", "0,7", "--", "true"];
    assert!(stderr(&finish(&mut host.divvy(words))).contains("error[D0011]"));
    assert!(host.slices().is_empty());
}

#[test]
fn a_killed_program_gives_both_back_and_an_agents_death_takes_neither() {
    let host = Host::with_devices("h100*2");
    let mut tenant = probe_in_both(&host, "0,1");
    assert_eq!(tenant.allocate(600 * MIB), Ok(()));
    assert_eq!(tenant.use_device(1), Ok(()));
    assert_eq!(tenant.allocate(500 * MIB), Ok(()));
    let before = host.json(["inspect", "both"]);

    host.kill_agent();
    assert!(
        tenant.allocate(600 * MIB).is_err(),
        "the limits hold without an agent"
    );
    let after = host.json(["inspect", "both"]);
    for place in 0..2 {
        let of = |shown: &Value| shown["devices"][place]["memory_used_bytes"].clone();
        assert_eq!(of(&after), of(&before), "{after}");
    }
    assert_eq!(after["devices"][1]["refused_allocations"], 1);
    assert_eq!(after["usage_unknown"], Value::Null, "{after}");
    // The new agent's grants are the ones that count now, on both.
    succeeded(&finish(&mut host.divvy(["resize", "both", "--memory", "2GiB"])));
    assert_eq!(tenant.allocate(GIB), Ok(()));
    assert_eq!(tenant.use_device(0), Ok(()));
    assert_eq!(tenant.allocate(GIB), Ok(()));
    assert!(tenant.allocate(500 * MIB).is_err());
    assert_eq!(used(&host, "both"), [600 * MIB + GIB, 500 * MIB + GIB]);

    tenant.signal(Signal::KILL);
    until("the slice is gone", || host.slices().is_empty().then_some(()));
    let words = ["run", "--memory", "79GiB", "--device", "0,1", "--", "true"];
    succeeded(&finish(&mut host.divvy(words)));
}

#[test]
fn a_lasting_slice_of_two_outlives_its_page_server_and_its_agent() {
    let host = Host::with_devices("h100*2");
    let words = ["slice", "create", "pair", "--memory", "1GiB", "--device", "0,1"];
    let said = succeeded(&finish(&mut host.divvy(words)));
    assert_eq!(said.matches("1 GiB of ").count(), 2, "{said}");
    let mut command = host.divvy(["run", "--slice", "pair", "--"]);
    command.arg(probe());
    let mut tenant = Tenant::start(command);
    assert_eq!(tenant.use_device(1), Ok(()));
    assert_eq!(tenant.allocate(800 * MIB), Ok(()));

    let page_server = || {
        let shown = host.json(["inspect", "pair"]);
        u32::try_from(shown["page_server_pid"].as_u64().expect("a page server")).expect("a process id")
    };
    let first = page_server();
    processes::signal(first, Signal::KILL);
    until("another page server", || (page_server() != first).then_some(()));
    // It hands out the same pages, of both devices.
    let mut command = host.divvy(["run", "--slice", "pair", "--"]);
    command.arg(probe());
    let mut late = Tenant::start(command);
    assert_eq!(late.use_device(1), Ok(()));
    assert!(late.allocate(300 * MIB).is_err(), "the other holds 800 MiB");
    assert_eq!(used(&host, "pair"), [0, 800 * MIB]);
    assert!(late.end().success());

    processes::signal(page_server(), Signal::KILL);
    host.kill_agent();
    // Both are gone: what the program holds is not known, and all of both shares is counted.
    let shown = host.json(["inspect", "pair"]);
    assert_eq!(shown["usage_unknown"], true, "{shown}");
    assert_eq!(used(&host, "pair"), [GIB, GIB]);
    assert!(tenant.end().success());
    let mut again = None;
    until("it has pages and a page server again", || {
        let mut command = host.divvy(["run", "--slice", "pair", "--", "true"]);
        let output = finish(&mut command);
        again = Some(stderr(&output));
        output.status.success().then_some(())
    });
    assert_eq!(used(&host, "pair"), [0, 0], "{again:?}");
    succeeded(&finish(&mut host.divvy(["slice", "delete", "pair"])));
}

#[test]
fn a_run_inside_takes_from_the_device_it_names() {
    let host = Host::with_devices("h100*2");
    let uuids = uuids(&host);
    let divvy = binaries().join("divvy");
    let inside = |flags: &str| {
        let script =
            format!("\"$0\" run --name inner --memory 600MiB {flags} -- \"$0\" inspect -o json inner");
        let mut command = host.divvy([
            "run", "--name", "outer", "--memory", "1GiB", "--device", "0,1", "--",
        ]);
        command.args(["sh", "-c", &script]).arg(&divvy);
        finish(&mut command)
    };
    for (flags, devices) in [
        ("", vec![&uuids[0]]),
        ("--device 1", vec![&uuids[1]]),
        ("--device 1,0", vec![&uuids[1], &uuids[0]]),
    ] {
        let shown: Value = serde_json::from_str(&succeeded(&inside(flags))).expect("JSON");
        let shares = shown["devices"].as_array().expect("devices");
        let of: Vec<&str> = shares
            .iter()
            .filter_map(|share| share["device_uuid"].as_str())
            .collect();
        assert_eq!(of, devices, "{flags}: {shown}");
        until("the slices are gone", || host.slices().is_empty().then_some(()));
    }
    let refused = inside("--memory 600MiB --whole");
    assert!(!refused.status.success());
}
