//! The attach protocol, all three parties in one process: agent, keeper, tenant.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use divvy_ledger::attach::wire::{Reply, Request, Status};
use divvy_ledger::attach::{self, AttachError, Keeper, Pages};
use divvy_ledger::{GrantSpec, PAGE_ABI_VERSION, ReserveError};

const MIB: u64 = 1 << 20;

/// A keeper that serves until the test ends.
struct Served {
    _dir: tempfile::TempDir,
    path: PathBuf,
    keeper: Arc<Keeper>,
}

fn serve() -> Served {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("attach.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    let keeper = Arc::new(Keeper::new(rustix::process::geteuid().as_raw()));
    let serving = Arc::clone(&keeper);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _outcome = serving.serve(&stream);
        }
    });
    Served {
        _dir: dir,
        path,
        keeper,
    }
}

fn spec(limit: u64) -> GrantSpec<'static> {
    GrantSpec {
        memory_limit_bytes: limit,
        device_uuid: *b"0123456789abcdef",
        slice_id: "s-7",
        slice_name: "training of Łukasz",
    }
}

fn delivered(limit: u64) -> (Served, Pages) {
    let served = serve();
    let pages = Pages::create(&spec(limit)).expect("pages");
    attach::deliver(&served.path, &pages).expect("delivery");
    (served, pages)
}

#[test]
fn a_tenant_sees_its_grant_and_charges_its_ledger() {
    let (served, pages) = delivered(100 * MIB);
    let tenant = attach::connect(&served.path).expect("attach");
    assert_eq!(tenant.memory_limit_bytes(), 100 * MIB);
    assert_eq!(tenant.grant().slice_id().as_str(), "s-7");
    assert_eq!(tenant.grant().slice_name().as_str(), "training of Łukasz");
    assert_eq!(tenant.grant().device_uuid(), *b"0123456789abcdef");

    tenant.reserve(60 * MIB).expect("it fits");
    assert_eq!(pages.ledger.total_used(), 60 * MIB);
    assert_eq!(
        tenant.reserve(41 * MIB),
        Err(ReserveError::Refused {
            limit_bytes: 100 * MIB,
            used_bytes: 60 * MIB
        })
    );
    let processes: Vec<_> = pages.ledger.processes().collect();
    assert_eq!(processes.len(), 1);
    assert_eq!(processes[0].pid, std::process::id());
    assert_eq!(processes[0].host_pid, std::process::id());
    assert_eq!(processes[0].used_bytes, 60 * MIB);
    assert!(processes[0].alive);

    tenant.release(60 * MIB).expect("release");
    assert_eq!(pages.ledger.total_used(), 0);
}

#[test]
fn a_dropped_place_is_reaped_with_its_bytes() {
    let (served, pages) = delivered(100 * MIB);
    let tenant = attach::connect(&served.path).expect("attach");
    tenant.reserve(60 * MIB).expect("it fits");
    drop(tenant);
    assert_eq!(pages.ledger.total_used(), 60 * MIB);
    assert!(pages.ledger.processes().all(|process| !process.alive));

    // A tenant that runs short has the dead reaped before it is refused.
    let other = attach::connect(&served.path).expect("attach");
    other.reserve(100 * MIB).expect("the dead one's bytes are back");
    drop(other);
    let reaped = pages.ledger.reap().expect("reap");
    assert_eq!((reaped.processes, reaped.bytes), (1, 100 * MIB));
    assert_eq!(pages.ledger.total_used(), 0);
    assert_eq!(pages.ledger.processes().count(), 0);
}

#[test]
fn a_limit_below_use_refuses_until_use_has_fallen() {
    let (served, pages) = delivered(100 * MIB);
    let tenant = attach::connect(&served.path).expect("attach");
    tenant.reserve(50 * MIB).expect("it fits");
    tenant.reserve(40 * MIB).expect("it fits");
    let before = tenant.grant().sequence();
    pages.grant.set_memory_limit_bytes(60 * MIB);
    assert_ne!(
        tenant.grant().wait(before, std::time::Duration::from_secs(5)),
        before
    );
    assert!(
        matches!(tenant.reserve(1), Err(ReserveError::Refused { limit_bytes, .. }) if limit_bytes == 60 * MIB)
    );
    tenant.release(40 * MIB).expect("release");
    tenant.reserve(10 * MIB).expect("it fits again");
    assert!(tenant.reserve(1).is_err());
}

#[test]
fn a_restarted_agent_adopts_and_tenants_follow() {
    let (served, pages) = delivered(100 * MIB);
    let tenant = attach::connect(&served.path).expect("attach");
    tenant.reserve(30 * MIB).expect("it fits");
    drop(pages); // The agent dies. The keeper serves on.
    let late = attach::connect(&served.path).expect("attach without an agent");
    late.reserve(5 * MIB).expect("it fits");

    let recalled = attach::recall(&served.path).expect("recall");
    assert_eq!(recalled.keeper_pid, std::process::id());
    assert_eq!(recalled.grant.slice_id().as_str(), "s-7");
    assert_eq!(recalled.ledger.total_used(), 35 * MIB);
    let pages = recalled.adopt().expect("adopt");
    assert_eq!(pages.grant.generation(), 2);
    pages.grant.set_memory_limit_bytes(40 * MIB);
    assert_eq!(tenant.memory_limit_bytes(), 100 * MIB, "not told yet");
    attach::deliver(&served.path, &pages).expect("delivery");
    tenant.reserve(5 * MIB).expect("it fits the new limit");
    assert!(
        matches!(tenant.reserve(1), Err(ReserveError::Refused { limit_bytes, .. }) if limit_bytes == 40 * MIB)
    );
    assert_eq!(tenant.memory_limit_bytes(), 40 * MIB);

    // An older grant does not replace a newer one.
    let stale = Pages::create(&spec(1 << 40)).expect("pages");
    assert_eq!(
        attach::deliver(&served.path, &stale),
        Err(AttachError::Declined(Status::Unfit))
    );
}

#[test]
fn a_keeper_without_pages_says_so() {
    let served = serve();
    assert!(!served.keeper.has_pages());
    assert_eq!(
        attach::connect(&served.path).err(),
        Some(AttachError::Declined(Status::NoPages))
    );
    assert_eq!(
        attach::recall(&served.path).err(),
        Some(AttachError::Declined(Status::NoPages))
    );
}

#[test]
fn nobody_listening_is_the_systems_answer() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = attach::connect(&dir.path().join("attach.sock"));
    assert!(matches!(
        missing,
        Err(AttachError::System {
            errno: rustix::io::Errno::NOENT,
            ..
        })
    ));
    let long = attach::connect(&dir.path().join("x".repeat(120)));
    assert!(matches!(
        long,
        Err(AttachError::System {
            errno: rustix::io::Errno::NAMETOOLONG,
            ..
        })
    ));
    let path = dir.path().join("dead.sock");
    drop(UnixListener::bind(&path).expect("a socket"));
    assert!(matches!(
        attach::connect(&path),
        Err(AttachError::System {
            errno: rustix::io::Errno::CONNREFUSED,
            ..
        })
    ));
}

#[test]
fn another_version_is_refused_and_both_are_named() {
    use std::io::{Read, Write};
    // A keeper of the future.
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("attach.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a tenant");
        let mut request = [0; 32];
        stream.read_exact(&mut request).expect("its request");
        let mut reply = Reply {
            status: Status::Done,
            pid: 1,
        }
        .encode();
        reply[8..12].copy_from_slice(&7_u32.to_ne_bytes());
        stream.write_all(&reply).expect("the reply");
    });
    let error = attach::connect(&path).expect_err("refused");
    assert_eq!(
        error,
        AttachError::Version {
            ours: PAGE_ABI_VERSION,
            theirs: 7
        }
    );
    let text = error.to_string();
    assert!(text.contains("version 1") && text.contains("version 7"), "{text}");
    server.join().expect("served");

    // A tenant of the future.
    let (served, _pages) = delivered(MIB);
    let mut stream = std::os::unix::net::UnixStream::connect(&served.path).expect("a keeper");
    let mut request = Request {
        kind: attach::wire::Kind::Attach,
        pid: 1,
    }
    .encode();
    request[8..12].copy_from_slice(&7_u32.to_ne_bytes());
    stream.write_all(&request).expect("a request");
    let mut reply = [0; 32];
    stream.read_exact(&mut reply).expect("a reply");
    assert_eq!(
        Reply::decode(&reply).map(|reply| reply.status),
        Ok(Status::Version)
    );
}

#[test]
fn a_silent_peer_does_not_hold_up_others() {
    let (served, _pages) = delivered(MIB);
    let _silent = std::os::unix::net::UnixStream::connect(&served.path).expect("a keeper");
    attach::connect(&served.path).expect("served after the silent one's time is up");
}

#[test]
fn threads_share_a_place() {
    let (served, pages) = delivered(1 << 40);
    let tenant = attach::connect(&served.path).expect("attach");
    thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                for _ in 0..4_000 {
                    tenant.reserve(512).expect("it fits");
                    tenant.reserve(1024).expect("it fits");
                    tenant.release(512).expect("release");
                }
            });
        }
    });
    let expected = 64 * 4_000 * 1024;
    assert_eq!(pages.ledger.total_used(), expected);
    assert_eq!(tenant.slot().used(), Some(expected));
}
