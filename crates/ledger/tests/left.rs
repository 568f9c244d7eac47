//! Who pays for what it has let go of is called when the last has left, whoever comes first.

mod support;

use std::sync::Barrier;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use divvy_ledger::shared::{HOLDER_BITS, Worth};
use divvy_ledger::{Backing, Ledger, Slot, SlotOwner};

const ROUNDS: u32 = 20_000;
const BYTES: u64 = 512;

fn claim(ledger: &Ledger) -> Slot {
    let fd = ledger.share().expect("/proc");
    Slot::claim(fd, Backing::Sealed, SlotOwner::default()).expect("a slot")
}

/// `payer` shares something at `place`, which `guest` opens.
fn shared(payer: &Slot, guest: &Slot, place: usize) {
    let word = 1 << 24 | (payer.index() as u64) << HOLDER_BITS | 2;
    payer.shared().expect("ours")[place].store(word, SeqCst);
    payer.note_shared(place, Worth::whole(BYTES));
    guest.note_open(place, true);
}

#[test]
fn a_payer_that_lets_go_while_the_last_leaves_sees_it_or_is_called() {
    let ledger = Ledger::create().expect("a ledger");
    let (payer, guest) = (claim(&ledger), claim(&ledger));
    let start = Barrier::new(2);
    for round in 0..ROUNDS {
        let place = round as usize % 7;
        shared(&payer, &guest, place);
        let calls = payer.calls();
        let saw = thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                guest.note_open(place, false);
            });
            start.wait();
            payer.note_let_go(place);
            !payer.is_open_elsewhere(place)
        });
        assert!(saw || payer.calls() != calls, "round {round}");
        payer.shared().expect("ours")[place].store(0, SeqCst);
    }
}

#[test]
fn a_payer_is_called_for_a_guest_that_died_and_by_whoever_needs_room() {
    let ledger = Ledger::create().expect("a ledger");
    let (payer, guest, other) = (claim(&ledger), claim(&ledger), claim(&ledger));
    shared(&payer, &guest, 3);
    assert_eq!(other.call_payers(), 0, "it is in use");
    payer.note_let_go(3);
    let calls = payer.calls();
    assert_eq!((other.call_payers(), payer.calls()), (0, calls), "another has it");
    drop(guest);
    ledger.reap().expect("a look");
    assert_ne!(payer.calls(), calls);
    let calls = payer.calls();
    assert_eq!(other.call_payers(), BYTES);
    assert_ne!(payer.calls(), calls);
    payer.wait_call(calls, Duration::from_secs(60));
    payer.shared().expect("ours")[3].store(0, SeqCst);
    assert_eq!(other.call_payers(), 0, "it is paid back");
    // What is worth anything anew is not let go.
    let late = claim(&ledger);
    shared(&payer, &late, 3);
    late.note_open(3, false);
    assert_eq!(other.call_payers(), 0);
}
