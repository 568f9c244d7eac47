//! Many reapers at once: a process that needs a dead process's bytes gets them at the first call.
//!
//! This is a binary of its own. The dead processes are slots that are dropped here. A parallel test that starts
//! processes would keep their locks alive between fork and exec, by the descriptors that its children inherit.

mod support;

use std::thread;
use std::time::Duration;

use divvy_ledger::attach::Attached;
use divvy_ledger::{Backing, Ledger, Slot, SlotOwner};
use support::{MIB, Slice};

const LIMIT: u64 = 1024 * MIB;

#[test]
fn survivors_have_the_dead_ones_bytes_at_the_first_call() {
    let slice = Slice::new(LIMIT);
    let survivors: Vec<Attached> = (0..8).map(|_| slice.attach()).collect();
    let start = std::sync::Barrier::new(survivors.len());
    for round in 0..100 {
        slice.attach().reserve(LIMIT).expect("it fits");
        thread::scope(|scope| {
            for survivor in &survivors {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    survivor
                        .reserve(LIMIT / 8)
                        .unwrap_or_else(|error| panic!("round {round}: {error}"));
                });
            }
        });
        assert_eq!(slice.pages.ledger.total_used(), LIMIT);
        assert!(
            survivors[0]
                .since_return()
                .is_some_and(|ago| ago < Duration::from_secs(60))
        );
        survivors
            .iter()
            .for_each(|survivor| survivor.release(LIMIT / 8).expect("release"));
    }
}

#[test]
fn a_reaper_that_meets_another_waits_until_the_bytes_are_back() {
    let slice = Slice::new(LIMIT);
    let start = std::sync::Barrier::new(2);
    let reapers: Vec<Ledger> = (0..2)
        .map(|_| {
            let fd = slice.pages.ledger.share().expect("/proc");
            Ledger::open(fd, Backing::Sealed).expect("a ledger")
        })
        .collect();
    for round in 0..5000 {
        let fd = slice.pages.ledger.share().expect("/proc");
        let dead = Slot::claim(fd, Backing::Sealed, SlotOwner::default()).expect("a slot");
        dead.reserve(LIMIT, LIMIT).expect("it fits");
        drop(dead);
        thread::scope(|scope| {
            for reaper in &reapers {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    reaper.reap().expect("reap");
                    assert_eq!(reaper.total_used(), 0, "round {round}");
                });
            }
        });
    }
}
