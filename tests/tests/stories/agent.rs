//! The agent dies and comes back; the limits never go away.

use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::wait::until;
use divvy_tests::{GIB, MIB, processes};
use rustix::process::Signal;

#[test]
fn limits_hold_without_the_agent_and_a_new_one_adopts_the_slice() {
    let host = Host::new();
    let mut tenant = host.probe("steady", "1GiB");
    assert_eq!(tenant.allocate(300 * MIB), Ok(()));
    let before = host.slice("steady");
    host.kill_agent();

    assert!(tenant.allocate(800 * MIB).is_err());
    assert_eq!(tenant.allocate(300 * MIB), Ok(()));
    assert_eq!(tenant.memory(), (GIB - 600 * MIB, GIB));
    assert!(tenant.copies());

    // Memory that the copies freed in stream order comes back when the tenant looks.
    until("what the copies freed is back", || {
        (tenant.memory() == (GIB - 600 * MIB, GIB)).then_some(())
    });

    // The next run starts an agent, which finds the slice as it is.
    succeeded(&finish(&mut host.run("1GiB", "true")));
    let after = host.slice("steady");
    assert_eq!(after.memory_used_bytes, 600 * MIB);
    assert_eq!(after.memory_limit_bytes, GIB);
    assert_eq!(after.device_uuid, before.device_uuid);
    assert_eq!(after.processes.len(), 1);

    succeeded(&finish(&mut host.divvy(["resize", "steady", "--memory", "2GiB"])));
    assert_eq!(tenant.allocate(GIB), Ok(()));
    // It still counts as a promise: the device has 80 GiB.
    let refused = finish(&mut host.run("79GiB", "true"));
    assert_eq!(refused.status.code(), Some(125));
}

#[test]
fn a_child_that_starts_while_the_agent_is_down_stands_under_the_same_limit() {
    let host = Host::new();
    let mut tenant = host.probe("parent", "1GiB");
    assert_eq!(tenant.allocate(600 * MIB), Ok(()));
    host.kill_agent();

    tenant.start_children(1);
    let answers = tenant.ask_children(&format!("allocate {}", 600 * MIB));
    assert_eq!(answers[0]["error"], "CUDA_ERROR_OUT_OF_MEMORY");
    let answers = tenant.ask_children(&format!("allocate {}", 300 * MIB));
    assert!(answers[0]["error"].is_null(), "{answers:?}");
    assert_eq!(tenant.memory(), (GIB - 900 * MIB, GIB));
}

#[test]
fn two_first_tenants_start_one_agent() {
    let host = Host::new();
    let runs: Vec<_> = (0..6)
        .map(|_| host.run("1GiB", "sleep").arg("1").spawn().expect("divvy starts"))
        .collect();
    for mut run in runs {
        assert!(run.wait().expect("divvy ends").success());
    }
    assert_eq!(host.agents().len(), 1);
}

#[test]
fn a_slice_whose_page_server_and_agent_are_both_killed_is_counted_until_its_program_ends() {
    let host = Host::new();
    let mut tenant = host.probe("lost", "2GiB");
    assert_eq!(tenant.allocate(500 * MIB), Ok(()));
    let page_server = tenant.page_server();
    processes::signal(page_server, Signal::KILL);
    until("the page server is gone", || {
        (!processes::is_alive(page_server)).then_some(())
    });
    host.kill_agent();

    // Two agents in a row, since each stores what it found.
    for _ in 0..2 {
        let shown = host.json(["inspect", "lost"]);
        assert_eq!(shown["state"], "orphaned", "{shown}");
        assert_eq!(shown["usage_unknown"], true, "{shown}");
        assert_eq!(shown["memory_used_bytes"], 2 * GIB, "{shown}");
        assert_eq!(shown["processes"][0]["pid"], tenant.pid(), "{shown}");
        let warning = shown["warnings"][0].as_str().expect("a warning");
        assert!(warning.contains("pages are lost"), "{warning}");
        let refused = finish(&mut host.run("79GiB", "true"));
        assert_eq!(refused.status.code(), Some(125), "its limit is still promised");
        let refused = finish(&mut host.divvy(["resize", "lost", "--memory", "3GiB"]));
        assert!(stderr(&refused).contains("D0024"), "{}", stderr(&refused));
        host.kill_agent();
    }
    assert!(tenant.copies());

    tenant.signal(Signal::KILL);
    until("the slice is gone", || host.slices().is_empty().then_some(()));
    succeeded(&finish(&mut host.run("79GiB", "true")));
}

#[test]
fn a_page_server_that_was_stopped_gives_its_slice_back_later() {
    let host = Host::new();
    let mut tenant = host.probe("slow", "2GiB");
    assert_eq!(tenant.allocate(500 * MIB), Ok(()));
    processes::signal(tenant.page_server(), Signal::STOP);
    host.kill_agent();

    let shown = host.json(["inspect", "slow"]);
    assert_eq!(shown["usage_unknown"], true, "{shown}");
    assert_eq!(shown["memory_used_bytes"], 2 * GIB, "{shown}");
    let table = succeeded(&finish(&mut host.divvy(["ps"])));
    assert!(!table.contains("0 B") && table.contains("2 GiB"), "{table}");
    let refused = finish(&mut host.divvy(["resize", "slow", "--memory", "3GiB"]));
    assert!(stderr(&refused).contains("keeps it"), "{}", stderr(&refused));

    processes::signal(tenant.page_server(), Signal::CONT);
    host.until_used("slow", 500 * MIB);
    let shown = host.json(["inspect", "slow"]);
    assert!(
        shown["warnings"].is_null() && shown["usage_unknown"].is_null(),
        "{shown}"
    );
    succeeded(&finish(&mut host.divvy(["resize", "slow", "--memory", "3GiB"])));
    assert_eq!(tenant.allocate(2 * GIB), Ok(()));
    assert!(tenant.end().success());
}

#[test]
fn devices_in_use_are_seen_without_an_agent() {
    let host = Host::new();
    let mut tenant = host.probe("seen", "1GiB");
    assert_eq!(tenant.allocate(300 * MIB), Ok(()));
    host.kill_agent();
    let devices = host.json(["devices"]);
    assert_eq!(devices["items"][0]["memory_used_bytes"], 300 * MIB, "{devices}");
    assert!(host.agents().is_empty(), "none is started for a look");
}

#[test]
fn what_a_slice_holds_above_a_lowered_limit_is_not_promised_again() {
    let host = Host::new();
    let mut tenant = host.probe("lowered", "70GiB");
    assert_eq!(tenant.allocate(GIB), Ok(()));
    succeeded(&finish(
        &mut host.divvy(["resize", "lowered", "--memory", "64MiB"]),
    ));
    // Of the device's 79.6 GiB all but 64 MiB would be free by the limits alone.
    let refused = finish(&mut host.run("79GiB", "true"));
    assert_eq!(refused.status.code(), Some(125));
    tenant.free();
    succeeded(&finish(&mut host.run("79GiB", "true")));
}
