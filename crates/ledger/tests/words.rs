//! Single words of the pages: what is written is what is read, by the agent, by tenants and by observers.

mod support;

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use divvy_ledger::{Backing, Bypass, Gate, Ledger, Slot, SlotOwner, Snapshot};
use support::{MIB, Slice};

fn claim(ledger: &Ledger) -> Slot {
    let fd = ledger.share().expect("/proc");
    Slot::claim(fd, Backing::Sealed, SlotOwner::default()).expect("a slot")
}

#[test]
fn a_gate_that_is_closed_says_so_and_the_limit_is_the_one_given() {
    let slice = Slice::new(3 * MIB);
    let before = slice.pages.grant.gate();
    let closed = slice.pages.grant.close_gate();
    assert_eq!(closed.gate(), Gate::Closed);
    assert!(closed.is_since(before) && closed != before);
    assert_eq!(slice.pages.grant.memory_limit_bytes(), 3 * MIB);
}

#[test]
fn the_agents_own_ring_wakes_who_waits_for_the_doorbell() {
    let ledger = Ledger::create().expect("a ledger");
    let rings = ledger.rings();
    thread::scope(|scope| {
        let woken = scope.spawn(|| ledger.wait_doorbell(rings, Duration::from_secs(20)));
        while !woken.is_finished() {
            ledger.ring();
            thread::sleep(Duration::from_millis(1));
        }
        assert_ne!(woken.join().expect("it ends"), rings);
    });
}

#[test]
fn a_slot_is_claimed_from_its_claim_to_its_reap() {
    let ledger = Ledger::create().expect("a ledger");
    let (first, second) = (claim(&ledger), claim(&ledger));
    let (here, gone) = (first.index(), second.index());
    let claimed = |index| first.is_claimed(index);
    assert!(claimed(here) && claimed(gone) && !claimed(gone + 1));
    drop(second);
    ledger.reap().expect("a look");
    assert!(claimed(here) && !claimed(gone));
}

#[test]
fn the_dead_hold_nothing_in_a_snapshot_and_their_return_is_noted() {
    let ledger = Ledger::create().expect("a ledger");
    let (living, dying, last) = (claim(&ledger), claim(&ledger), claim(&ledger));
    for (slot, bytes) in [(&living, MIB), (&dying, 2 * MIB), (&last, 4 * MIB)] {
        slot.reserve(bytes, 100 * MIB).expect("it fits");
    }
    assert_eq!(living.since_return(), None, "none died yet");
    drop(dying);
    let snapshot = Snapshot::read(ledger.share().expect("/proc")).expect("a ledger");
    let mut seen: Vec<(bool, u64)> = snapshot
        .processes()
        .map(|process| (process.alive, process.used_bytes))
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, [(false, 2 * MIB), (true, MIB), (true, 4 * MIB)]);
    assert_eq!(snapshot.total_used(), 5 * MIB);
    ledger.reap().expect("a look");
    let since = living.since_return().expect("one died");
    thread::sleep(Duration::from_millis(2));
    assert!(living.since_return().expect("one died") > since);
}

#[test]
fn memory_beyond_the_share_is_counted_by_slot() {
    let ledger = Ledger::create().expect("a ledger");
    let (one, other) = (claim(&ledger), claim(&ledger));
    one.reserve_spill(MIB, 10 * MIB).expect("it fits");
    other.reserve_spill(2 * MIB, 10 * MIB).expect("it fits");
    assert!(other.reserve_spill(8 * MIB, 10 * MIB).is_err());
    one.release_spill(MIB / 2).expect("it is held");
    assert_eq!((one.spilled(), other.spilled()), (Some(MIB / 2), Some(2 * MIB)));
    assert_eq!(one.total_spilled(), Some(2 * MIB + MIB / 2));
    assert_eq!((one.used(), one.total_used()), (Some(0), Some(0)));
    assert_eq!(ledger.total_spilled(), 2 * MIB + MIB / 2);
}

#[test]
fn a_bypass_is_written_by_its_name() {
    for bypass in Bypass::ALL {
        assert_eq!(bypass.to_string(), bypass.name());
        assert!(!bypass.name().is_empty());
    }
}

#[test]
fn a_tenant_that_cannot_fetch_a_newer_grant_asks_again_ten_times_a_second_at_most() {
    let slice = Slice::new(MIB);
    let tenant = slice.attach();
    std::fs::remove_file(&slice.path).expect("the socket");
    let listener = UnixListener::bind(&slice.path).expect("a socket");
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    thread::spawn(move || {
        for _closed in listener.incoming() {
            count.fetch_add(1, SeqCst);
        }
    });
    slice.pages.ledger.set_grant_generation(1000);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(350) {
        tenant.follow_grant();
        thread::sleep(Duration::from_millis(1));
    }
    let most = 2 + began.elapsed().as_millis() as u64 / 100;
    let asked = asked.load(SeqCst);
    assert!((2..=most).contains(&asked), "{asked} of {most}");
    assert_eq!(tenant.grant().memory_limit_bytes(), MIB, "the old grant stays");
}
