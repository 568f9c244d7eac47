//! The driver tells of numbers, and the kernel of what a process has open.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use divvy_model::SliceRecord;

use super::whole::{MIB, NODES, Says, USER, Whole, lives, supervised};
use super::{NODE, Shell};

/// The machine has one GPU's node.
fn with_a_node() {
    let node = std::fs::metadata(NODE).expect("a node");
    NODES.set(HashSet::from([node.rdev()]));
}

/// How often a number is tried for: without root it comes by chance only.
const TRIES: usize = 100;

/// Ends a process of the one shell. The other starts one that gets its number, or the test is skipped.
fn passed_on(pid: u32, from: &mut Shell, to: &mut Shell) -> Option<u32> {
    // The kernel tells starts in hundredths of a second, and a look of these tests asks two of them later.
    std::thread::sleep(Duration::from_millis(50));
    from.end(pid);
    // Other tests start processes meanwhile.
    for _ in 0..TRIES {
        let _chance = std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string());
        let next = to.spawn();
        if next == pid {
            return Some(next);
        }
        to.end(next);
    }
    eprintln!("skipped: the number went to another process");
    None
}

/// A process can hide what it has open: in a message to itself, in a thread's own table, or as a mapping.
#[test]
fn one_that_hides_what_it_has_open_is_ended() {
    with_a_node();
    let whole = Whole::start();
    let mut shell = Shell::start();
    let records = [supervised("0123abcd", &shell)];
    let taker = shell.spawn();
    whole.until(
        &records,
        || Says::memory(&[(taker, 3000 * MIB)]),
        || !lives(taker),
    );
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
    let Some(innocent) = passed_on(taker, &mut thief, &mut other) else {
        return;
    };
    whole.until(&records, says, || !lives(holder));
    assert!(lives(innocent), "{:?}", whole.events());
    let mut events = whole.events().into_iter();
    assert!(events.all(|event| event.slice_id.as_deref() == Some("0123abcd")));
}

/// Looks for longer than a driver takes to give back what an ended process had.
fn look_for_long(whole: &Whole, records: &[SliceRecord], says: impl Fn() -> Says) {
    for _ in 0..30 {
        whole.look(records, says());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn another_user_s_slice_answers_for_no_process_that_got_its_number() {
    with_a_node();
    let whole = Whole::start();
    let (mut honest, mut thief) = (Shell::start(), Shell::start());
    let mut records = [supervised("0123abcd", &honest), supervised("4567cdef", &thief)];
    records[1].uid = USER;
    let (worker, ended) = (honest.spawn_on_device(), honest.spawn_on_device());
    let says = |held| Says::memory(&[(worker, MIB), (ended, held)]);
    whole.look(&records, says(MIB));
    if passed_on(ended, &mut honest, &mut thief).is_none() {
        return;
    }
    // It hides what it has open.
    look_for_long(&whole, &records, || says(3000 * MIB));
    assert!(lives(worker), "{:?}", whole.events());
}

/// The driver told of the number only after the thief began: the figure is its own.
#[test]
fn one_user_s_other_slice_answers_for_no_process_whose_number_had_nothing() {
    with_a_node();
    let whole = Whole::start();
    let (mut honest, mut thief) = (Shell::start(), Shell::start());
    let records = [supervised("0123abcd", &honest), supervised("4567cdef", &thief)];
    let (worker, ended) = (honest.spawn_on_device(), honest.spawn());
    whole.look(&records, Says::memory(&[(worker, MIB)]));
    let Some(taker) = passed_on(ended, &mut honest, &mut thief) else {
        return;
    };
    let says = || Says::memory(&[(worker, MIB), (taker, 3000 * MIB)]);
    look_for_long(&whole, &records, says);
    assert!(lives(worker) && !lives(taker), "{:?}", whole.events());
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
    let Some(innocent) = passed_on(taker, &mut thief, &mut other) else {
        return;
    };
    whole.until(&records, says, || !lives(holder));
    assert!(lives(innocent), "{:?}", whole.events());
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
