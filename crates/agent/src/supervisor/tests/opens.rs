//! The driver tells of numbers, and the kernel of what a process has open.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;

use super::whole::{MIB, NODES, Says, Whole, lives, supervised};
use super::{NODE, Shell};
use crate::api::events::EventKind;

/// The machine has one GPU's node.
fn with_a_node() {
    let node = std::fs::metadata(NODE).expect("a node");
    NODES.set(HashSet::from([node.rdev()]));
}

#[test]
fn what_has_no_device_open_is_let_be_whatever_the_driver_says() {
    with_a_node();
    let whole = Whole::start();
    let mut shell = Shell::start();
    let records = [supervised("0123abcd", &shell)];
    let innocent = shell.spawn();
    let says = || Says::memory(&[(innocent, 3000 * MIB)]);
    whole.until(&records, says, || whole.has(EventKind::OveruseReported));
    for _ in 0..20 {
        whole.look(&records, says());
    }
    assert!(lives(innocent) && !whole.has(EventKind::OveruseEnded));
}

#[test]
fn what_another_was_given_ends_the_other() {
    with_a_node();
    let whole = Whole::start();
    let mut shell = Shell::start();
    let records = [supervised("0123abcd", &shell)];
    // It has closed what it opened, and the other has that.
    let (taker, holder) = (shell.spawn(), shell.spawn_on_device());
    let says = || Says::memory(&[(taker, 3000 * MIB)]);
    whole.until(&records, says, || !lives(holder));
    assert!(lives(taker));
}

#[test]
fn a_number_that_another_slice_s_process_got_is_not_its_own_memory() {
    with_a_node();
    let whole = Whole::start();
    let (mut thief, mut other) = (Shell::start(), Shell::start());
    let records = [supervised("0123abcd", &thief), supervised("4567cdef", &other)];
    let (taker, holder) = (thief.spawn_on_device(), thief.spawn_on_device());
    let says = || Says::memory(&[(taker, 3000 * MIB)]);
    whole.look(&records, says());
    thief.end(taker);
    let _chance = std::fs::write("/proc/sys/kernel/ns_last_pid", (taker - 1).to_string());
    let innocent = other.spawn();
    if innocent != taker {
        eprintln!("skipped: the number went to another process");
        return;
    }
    whole.until(&records, says, || !lives(holder));
    assert!(lives(innocent), "{:?}", whole.events());
    let mut events = whole.events().into_iter();
    assert!(events.all(|event| event.slice_id.as_deref() == Some("0123abcd")));
}

#[test]
fn the_same_outside_of_all_slices() {
    with_a_node();
    let whole = Whole::start();
    let (mut thief, mut other) = (Shell::start(), Shell::start());
    let records = [supervised("0123abcd", &thief)];
    let (taker, holder) = (thief.spawn_on_device(), thief.spawn_on_device());
    let says = || Says::memory(&[(taker, 3000 * MIB)]);
    whole.look(&records, says());
    thief.end(taker);
    let _chance = std::fs::write("/proc/sys/kernel/ns_last_pid", (taker - 1).to_string());
    if other.spawn() != taker {
        eprintln!("skipped: the number went to another process");
        return;
    }
    whole.until(&records, says, || !lives(holder));
    assert!(lives(taker), "{:?}", whole.events());
}

#[test]
fn what_an_inner_slice_left_behind_is_the_outer_one_s() {
    with_a_node();
    let whole = Whole::start();
    let (mut outer, mut inner) = (Shell::start(), Shell::start());
    let records = [supervised("0123abcd", &outer), supervised("4567cdef", &inner)];
    let mut records = records;
    records[1].parent_id = Some("0123abcd".into());
    let (holder, taker) = (outer.spawn_on_device(), inner.spawn_on_device());
    let says = || Says::memory(&[(taker, 3000 * MIB), (holder, MIB)]);
    whole.look(&records, says());
    inner.end(taker);
    whole.look(&records, says());
    whole.until(&records[..1], says, || !lives(holder));
}
