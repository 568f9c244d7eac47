//! Which processes are alive, and which own a slot: fork, raw clone, exec, closed descriptors, frozen processes,
//! crowds.

mod support;

use std::collections::HashSet;
use std::os::unix::process::CommandExt;
use std::process::Command;

use divvy_ledger::ReserveError;
use divvy_ledger::attach::{self, Attached};
use rustix::process::Signal;
use support::{MIB, Player, Slice, part, say, told};

/// The roles that this binary plays when a test starts it again.
#[test]
fn child() {
    let Some((part, path)) = part() else { return };
    let before = descriptors();
    let tenant = attach::connect(&path, 0).expect("attach");
    assert_eq!(descriptors(), before, "attach keeps no descriptor");
    tenant.reserve(10 * MIB).expect("it fits");
    match part.as_str() {
        "holder" => {
            say("ready");
            told();
        }
        "closer" => {
            // SAFETY: closes a descriptor that no code here uses any more.
            assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) }, 0);
            tenant.reserve(MIB).expect("it fits");
            say("ready");
            told();
        }
        "forker" => forker(&tenant, &path, || {
            // SAFETY: the child only does what a forked child of a threaded program may, and ends by _exit.
            unsafe { libc::fork() }
        }),
        "cloner" => forker(&tenant, &path, || {
            // SAFETY: as fork, without the C library's knowledge.
            (unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) }) as libc::pid_t
        }),
        "execer" => {
            let error = Command::new("sleep").arg("60").exec();
            panic!("{error}");
        }
        other => panic!("no part {other}"),
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// Forks. The child has no slot until it attaches by itself; then both are in the ledger. The parent reports the
/// child's id and waits; the child outlives it.
fn forker(tenant: &Attached, path: &std::path::Path, fork: impl Fn() -> libc::pid_t) {
    let child = fork();
    if child == 0 {
        let fine = !tenant.is_ours()
            && tenant.reserve(MIB) == Err(ReserveError::Forked)
            && tenant.release(MIB) == Err(ReserveError::Forked)
            && tenant.total_used().is_none()
            && attach::connect(path, 0).is_ok_and(|own| {
                let fine = own.is_ours() && own.reserve(5 * MIB).is_ok();
                // It holds its slot until it ends.
                std::mem::forget(own);
                fine
            });
        say(if fine { "child ready" } else { "child failed" });
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    assert!(tenant.is_ours());
    tenant.reserve(MIB).expect("it fits");
    say(&child.to_string());
    told();
}

#[test]
fn a_process_lives_in_the_ledger_until_it_is_killed() {
    let slice = Slice::new(100 * MIB);
    for part in ["holder", "closer"] {
        let mut player = Player::start(part, &slice.path);
        player.expect("ready");
        assert_eq!(slice.pages.ledger.reap().expect("reap").processes, 0);
        let process = slice.pages.ledger.processes().next().expect("it is there");
        assert_eq!((process.pid, process.alive), (player.child.id(), true));
        player.kill();
        assert!(slice.pages.ledger.processes().all(|process| !process.alive));
        slice.expect_empty();
    }
}

#[test]
fn a_forked_child_is_a_process_of_its_own() {
    for part in ["forker", "cloner"] {
        let slice = Slice::new(100 * MIB);
        let mut parent = Player::start(part, &slice.path);
        let mut said = [
            parent.hear().expect("one of them"),
            parent.hear().expect("the other"),
        ];
        said.sort();
        assert_eq!(said[1], "child ready");
        let child = rustix::process::Pid::from_raw(said[0].parse().expect("an id")).expect("an id");
        assert_eq!(slice.pages.ledger.total_used(), 16 * MIB);
        parent.kill();
        // The child inherited nothing that keeps its parent alive.
        let reaped = slice.pages.ledger.reap().expect("reap");
        assert_eq!((reaped.processes, reaped.bytes), (1, 11 * MIB));
        assert_eq!(slice.pages.ledger.total_used(), 5 * MIB);
        rustix::process::kill_process(child, Signal::KILL).expect("it lives");
        // It is not our child: its end is seen in the ledger.
        while slice.pages.ledger.reap().expect("reap").processes == 0 {
            std::thread::yield_now();
        }
        slice.expect_empty();
    }
}

#[test]
fn exec_gives_the_place_up() {
    let slice = Slice::new(100 * MIB);
    let mut player = Player::start("execer", &slice.path);
    while slice.pages.ledger.reap().expect("reap").bytes != 10 * MIB {
        std::thread::yield_now();
        assert_eq!(player.child.try_wait().expect("our child"), None);
    }
    assert_eq!(
        player.child.try_wait().expect("our child"),
        None,
        "the program goes on"
    );
    slice.expect_empty();
    player.kill();
}

#[test]
fn a_frozen_process_keeps_its_bytes_and_stops_no_other_one() {
    let slice = Slice::new(100 * MIB);
    let mut frozen = Player::start("holder", &slice.path);
    frozen.expect("ready");
    frozen.signal(Signal::STOP);
    let other = slice.attach();
    other.reserve(90 * MIB).expect("it fits");
    assert!(matches!(other.reserve(MIB), Err(ReserveError::Refused { .. })));
    frozen.kill();
    other
        .reserve(10 * MIB)
        .expect("the dead one's bytes are back at the first call");
}

#[test]
fn three_hundred_processes_start_64_at_a_time() {
    let slice = Slice::new(1 << 40);
    let mut players: Vec<Player> = Vec::new();
    while players.len() < 300 {
        let from = players.len();
        players.extend((from..(from + 64).min(300)).map(|_| Player::start("holder", &slice.path)));
        players[from..]
            .iter_mut()
            .for_each(|player| player.expect("ready"));
    }
    let ledger = &slice.pages.ledger;
    assert_eq!(ledger.reap().expect("reap").processes, 0);
    let pids: HashSet<u32> = ledger
        .processes()
        .filter(|process| process.alive)
        .map(|process| process.pid)
        .collect();
    assert_eq!(pids, players.iter().map(|player| player.child.id()).collect());
    assert_eq!(ledger.total_used(), 300 * 10 * MIB);
    // The bytes of dead processes are there for a process that needs them, and then their slots.
    players.truncate(100);
    let newcomer = slice.attach();
    newcomer
        .reserve((1 << 40) - 1000 * MIB)
        .expect("the dead ones' bytes are back");
    assert!(slice.attach().slot().index() < 300);
    drop((players, newcomer));
    slice.expect_empty();
}
