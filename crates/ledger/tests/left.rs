//! An owner that has let go of an allocation is called when the last importer has left, in every order.

mod support;

use std::sync::Barrier;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use divvy_ledger::shared::{HOLDER_BITS, Residual};
use divvy_ledger::{Backing, Ledger, Slot, SlotOwner};

const ROUNDS: u32 = 20_000;
const BYTES: u64 = 512;

fn claim(ledger: &Ledger) -> Slot {
    let fd = ledger.share().expect("/proc");
    Slot::claim(fd, Backing::Sealed, SlotOwner::default()).expect("a slot")
}

/// `owner` shares an allocation at `place`, which `importer` opens.
fn shared(owner: &Slot, importer: &Slot, place: usize) {
    let word = 1 << 24 | (owner.index() as u64) << HOLDER_BITS | 2;
    owner.shared().expect("ours")[place].store(word, SeqCst);
    owner.note_shared(place, Residual::whole(BYTES));
    importer.note_open(place, true);
}

#[test]
fn an_owner_that_lets_go_while_the_last_leaves_sees_it_or_is_called() {
    let ledger = Ledger::create().expect("a ledger");
    let (owner, importer) = (claim(&ledger), claim(&ledger));
    let start = Barrier::new(2);
    for round in 0..ROUNDS {
        let place = round as usize % 7;
        shared(&owner, &importer, place);
        let calls = owner.calls();
        let saw = thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                importer.note_open(place, false);
            });
            start.wait();
            owner.note_let_go(place);
            !owner.is_open_elsewhere(place)
        });
        assert!(saw || owner.calls() != calls, "round {round}");
        owner.shared().expect("ours")[place].store(0, SeqCst);
    }
}

#[test]
fn an_owner_is_called_for_an_importer_that_died_and_by_a_process_that_needs_room() {
    let ledger = Ledger::create().expect("a ledger");
    let (owner, importer, other) = (claim(&ledger), claim(&ledger), claim(&ledger));
    shared(&owner, &importer, 3);
    assert_eq!(other.call_owners(), 0, "it is in use");
    owner.note_let_go(3);
    let calls = owner.calls();
    assert_eq!((other.call_owners(), owner.calls()), (0, calls), "another has it");
    drop(importer);
    ledger.reap().expect("a look");
    assert_ne!(owner.calls(), calls);
    let calls = owner.calls();
    assert_eq!(other.call_owners(), BYTES);
    assert_ne!(owner.calls(), calls);
    owner.wait_call(calls, Duration::from_secs(60));
    owner.shared().expect("ours")[3].store(0, SeqCst);
    assert_eq!(other.call_owners(), 0, "it is paid back");
    // An entry with a new residual charge no longer counts as let go.
    let late = claim(&ledger);
    shared(&owner, &late, 3);
    late.note_open(3, false);
    assert_eq!(other.call_owners(), 0);
}
