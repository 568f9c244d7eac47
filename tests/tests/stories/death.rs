//! Processes that die at bad moments.

use divvy_tests::MIB;
use divvy_tests::clients::rust_client;
use divvy_tests::host::{Host, finish, succeeded};
use divvy_tests::processes;
use divvy_tests::wait::until;
use rustix::process::Signal;

#[test]
fn a_killed_process_gives_its_memory_back_to_the_slice() {
    let host = Host::new();
    let mut tenant = host.probe("family", "1GiB");
    let children = tenant.start_children(2);
    let answers = tenant.ask_children(&format!("allocate {}", 400 * MIB));
    assert!(
        answers.iter().all(|answer| answer["error"].is_null()),
        "{answers:?}"
    );
    assert_eq!(host.slice("family").memory_used_bytes, 800 * MIB);
    assert!(tenant.allocate(400 * MIB).is_err());

    processes::signal(children[0], Signal::KILL);
    host.until_used("family", 400 * MIB);
    let listed: Vec<u32> = host
        .slice("family")
        .processes
        .iter()
        .map(|process| process.pid)
        .collect();
    assert!(
        !listed.contains(&children[0]) && listed.contains(&children[1]),
        "{listed:?}"
    );
    // The survivors may have what the dead one held.
    until("the memory can be had again", || tenant.allocate(500 * MIB).ok());
    assert!(tenant.copies());
}

#[test]
fn a_slice_ends_with_its_killed_program() {
    let host = Host::new();
    let mut tenant = host.probe("doomed", "1GiB");
    assert_eq!(tenant.allocate(500 * MIB), Ok(()));
    tenant.signal(Signal::KILL);
    // As docker: 128 and the signal's number.
    assert_eq!(tenant.wait().code(), Some(137));
    until("the slice is gone", || host.slices().is_empty().then_some(()));
}

#[test]
fn divvy_kill_ends_a_slice_and_its_programs() {
    let host = Host::new();
    let mut tenant = host.probe("unwanted", "1GiB");
    let bystander = host.probe("bystander", "1GiB");
    let children = tenant.start_children(1);
    succeeded(&finish(&mut host.divvy(["kill", "unwanted", "--yes"])));
    until("its processes are gone", || {
        (!processes::is_alive(tenant.pid()) && !processes::is_alive(children[0])).then_some(())
    });
    until("the slice is gone", || {
        let slices = host.slices();
        (slices.len() == 1 && slices[0].name == "bystander").then_some(())
    });
    assert!(!tenant.wait().success());
    assert!(bystander.end().success());
}

#[test]
fn a_program_that_exits_in_the_middle_leaves_nothing_behind() {
    let host = Host::new();
    let mut tenant = host.probe("hasty", "1GiB");
    assert_eq!(tenant.allocate(500 * MIB), Ok(()));
    tenant.tell("exit 3");
    assert_eq!(tenant.wait().code(), Some(3));
    until("the slice is gone", || host.slices().is_empty().then_some(()));
    let mut next = host.probe("next", "1GiB");
    assert_eq!(next.memory().0, 1024 * MIB);
}

#[test]
fn a_daemon_that_outlives_its_run_keeps_the_slice_until_it_ends() {
    let host = Host::new();
    let script = "setsid \"$0\" --job saxpy --allocate 500MiB --hold 600 >/dev/null 2>&1 & sleep 1";
    let mut command = host.divvy([
        "run", "--name", "daemon", "--memory", "1GiB", "--", "sh", "-c", script,
    ]);
    command.arg(rust_client());
    succeeded(&finish(&mut command));

    host.until_used("daemon", 500 * MIB);
    let slice = host.slice("daemon");
    assert_eq!(slice.processes.len(), 1);
    processes::signal(slice.processes[0].pid, Signal::KILL);
    until("the slice is gone", || host.slices().is_empty().then_some(()));
}
