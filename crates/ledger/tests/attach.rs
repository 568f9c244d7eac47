//! The attach protocol, all three parties in one process: agent, page server, tenant.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use divvy_ledger::attach::wire::{Reply, Request, Status};
use divvy_ledger::attach::{self, AttachError, Door, PageServer, Pages};
use divvy_ledger::{
    Bypass, Cap, Class, ComputeTerms, GrantSpec, MAX_ON_OOM_WAIT, PAGE_ABI_VERSION, Policy, ReserveError,
    Terms,
};

const MIB: u64 = 1 << 20;

/// A page server that runs until the test ends.
struct Served {
    _dir: tempfile::TempDir,
    path: PathBuf,
    control: PathBuf,
    page_server: Arc<PageServer>,
}

fn serve() -> Served {
    serve_by(PageServer::new())
}

fn serve_by(page_server: PageServer) -> Served {
    let dir = tempfile::tempdir().expect("a directory");
    let page_server = Arc::new(page_server);
    let listen = |name: &str, door: Door| {
        let path = dir.path().join(name);
        let listener = UnixListener::bind(&path).expect("a socket");
        let serving = Arc::clone(&page_server);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _outcome = serving.serve(&stream, door);
            }
        });
        path
    };
    let uid = rustix::process::geteuid().as_raw();
    let path = listen("attach.sock", Door::Host { uid });
    let control = listen("control.sock", Door::Agent);
    Served {
        _dir: dir,
        path,
        control,
        page_server,
    }
}

fn spec(limit: u64) -> GrantSpec<'static> {
    GrantSpec {
        memory_limit_bytes: limit,
        device_uuid: *b"0123456789abcdef",
        slice_id: "s-7",
        slice_name: "training of Łukasz",
        ..GrantSpec::default()
    }
}

fn delivered(limit: u64) -> (Served, Pages) {
    let served = serve();
    let pages = Pages::create(&spec(limit)).expect("pages");
    attach::deliver(&served.control, &pages).expect("delivery");
    (served, pages)
}

#[test]
fn a_tenant_sees_its_grant_and_charges_its_ledger() {
    let (served, pages) = delivered(100 * MIB);
    let tenant = attach::connect(&served.path, 0).expect("attach");
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
    let tenant = attach::connect(&served.path, 0).expect("attach");
    tenant.reserve(60 * MIB).expect("it fits");
    drop(tenant);
    assert_eq!(pages.ledger.total_used(), 60 * MIB);
    assert!(pages.ledger.processes().all(|process| !process.alive));

    // A tenant that runs short has dead processes reaped before it is refused.
    let other = attach::connect(&served.path, 0).expect("attach");
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
    let tenant = attach::connect(&served.path, 0).expect("attach");
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
    let tenant = attach::connect(&served.path, 0).expect("attach");
    tenant.reserve(30 * MIB).expect("it fits");
    drop(pages); // The agent dies. The page server continues.
    let late = attach::connect(&served.path, 0).expect("attach without an agent");
    late.reserve(5 * MIB).expect("it fits");

    let recalled = attach::recall(&served.control, 0).expect("recall");
    assert_eq!(recalled.grant.slice_id().as_str(), "s-7");
    assert_eq!(recalled.ledger.total_used(), 35 * MIB);
    let pages = recalled.adopt().expect("adopt");
    assert_eq!(pages.grant.generation(), 2);
    pages.grant.set_memory_limit_bytes(40 * MIB);
    assert_eq!(tenant.memory_limit_bytes(), 100 * MIB, "not told yet");
    attach::deliver(&served.control, &pages).expect("delivery");
    tenant.reserve(5 * MIB).expect("it fits the new limit");
    assert!(
        matches!(tenant.reserve(1), Err(ReserveError::Refused { limit_bytes, .. }) if limit_bytes == 40 * MIB)
    );
    assert_eq!(tenant.memory_limit_bytes(), 40 * MIB);

    // An older grant does not replace a newer one.
    let stale = Pages::create(&spec(1 << 40)).expect("pages");
    assert_eq!(
        attach::deliver(&served.control, &stale),
        Err(AttachError::Declined(Status::Unfit))
    );
}

#[test]
fn who_sleeps_on_a_dead_agents_gate_is_woken_for_the_next_ones() {
    let long = Duration::from_secs(60);
    let (served, pages) = delivered(MIB);
    let word = pages.grant.close_gate();
    let tenant = attach::connect(&served.path, 0).expect("attach");
    drop(pages);
    let next = attach::recall(&served.control, 0).expect("recall");
    let next = next.adopt().expect("adopt");
    let (begin, name) = (Instant::now(), AtomicI32::new(0));
    thread::scope(|scope| {
        let old = tenant.grant();
        let name = &name;
        let sleeper = scope.spawn(move || {
            name.store(rustix::thread::gettid().as_raw_pid(), Relaxed);
            old.wait_gate(word, long)
        });
        let sleeps = || {
            let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", name.load(Relaxed)));
            stat.is_ok_and(|stat| stat.contains(") S "))
        };
        while !sleeps() {
            assert!(begin.elapsed() < long, "it never slept");
            thread::yield_now();
        }
        attach::deliver(&served.control, &next).expect("delivery");
        assert_eq!(
            sleeper.join().expect("slept"),
            word,
            "the old page stays as it is"
        );
    });
    assert!(begin.elapsed() < long, "no wake came");
}

#[test]
fn a_page_server_without_pages_says_so() {
    let served = serve();
    assert!(!served.page_server.has_pages());
    assert_eq!(
        attach::connect(&served.path, 0).err(),
        Some(AttachError::Declined(Status::NoPages))
    );
    assert_eq!(
        attach::recall(&served.control, 0).err(),
        Some(AttachError::Declined(Status::NoPages))
    );
}

#[test]
fn no_listener_is_the_systems_answer() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = attach::connect(&dir.path().join("attach.sock"), 0);
    assert!(matches!(
        missing,
        Err(AttachError::System {
            errno: rustix::io::Errno::NOENT,
            ..
        })
    ));
    let long = attach::connect(&dir.path().join("x".repeat(120)), 0);
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
        attach::connect(&path, 0),
        Err(AttachError::System {
            errno: rustix::io::Errno::CONNREFUSED,
            ..
        })
    ));
}

#[test]
fn another_version_is_refused_and_both_are_named() {
    use std::io::{Read, Write};
    // A page server of a future version.
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
            accounts: 1,
        }
        .encode();
        reply[8..12].copy_from_slice(&7_u32.to_ne_bytes());
        stream.write_all(&reply).expect("the reply");
    });
    let error = attach::connect(&path, 0).expect_err("refused");
    assert_eq!(
        error,
        AttachError::Version {
            ours: PAGE_ABI_VERSION,
            theirs: 7
        }
    );
    let text = error.to_string();
    assert!(
        text.contains(&format!("version {PAGE_ABI_VERSION}")) && text.contains("version 7"),
        "{text}"
    );
    server.join().expect("served");

    // A tenant of a future version.
    let (served, _pages) = delivered(MIB);
    let mut stream = std::os::unix::net::UnixStream::connect(&served.path).expect("a page server");
    let mut request = Request {
        kind: attach::wire::Kind::Attach,
        pid: 1,
        account: 0,
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
    let _silent = std::os::unix::net::UnixStream::connect(&served.path).expect("a page server");
    attach::connect(&served.path, 0).expect("served after the silent one's time is up");
}

#[test]
fn threads_share_a_place() {
    let (served, pages) = delivered(1 << 40);
    let tenant = attach::connect(&served.path, 0).expect("attach");
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

#[test]
fn what_lies_beyond_the_share_is_kept_in_a_table_of_its_own() {
    let (served, pages) = delivered(100 * MIB);
    let tenant = attach::connect(&served.path, 0).expect("attach");
    let slot = tenant.slot();
    tenant.reserve(100 * MIB).expect("it fits");
    slot.reserve_spill(30 * MIB, 40 * MIB).expect("it fits");
    assert!(matches!(
        slot.reserve_spill(11 * MIB, 40 * MIB),
        Err(ReserveError::Refused { .. })
    ));
    assert_eq!(pages.ledger.total_used(), 100 * MIB);
    assert_eq!(pages.ledger.total_spilled(), 30 * MIB);
    assert_eq!(slot.spilled(), Some(30 * MIB));
    slot.release_spill(10 * MIB).expect("release");
    let process = pages.ledger.processes().next().expect("one process");
    assert_eq!((process.used_bytes, process.spilled_bytes), (100 * MIB, 20 * MIB));
    drop(tenant);
    let reaped = pages.ledger.reap().expect("reap");
    assert_eq!((reaped.bytes, reaped.spilled_bytes), (100 * MIB, 20 * MIB));
    assert_eq!((pages.ledger.total_used(), pages.ledger.total_spilled()), (0, 0));
}

#[test]
fn overhead_takes_its_part_of_the_limit() {
    let (served, pages) = delivered(100 * MIB);
    let tenant = attach::connect(&served.path, 0).expect("attach");
    tenant.reserve(50 * MIB).expect("it fits");
    pages.grant.set_overhead_bytes(30 * MIB);
    assert_eq!(tenant.room_bytes(), Some(20 * MIB));
    assert!(tenant.reserve(21 * MIB).is_err());
    tenant.reserve(20 * MIB).expect("it fits");
    pages.grant.set_overhead_bytes(1 << 40);
    assert_eq!(tenant.room_bytes(), Some(0));
    assert!(tenant.reserve(1).is_err());
    assert_eq!(tenant.memory_limit_bytes(), 100 * MIB);
}

#[test]
fn terms_reach_tenants_and_outlive_an_agent() {
    let terms = Terms {
        policy: Policy::BestEffort,
        on_oom_wait: Duration::from_secs(30),
        context_bytes: 300 * MIB,
        spill_limit_bytes: 7 * MIB,
        compute: ComputeTerms {
            share: 2_500,
            cap: Cap::Hard,
            class: Class::LatencyCritical,
        },
    };
    let served = serve();
    let pages = Pages::create(&GrantSpec {
        terms,
        ..spec(100 * MIB)
    })
    .expect("pages");
    attach::deliver(&served.control, &pages).expect("delivery");
    let tenant = attach::connect(&served.path, 0).expect("attach");
    assert_eq!(tenant.grant().terms(), terms);
    pages.grant.set_overhead_bytes(5 * MIB);
    drop(pages);

    let pages = attach::recall(&served.control, 0)
        .expect("recall")
        .adopt()
        .expect("pages");
    assert_eq!(
        (pages.grant.terms(), pages.grant.overhead_bytes()),
        (terms, 5 * MIB)
    );
    // No wait lasts for ever.
    pages.grant.set_terms(&Terms {
        on_oom_wait: Duration::MAX,
        ..terms
    });
    assert_eq!(pages.grant.terms().on_oom_wait, MAX_ON_OOM_WAIT);
}

#[test]
fn a_slice_has_an_account_for_each_device() {
    let served = serve();
    let pages: Vec<_> = (0..2)
        .map(|account| {
            Pages::create(&GrantSpec {
                account,
                accounts: 2,
                device_uuid: [account as u8 + 1; 16],
                ..spec((account as u64 + 1) * 100 * MIB)
            })
            .expect("pages")
        })
        .collect();
    attach::deliver(&served.control, &pages[0]).expect("delivery");
    // Half a slice is not served.
    assert!(!served.page_server.has_pages());
    assert!(matches!(
        attach::connect(&served.path, 0),
        Err(AttachError::Declined(Status::NoPages))
    ));
    attach::deliver(&served.control, &pages[1]).expect("delivery");
    assert!(served.page_server.has_pages());
    let tenants: Vec<_> = (0..2)
        .map(|account| attach::connect(&served.path, account).expect("attach"))
        .collect();
    for (account, tenant) in tenants.iter().enumerate() {
        assert_eq!(tenant.grant().accounts(), 2);
        assert_eq!(tenant.grant().device_uuid(), [account as u8 + 1; 16]);
        assert_eq!(tenant.memory_limit_bytes(), (account as u64 + 1) * 100 * MIB);
    }
    tenants[1].reserve(150 * MIB).expect("it fits there");
    assert!(tenants[0].reserve(101 * MIB).is_err());
    assert_eq!(pages[0].ledger.total_used(), 0);
    assert!(matches!(
        attach::connect(&served.path, 2),
        Err(AttachError::Declined(Status::NoSuchAccount))
    ));
    // The number of a slice's devices does not change.
    let third = Pages::create(&GrantSpec {
        account: 2,
        accounts: 3,
        ..spec(MIB)
    })
    .expect("pages");
    assert!(matches!(
        attach::deliver(&served.control, &third),
        Err(AttachError::Declined(Status::Unfit))
    ));
}

#[test]
fn who_waits_has_the_room_that_another_gives_back() {
    let served = serve();
    let waiting = |seconds| Terms {
        on_oom_wait: Duration::from_secs(seconds),
        ..Terms::default()
    };
    let pages = Pages::create(&GrantSpec {
        terms: waiting(600),
        ..spec(100 * MIB)
    })
    .expect("pages");
    attach::deliver(&served.control, &pages).expect("delivery");
    let holder = attach::connect(&served.path, 0).expect("attach");
    let waiter = attach::connect(&served.path, 0).expect("attach");
    holder.reserve(60 * MIB).expect("it fits");
    thread::scope(|scope| {
        let waited = scope.spawn(|| {
            let mut waiting = waiter.begin_waiting(50 * MIB).expect("the terms allow it");
            while waiter.reserve(50 * MIB).is_err() {
                assert!(waiting.pause(), "ten minutes");
            }
        });
        while pages.ledger.waiting() == 0 {
            thread::yield_now();
        }
        holder.release(60 * MIB).expect("release");
        waited.join().expect("it had its room");
    });
    assert_eq!((pages.ledger.total_used(), pages.ledger.waiting()), (50 * MIB, 0));

    // No longer than the terms allow, and not at all for a request that can never fit.
    assert!(waiter.begin_waiting(101 * MIB).is_none());
    pages.grant.set_terms(&Terms {
        on_oom_wait: Duration::from_millis(20),
        ..Terms::default()
    });
    let mut waiting = holder.begin_waiting(60 * MIB).expect("the terms allow it");
    let mut tries = 0;
    while waiting.pause() {
        assert!(holder.reserve(60 * MIB).is_err());
        tries += 1;
    }
    assert!((1..100).contains(&tries), "{tries}");
    drop(waiting);
    pages.grant.set_terms(&Terms::default());
    assert!(holder.begin_waiting(60 * MIB).is_none());
}

#[test]
fn bypasses_and_thrashing_are_the_ledgers_to_show() {
    let (served, pages) = delivered(MIB);
    let tenant = attach::connect(&served.path, 0).expect("attach");
    for bypass in Bypass::ALL {
        for _ in 0..=bypass as u64 {
            tenant.slot().count(bypass);
        }
    }
    for bypass in Bypass::ALL {
        assert_eq!(pages.ledger.bypasses(bypass), bypass as u64 + 1, "{bypass}");
    }
    tenant.slot().note_thrash(1_200, false);
    assert_eq!(pages.ledger.thrash().lasting, None);
    for thrashing in [true, true, false, true] {
        tenant.slot().note_thrash(8_000, thrashing);
    }
    let thrash = pages.ledger.thrash();
    assert_eq!((thrash.pressure, thrash.episodes), (8_000, 2));
    assert!(thrash.lasting.is_some());
}

/// An agent that measures on request, finds that the driver no longer holds anything, and reports that.
fn looks_once(pages: &Pages) {
    let mut rings = pages.ledger.rings();
    while pages.ledger.looks_asked() == 0 {
        rings = pages.ledger.wait_doorbell(rings, Duration::from_secs(60));
    }
    let asked = pages.ledger.looks_asked();
    pages.grant.set_overhead_bytes(0);
    pages.grant.note_look(asked);
}

#[test]
fn what_only_an_old_figure_stands_in_the_way_of_is_looked_at_again() {
    let (served, pages) = delivered(100 * MIB);
    let tenant = attach::connect(&served.path, 0).expect("attach");
    pages.grant.set_overhead_bytes(60 * MIB);
    tenant.reserve(50 * MIB).expect_err("the driver holds 60");
    assert!(
        !tenant.look_afresh(50 * MIB),
        "an agent that never looks is not asked"
    );
    pages.grant.note_look(0);
    assert!(!tenant.look_afresh(101 * MIB), "it would fit in no case");
    assert_eq!(pages.ledger.looks_asked(), 0);
    thread::scope(|scope| {
        scope.spawn(|| looks_once(&pages));
        assert!(tenant.look_afresh(50 * MIB), "it was answered");
    });
    tenant.reserve(50 * MIB).expect("nothing is in the way");
    assert_eq!(pages.ledger.looks_asked(), 1);
}

#[test]
fn an_agent_that_does_not_look_is_waited_for_once() {
    let (served, pages) = delivered(100 * MIB);
    let tenant = attach::connect(&served.path, 0).expect("attach");
    pages.grant.set_overhead_bytes(60 * MIB);
    pages.grant.note_look(0);
    let begin = Instant::now();
    assert!(!tenant.look_afresh(50 * MIB), "no agent answers");
    assert!(begin.elapsed() >= Duration::from_millis(50), "it was waited for");
    assert_eq!(pages.ledger.looks_asked(), 1);
    assert!(!tenant.look_afresh(50 * MIB));
    assert_eq!(pages.ledger.looks_asked(), 1, "not again at once");
}

#[test]
fn a_look_that_was_asked_for_before_numbers_wrapped_around_is_known() {
    let (served, pages) = delivered(100 * MIB);
    let tenant = attach::connect(&served.path, 0).expect("attach");
    pages.grant.set_overhead_bytes(60 * MIB);
    pages.grant.note_look(u32::MAX);
    assert!(!tenant.look_afresh(50 * MIB), "number 1 comes after the last one");
    pages.grant.note_look(1);
    let other = attach::connect(&served.path, 0).expect("attach");
    pages.grant.note_look(2);
    assert!(other.look_afresh(50 * MIB), "number 2 is done already");
}

#[test]
fn who_may_attach_can_neither_bring_pages_nor_take_them_back() {
    let (served, pages) = delivered(MIB);
    let refused = Err(AttachError::Declined(Status::NotAllowed));
    // Root in a container is user 0, and so is the agent of a host: neither counts at this socket.
    assert_eq!(attach::deliver(&served.path, &pages), refused);
    assert_eq!(attach::recall(&served.path, 0).err(), refused.err());
    assert_eq!(
        attach::members(&served.path).err(),
        Some(AttachError::Declined(Status::NotAllowed))
    );
    // And the agent is not a tenant.
    assert_eq!(
        attach::connect(&served.control, 0).err(),
        Some(AttachError::Declined(Status::NotAllowed))
    );
}

#[test]
fn the_agent_is_told_who_attached() {
    let served = serve_by(PageServer::that_notes_members());
    let pages = Pages::create(&spec(MIB)).expect("pages");
    attach::deliver(&served.control, &pages).expect("delivery");
    assert_eq!(attach::members(&served.control), Ok(Vec::new()));
    let _tenant = attach::connect(&served.path, 0).expect("attach");
    let _again = attach::connect(&served.path, 0).expect("attach");
    let members = attach::members(&served.control).expect("told");
    assert_eq!(members.len(), 1, "{members:?}");
    assert_eq!(members[0].pid, std::process::id());
    // An observer is not a member; nor is a process that requests a missing account.
    let (silent, _pages) = delivered(MIB);
    assert_eq!(attach::members(&silent.control), Ok(Vec::new()), "it notes none");
}

/// A hostile page server: it shortens its memory file between the agent's two checks, and seals it.
#[test]
fn memory_that_is_shortened_while_it_is_looked_at_is_never_mapped() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicUsize, Ordering};
    const ROUNDS: usize = 10_000;
    const BATCH: usize = 500;
    // The order itself, seen by which error comes first.
    let neither = memfd_create("neither", MemfdFlags::ALLOW_SEALING).expect("a memory file");
    let complaint = divvy_ledger::GrantView::map(neither.as_fd()).expect_err("refused");
    assert_eq!(complaint, divvy_ledger::PageError::Unsealed { page: "grant" });
    let complaint = divvy_ledger::Ledger::open(neither, divvy_ledger::Backing::Sealed).expect_err("refused");
    assert_eq!(complaint, divvy_ledger::PageError::Unsealed { page: "ledger" });
    let seals = SealFlags::SHRINK | SealFlags::FUTURE_WRITE;
    for _ in 0..ROUNDS / BATCH {
        let hostile = || {
            let file = memfd_create("hostile", MemfdFlags::ALLOW_SEALING).expect("a memory file");
            ftruncate(&file, divvy_ledger::GRANT_BYTES as u64).expect("its size");
            file
        };
        let files: Vec<_> = (0..BATCH).map(|_| hostile()).collect();
        let looked_at = AtomicUsize::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for (number, file) in files.iter().enumerate() {
                    while looked_at.load(Ordering::Acquire) <= number {
                        std::hint::spin_loop();
                    }
                    let _shortened = ftruncate(file, 0);
                    let _sealed = fcntl_add_seals(file, seals);
                }
            });
            for (number, file) in files.iter().enumerate() {
                looked_at.store(number + 1, Ordering::Release);
                // If the size were checked first, this would map a file without pages, and the first read of it would
                // raise SIGBUS.
                let mapped = divvy_ledger::GrantView::map(file.as_fd());
                assert!(mapped.is_err(), "{mapped:?}");
            }
        });
    }
}
