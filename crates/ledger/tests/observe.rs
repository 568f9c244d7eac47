//! Observing a slice: what an observer sees, and that it takes and keeps nothing.

mod support;

use std::time::{Duration, Instant};

use divvy_ledger::attach::{self, AttachError, ObservedProcess, wire::Status};
use support::{MIB, Player, Slice, part, say, told};

/// The roles that this binary plays when a test starts it again.
#[test]
fn child() {
    let Some((part, path)) = part() else { return };
    if part == "holder" {
        let tenant = attach::connect(&path, 0).expect("attach");
        tenant.reserve(30 * MIB).expect("it fits");
        say("ready");
        told();
        return;
    }
    let before = (descriptors(), mappings_of_pages());
    let seen = attach::observe(&path, 0).expect("a look");
    assert_eq!(seen.memory_used_bytes, 30 * MIB);
    assert_eq!(
        (descriptors(), mappings_of_pages()),
        before,
        "a look keeps nothing"
    );
    say("seen");
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

fn mappings_of_pages() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    maps.lines().filter(|line| line.contains("divvy-")).count()
}

#[test]
fn an_observer_sees_the_slice_and_takes_no_place() {
    let slice = Slice::new(100 * MIB);
    let mut holder = Player::start("holder", &slice.path);
    holder.expect("ready");
    let seen = attach::observe(&slice.path, 0).expect("a look");
    assert_eq!(
        (seen.memory_limit_bytes, seen.memory_used_bytes),
        (100 * MIB, 30 * MIB)
    );
    assert_eq!((seen.account, seen.accounts, seen.device_uuid), (0, 1, [7; 16]));
    let expected = ObservedProcess {
        pid: holder.child.id(),
        used_bytes: 30 * MIB,
    };
    assert_eq!(seen.processes, [expected]);
    let mut observer = Player::start("observer", &slice.path);
    observer.expect("seen");
    assert_eq!(
        slice.pages.ledger.processes().count(),
        1,
        "observers have no place"
    );

    // Dead processes hold nothing, reaped or not; and an observation does not reap. A process is dead once its lock is
    // gone, but a child of a parallel test may have a copy of the lock for a moment while it starts.
    drop(holder);
    let began = Instant::now();
    loop {
        let seen = attach::observe(&slice.path, 0).expect("a look");
        if seen.processes.is_empty() {
            assert_eq!(seen.memory_used_bytes, 0);
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{seen:?}");
        std::thread::yield_now();
    }
    assert_eq!(slice.pages.ledger.total_used(), 30 * MIB);
}

#[test]
fn there_is_nothing_to_see_of_an_account_that_is_not() {
    let slice = Slice::new(100 * MIB);
    let answer = attach::observe(&slice.path, 1);
    assert!(
        matches!(answer, Err(AttachError::Declined(Status::NoSuchAccount))),
        "{answer:?}"
    );
    let answer = attach::observe("/nonexistent/attach.sock".as_ref(), 0);
    assert!(matches!(answer, Err(AttachError::System { .. })), "{answer:?}");
}
