//! The agent dies and comes back; the limits never go away.

use divvy_tests::host::{Host, finish, succeeded};
use divvy_tests::{GIB, MIB};

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
