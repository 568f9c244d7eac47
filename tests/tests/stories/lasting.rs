//! Lasting slices: one limit over all that is run in them, whichever process dies.

use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};

use divvy_ledger::attach::{Sockets, give};
use divvy_tests::clients::probe;
use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::tenant::Tenant;
use divvy_tests::wait::until;
use divvy_tests::{GIB, MIB, processes};
use rustix::process::Signal;

/// A probe that joins the lasting slice `name`.
fn joined(host: &Host, name: &str) -> Tenant {
    let mut command = host.divvy(["run", "--slice", name, "--"]);
    command.arg(probe());
    Tenant::start(command)
}

fn create(host: &Host, name: &str, memory: &str) {
    succeeded(&finish(
        &mut host.divvy(["slice", "create", name, "--memory", memory]),
    ));
}

/// The process that keeps the slice now.
fn page_server(host: &Host, name: &str) -> u32 {
    let pid = host.json(["inspect", name])["page_server_pid"].as_u64();
    u32::try_from(pid.expect("a page server")).expect("a process id")
}

#[test]
fn several_runs_share_one_limit_and_the_slice_outlives_them() {
    let host = Host::new();
    create(&host, "alice", "1GiB");
    let mut first = joined(&host, "alice");
    let mut second = joined(&host, "alice");
    assert_eq!(first.allocate(600 * MIB), Ok(()));
    assert_eq!(second.allocate(600 * MIB), Err("CUDA_ERROR_OUT_OF_MEMORY".into()));
    assert_eq!(second.allocate(400 * MIB), Ok(()));
    assert_eq!(second.memory(), (24 * MIB, GIB));
    assert_eq!(host.slice("alice").processes.len(), 2);

    // Of one that is killed, everything returns to the other.
    first.signal(Signal::KILL);
    first.wait();
    assert_eq!(second.allocate(500 * MIB), Ok(()));
    assert!(second.end().success());
    until("nothing is held", || {
        (host.slice("alice").memory_used_bytes == 0).then_some(())
    });
    assert_eq!(host.json(["inspect", "alice"])["state"], "idle");
    assert_eq!(joined(&host, "alice").allocate(GIB), Ok(()));
}

#[test]
fn it_survives_the_agent() {
    let host = Host::new();
    create(&host, "alice", "1GiB");
    let mut tenant = joined(&host, "alice");
    assert_eq!(tenant.allocate(700 * MIB), Ok(()));
    let before = page_server(&host, "alice");
    host.kill_agent();

    // A program that joins starts the next agent.
    let mut late = joined(&host, "alice");
    assert_eq!(late.allocate(400 * MIB), Err("CUDA_ERROR_OUT_OF_MEMORY".into()));
    assert_eq!(page_server(&host, "alice"), before, "the page server went on");
    assert_eq!(host.slice("alice").processes.len(), 2);
    // Deleting it would end what runs in it: that has to be said.
    let refused = finish(&mut host.divvy(["slice", "delete", "alice"]));
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("error[D0026]"), "{}", stderr(&refused));
    succeeded(&finish(&mut host.divvy(["slice", "delete", "alice", "--yes"])));
    assert!(host.slices().is_empty());
    until("its page server is gone", || {
        (!processes::is_alive(before)).then_some(())
    });
}

#[test]
fn a_killed_page_server_is_replaced_and_the_running_keep_their_pages() {
    let host = Host::new();
    create(&host, "alice", "1GiB");
    let mut tenant = joined(&host, "alice");
    assert_eq!(tenant.allocate(700 * MIB), Ok(()));
    let first = page_server(&host, "alice");
    processes::signal(first, Signal::KILL);
    until("another page server", || {
        (page_server(&host, "alice") != first).then_some(())
    });

    // The same limit, the same ledger: a newcomer finds what is held.
    let mut late = joined(&host, "alice");
    assert_eq!(late.memory(), (GIB - 700 * MIB, GIB));
    assert_eq!(late.allocate(400 * MIB), Err("CUDA_ERROR_OUT_OF_MEMORY".into()));
    succeeded(&finish(&mut host.divvy(["resize", "alice", "--memory", "2GiB"])));
    assert_eq!(late.allocate(400 * MIB), Ok(()));
    assert_eq!(tenant.allocate(800 * MIB), Ok(()));
}

#[test]
fn with_page_server_and_agent_dead_it_is_whole_again_once_its_programs_have_ended() {
    let host = Host::new();
    create(&host, "alice", "1GiB");
    let mut tenant = joined(&host, "alice");
    assert_eq!(tenant.allocate(700 * MIB), Ok(()));
    let first = page_server(&host, "alice");
    host.kill_agent();
    processes::signal(first, Signal::KILL);
    until("the page server is gone", || {
        (!processes::is_alive(first)).then_some(())
    });

    counted_whole_until_it_ends(&host, tenant);
}

#[test]
fn a_page_server_whose_agent_died_before_it_had_pages_gets_no_others_while_the_old_are_in_use() {
    let host = Host::new();
    create(&host, "alice", "1GiB");
    let mut tenant = joined(&host, "alice");
    assert_eq!(tenant.allocate(700 * MIB), Ok(()));
    let first = page_server(&host, "alice");
    let id = host.json(["inspect", "alice"])["id"].clone();
    let id = id.as_str().expect("an id");
    host.kill_agent();
    processes::signal(first, Signal::KILL);
    // As an agent does that dies before it has handed the pages over.
    let folder = host.run_directory().join("slices").join(id);
    let listen = |name: &str| {
        std::fs::remove_file(folder.join(name)).expect("the dead page server's");
        UnixListener::bind(folder.join(name)).expect("a socket")
    };
    let sockets = Sockets {
        attach: listen("attach.sock"),
        control: listen("control.sock"),
        container: None,
        uid: rustix::process::getuid().as_raw(),
    };
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    give(&ours, &sockets).expect("given");
    drop(sockets);
    let mut page_server = host.divvy(["keep", id]);
    let mut second = page_server
        .stdin(OwnedFd::from(theirs))
        .spawn()
        .expect("a page server");
    counted_whole_until_it_ends(&host, tenant);
    until("it has gone", || second.try_wait().expect("a child"));
}

/// What the program holds is not known: the whole limit is counted, and no program joins until it has ended.
fn counted_whole_until_it_ends(host: &Host, mut tenant: Tenant) {
    assert_eq!(host.json(["inspect", "alice"])["usage_unknown"], true);
    let refused = finish(&mut host.divvy(["run", "--slice", "alice", "--", "true"]));
    assert_eq!(refused.status.code(), Some(125), "{}", stderr(&refused));
    assert!(tenant.copies());
    assert!(tenant.end().success());
    until("it is whole again", || {
        let shown = host.json(["inspect", "alice"]);
        (shown["usage_unknown"].is_null() && shown["state"] == "idle").then_some(())
    });
    assert_eq!(joined(host, "alice").allocate(GIB), Ok(()));
}
