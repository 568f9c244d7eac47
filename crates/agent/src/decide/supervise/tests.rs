//! Decisions on supervised slices, over made-up looks.

mod outlasting;
mod sampled;

use divvy_model::Bytes;
use proptest::prelude::*;

use super::ProcessId;
use super::memory::{self, Held, Memory, TOLERANCE, Target};
use super::time::{self, Step, Time, Used};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

fn id(pid: u32) -> ProcessId {
    ProcessId {
        pid,
        start_ticks: u64::from(pid) * 10,
    }
}

fn mib(n: u64) -> Bytes {
    Bytes(n << 20)
}

fn held(pid: u32, memory: u64, accounted: u64) -> Held {
    Held {
        id: id(pid),
        memory: mib(memory),
        accounted: mib(accounted),
        leaves: true,
        has_ended: false,
        returns: false,
    }
}

/// A look at a slice of 1 GiB.
fn look(memory: &mut Memory, at: u64, processes: &[Held]) -> memory::Finding {
    memory.look(&memory::Look {
        at: at * MS,
        limit: mib(1024),
        accounted: mib(0),
        context: Bytes(0),
        processes,
    })
}

#[test]
fn what_is_beyond_for_less_than_a_second_is_let_be() {
    let mut memory = Memory::default();
    for round in 0..5 {
        let at = round * 10_000;
        assert_eq!(look(&mut memory, at, &[held(1, 2000, 0)]).end, None);
        assert_eq!(look(&mut memory, at + 900, &[held(1, 2000, 0)]).end, None);
        assert_eq!(look(&mut memory, at + 950, &[held(1, 1024, 0)]).end, None);
    }
    assert_eq!(look(&mut memory, 59_000, &[held(1, 1024 + 32, 0)]).end, None);
    assert_eq!(
        look(&mut memory, 69_000, &[held(1, 1024 + 32, 0)]).end,
        None,
        "the driver's own"
    );
}

/// Most of the time it holds forty times its limit, and never for a second.
#[test]
fn memory_that_comes_and_goes_is_added_up() {
    let mut memory = Memory::default();
    let mut ended = None;
    for round in 0..4 {
        for part in 0..12 {
            let at = round * 1200 + part * 100;
            let holds = if part < 9 { 40_000 } else { 100 };
            ended = ended.or(look(&mut memory, at, &[held(1, holds, 0)]).end.map(|_| at));
        }
    }
    assert!(ended.is_some_and(|at| (1200..2400).contains(&at)), "{ended:?}");
}

/// A tenant is resized up, fills that past the limiter, and is resized down.
#[test]
fn what_no_ledger_has_is_not_kept_when_a_slice_is_resized_to_less() {
    let mut memory = Memory::default();
    let mut of = |at: u64, limit: u64, accounted: u64| {
        memory.look(&memory::Look {
            at: at * MS,
            limit: mib(limit),
            accounted: mib(accounted),
            context: Bytes(0),
            processes: &[held(1, 60_000, accounted)],
        })
    };
    assert_eq!(of(0, 70_000, 10).beyond, Bytes(0));
    assert!(of(1000, 1024, 10).beyond > mib(50_000));
    assert!(of(2000, 1024, 10).end.is_some());
}

#[test]
fn one_that_cannot_be_ended_counts_again() {
    let mut memory = Memory::default();
    look(&mut memory, 0, &[held(1, 2000, 0)]);
    assert!(look(&mut memory, 1000, &[held(1, 2000, 0)]).end.is_some());
    memory.note_end(&[id(1)], &[], 1000 * MS);
    assert_eq!(look(&mut memory, 2000, &[held(1, 20_000, 0)]).beyond, Bytes(0));
    assert!(look(&mut memory, 7000, &[held(1, 20_000, 0)]).beyond > Bytes(0));
}

/// A tracer may hold a killed process in its end, with all its memory.
#[test]
fn one_that_is_held_in_its_end_counts_again_soon_and_one_that_the_kernel_takes_down_does_not() {
    for leaves in [false, true] {
        let mut memory = Memory::default();
        let one = [Held {
            leaves,
            ..held(1, 2000, 0)
        }];
        look(&mut memory, 0, &one);
        assert!(look(&mut memory, 1000, &one).end.is_some());
        memory.note_end(&[id(1)], &[], 1000 * MS);
        assert_eq!(memory.ending(), [(id(1), 1000 * MS)]);
        assert_eq!(look(&mut memory, 1200, &one).beyond, Bytes(0));
        let is_beyond = look(&mut memory, 1300, &one).beyond > Bytes(0);
        assert_eq!(is_beyond, !leaves);
        let ends = look(&mut memory, 1400, &one).end.is_some();
        assert_eq!(ends, !leaves, "its slice's other processes are to end");
    }
}

/// It is another user's for now: what it holds counts, and it is signalled only when a look says so again.
#[test]
fn one_whose_end_was_refused_counts_on_and_is_forgotten_when_its_slice_holds_little() {
    let mut memory = Memory::default();
    let much = [held(1, 2000, 0)];
    look(&mut memory, 0, &much);
    assert!(look(&mut memory, 1000, &much).end.is_some());
    memory.note_end(&[], &[id(1)], 1000 * MS);
    assert!(!memory.is_ending(id(1)) && memory.ending().is_empty());
    assert!(
        look(&mut memory, 1100, &much).beyond > Bytes(0),
        "it gives nothing back"
    );
    assert!(
        look(&mut memory, 1200, &much).end.is_some(),
        "it is asked for again"
    );
    assert_eq!(look(&mut memory, 7000, &much).unending, [id(1)]);
    assert_eq!(look(&mut memory, 7100, &[held(1, 100, 0)]).unending, []);
    let found = look(&mut memory, 30_000, &[held(1, 100, 0)]);
    assert_eq!(found, memory::Finding::default());
}

/// A child has its open files: the driver names it still. Which other process that is cannot be told.
#[test]
fn where_one_that_has_ended_left_its_memory_to_another_all_are_to_end() {
    let mut memory = Memory::default();
    let both = [
        Held {
            has_ended: true,
            ..held(1, 2000, 0)
        },
        held(2, 10, 10),
    ];
    look(&mut memory, 0, &both);
    assert_eq!(look(&mut memory, 1000, &both).end, Some(Target::All));
    // It was ended by the agent itself.
    let mut memory = Memory::default();
    let living = [held(1, 2000, 0), held(2, 10, 10)];
    look(&mut memory, 0, &living);
    assert_eq!(look(&mut memory, 1000, &living).end, Some(Target::One(id(1))));
    memory.note_end(&[id(1)], &[], 1000 * MS);
    look(&mut memory, 1210, &both);
    assert_eq!(look(&mut memory, 1300, &both).end, Some(Target::All));
}

/// Whether a child keeps what it had is known a while after its end only. The second begins at its end.
#[test]
fn what_has_just_ended_counts_from_its_end_and_nothing_is_ended_before_another_is_known_to_keep_it() {
    let ended = |returns| {
        let one = Held {
            has_ended: true,
            returns,
            ..held(1, 2000, 0)
        };
        [one, held(2, 10, 10)]
    };
    let mut memory = Memory::default();
    let found = look(&mut memory, 0, &ended(true));
    assert_eq!((found.beyond, found.ends_in), (Bytes(0), Some(1000 * MS)));
    assert_eq!(look(&mut memory, 250, &ended(false)).ends_in, Some(750 * MS));
    assert_eq!(look(&mut memory, 1000, &ended(false)).end, Some(Target::All));
    // It is not known for long.
    let mut memory = Memory::default();
    look(&mut memory, 0, &ended(true));
    assert_eq!(look(&mut memory, 2000, &ended(true)).end, None);
    // It was on its way back.
    assert_eq!(
        look(&mut memory, 2100, &[held(2, 10, 10)]),
        memory::Finding::default()
    );
}

/// A tenant of very many processes makes each look take seconds.
#[test]
fn looks_that_come_late_count_and_a_driver_that_is_silent_forgives() {
    let mut memory = Memory::default();
    assert_eq!(look(&mut memory, 0, &[held(1, 2000, 0)]).end, None);
    assert!(look(&mut memory, 3000, &[held(1, 2000, 0)]).end.is_some());

    let mut memory = Memory::default();
    look(&mut memory, 0, &[held(1, 2000, 0)]);
    memory.miss();
    assert_eq!(look(&mut memory, 3000, &[held(1, 2000, 0)]).end, None);
    assert!(look(&mut memory, 4000, &[held(1, 2000, 0)]).end.is_some());
}

#[test]
fn the_process_that_accounts_for_least_is_ended_and_then_what_takes_its_place() {
    let mut memory = Memory::default();
    let both = [held(1, 1000, 1000), held(2, 900, 10)];
    assert_eq!(look(&mut memory, 0, &both).end, None);
    let found = look(&mut memory, 1000, &both);
    assert_eq!(
        (found.end, found.beyond),
        (Some(Target::One(id(2))), mib(1900 - 1024 - 64))
    );
    memory.note_end(&[id(2)], &[], 1000 * MS);
    // It is still there, and gives its memory back by itself.
    assert_eq!(look(&mut memory, 1100, &both).end, None);
    // Another comes in its place: there is no second of grace for that.
    let again = [held(1, 1000, 1000), held(3, 900, 10)];
    assert_eq!(look(&mut memory, 1200, &again).end, None);
    let found = look(&mut memory, 1300, &again);
    assert_eq!(found.end, Some(Target::Holders(vec![id(1), id(3)])));
    memory.note_end(&[id(1), id(3)], &[], 1300 * MS);
    let third = [held(4, 1500, 10)];
    look(&mut memory, 1400, &third);
    assert_eq!(look(&mut memory, 1500, &third).end, Some(Target::All));
    memory.note_end(&[id(4)], &[], 1500 * MS);
    // Long after, it begins with grace again.
    look(&mut memory, 10_000, &[]);
    let later = [held(5, 1500, 10)];
    assert_eq!(look(&mut memory, 20_000, &later).end, None);
    assert_eq!(look(&mut memory, 20_900, &later).end, None);
    assert_eq!(look(&mut memory, 21_000, &later).end, Some(Target::One(id(5))));
}

#[test]
fn where_all_account_for_what_they_hold_the_one_that_grew_last_is_ended() {
    let mut memory = Memory::default();
    look(&mut memory, 0, &[held(1, 500, 500), held(2, 400, 400)]);
    look(&mut memory, 500, &[held(1, 800, 800), held(2, 400, 400)]);
    let both = [held(1, 800, 800), held(2, 700, 700)];
    look(&mut memory, 1000, &both);
    assert_eq!(look(&mut memory, 2000, &both).end, Some(Target::One(id(2))));
}

#[test]
fn a_process_that_cannot_be_ended_is_named_once() {
    let mut memory = Memory::default();
    let stuck = [held(1, 2000, 0)];
    look(&mut memory, 0, &stuck);
    assert!(look(&mut memory, 1000, &stuck).end.is_some());
    memory.note_end(&[id(1)], &[], 1000 * MS);
    let told: Vec<usize> = (2..20)
        .map(|s| look(&mut memory, s * 1000, &stuck).unending.len())
        .collect();
    assert_eq!(told.iter().sum::<usize>(), 1, "{told:?}");
}

#[test]
fn what_a_slice_held_when_it_was_resized_to_less_is_its_own_until_it_is_given_back() {
    let mut memory = Memory::default();
    let of = |memory: &mut Memory, at: u64, limit: u64, holds: u64| {
        let processes = [held(1, holds, holds)];
        let look = memory::Look {
            at: at * MS,
            limit: mib(limit),
            accounted: mib(holds),
            context: Bytes(0),
            processes: &processes,
        };
        memory.look(&look)
    };
    of(&mut memory, 0, 4096, 3000);
    for at in [1000, 2500, 9000] {
        assert_eq!(of(&mut memory, at, 1024, 3000).beyond, Bytes(0));
    }
    assert_eq!(of(&mut memory, 9100, 1024, 2000).beyond, Bytes(0));
    assert!(
        of(&mut memory, 9200, 1024, 3000).beyond > Bytes(0),
        "what it gave back is gone"
    );
    of(&mut memory, 9700, 1024, 3000);
    assert!(of(&mut memory, 10_300, 1024, 3000).end.is_some());
}

/// A look at a slice of 30 % with a hard cap.
fn timed(time: &mut Time, at: u64, used: &[(u32, u64)], charged: u64) -> Step {
    let used: Vec<(ProcessId, Used)> = used
        .iter()
        .map(|(pid, total)| (id(*pid), Used::Total(*total * MS)))
        .collect();
    time.look(&hard(at, &used, charged))
}

/// The same: at so many milliseconds, with as many charged.
fn hard(at: u64, used: &[(ProcessId, Used)], charged: u64) -> time::Look<'_> {
    time::Look {
        at: at * MS,
        used,
        dead: 0,
        charged: charged * MS,
        outlasted: 0,
        ran: false,
        share: 3000,
        counts: true,
        is_open: false,
    }
}

/// A page that is read while a process writes it, or a driver that forgets one for a moment.
#[test]
fn a_process_that_a_driver_leaves_out_at_a_look_has_used_nothing_twice() {
    let mut time = Time::default();
    for n in 1..200_u64 {
        let at = n * 250;
        // It is charged for all that it uses: a fifth of the device.
        let all = [(1, at / 10), (2, at / 10)];
        let told = if n % 3 == 0 { &all[..1] } else { &all[..] };
        assert_eq!(timed(&mut time, at, told, at / 5), Step::Nothing, "{n}");
    }
}

/// Plays a program that uses all of the device whenever it runs and is charged for a part of it, in parts of 100.
/// Returns the device's time that it had in each 100 ms.
fn play(seconds: u64, charged_of_used: u64) -> Vec<u64> {
    let mut time = Time::default();
    let (mut total, mut frozen, mut had) = (0, false, Vec::new());
    let mut next = 0;
    for at in (0..seconds * 1000).step_by(100) {
        if at >= next {
            match timed(&mut time, at, &[(1, total)], total * charged_of_used / 100) {
                Step::Freeze(_) => frozen = true,
                Step::Thaw => frozen = false,
                Step::Nothing | Step::Test | Step::Fails => {}
            }
            assert_eq!(frozen, time.is_frozen());
            next = at + if time.is_watched() { 100 } else { 300 };
        }
        let used = if frozen { 0 } else { 100 };
        total += used;
        had.push(used);
    }
    had
}

#[test]
fn a_program_that_passes_the_gate_has_its_share_over_any_five_seconds() {
    for charged in [0, 5, 20] {
        let had = play(60, charged);
        for (at, window) in had.windows(50).enumerate() {
            let used: u64 = window.iter().sum();
            assert!(
                used <= 1600,
                "{used} ms of 5 s from {at}00 ms on, charged {charged}"
            );
        }
        let all: u64 = had.iter().sum();
        assert!(all > 60_000 / 5, "and it has most of its share: {all}");
    }
}

#[test]
fn an_honest_program_is_never_frozen_however_its_charges_come() {
    assert!(play(60, 100).iter().all(|used| *used == 100), "all is charged");
    let mut time = Time::default();
    // Each lease is charged 40 ms after its use.
    for at in (0..60_000).step_by(250) {
        let used = at * 3 / 10;
        let step = timed(&mut time, at, &[(1, used)], used.saturating_sub(40));
        assert_eq!(step, Step::Nothing, "{at}");
    }
}

#[test]
fn a_driver_that_tells_late_makes_no_debt() {
    let mut time = Time::default();
    for at in (0..60_000).step_by(250) {
        // The figures are of three seconds ago, and come each three seconds.
        let told = at / 3000 * 3000 * 3 / 10;
        assert_eq!(
            timed(&mut time, at, &[(1, told)], at * 3 / 10),
            Step::Nothing,
            "{at}"
        );
    }
}

/// It is never charged, so nothing but the figures tells that they are late. It stands still whenever it is to.
#[test]
fn a_driver_that_tells_late_hides_no_use_and_a_freeze_is_not_said_to_fail() {
    const LATE: u64 = 3000;
    let mut time = Time::default();
    let (mut total, mut told, mut is_stopped) = (0, 0, false);
    for at in (0..120_000).step_by(100) {
        if at % LATE == 0 {
            told = total;
        }
        match timed(&mut time, at, &[(1, told)], 0) {
            Step::Freeze(_) => is_stopped = true,
            Step::Thaw => is_stopped = false,
            Step::Nothing | Step::Test => {}
            Step::Fails => panic!("it stands still, at {at}"),
        }
        total += if is_stopped { 0 } else { 100 };
    }
    // Its share, and what it has before the figures tell of it.
    assert!(total <= 120_000 * 3 / 10 + 2 * LATE, "{total} ms");
    assert!(total >= 120_000 / 5, "{total} ms");
    // One that does not stand still is noticed all the same.
    let mut time = Time::default();
    let fails = (0..20_000)
        .step_by(100)
        .find(|at| timed(&mut time, *at, &[(1, at / LATE * LATE)], 0) == Step::Fails);
    assert!(fails.is_some_and(|at| at <= 4 * LATE), "{fails:?}");
}

#[test]
fn an_open_gate_owes_nothing_and_what_was_launched_then_is_waited_for() {
    let mut time = Time::default();
    let open = |time: &mut Time, at: u64| {
        let used = [(id(1), Used::Total(at * MS))];
        time.look(&time::Look {
            at: at * MS,
            used: &used,
            dead: 0,
            charged: 0,
            outlasted: 0,
            ran: false,
            share: 3000,
            counts: true,
            is_open: true,
        })
    };
    for at in (0..5000).step_by(250) {
        assert_eq!(open(&mut time, at), Step::Nothing);
    }
    for at in (5000..8000).step_by(250) {
        assert_eq!(
            timed(&mut time, at, &[(1, at)], 0),
            Step::Nothing,
            "a launch of three seconds"
        );
    }
    for at in (8000..30_000).step_by(250) {
        let charged = (at - 8000) * 3 / 10;
        assert_eq!(
            timed(&mut time, at, &[(1, 8000 + charged)], charged),
            Step::Nothing,
            "{at}"
        );
    }
}

#[test]
fn a_freeze_that_stops_nothing_is_said_to_fail() {
    let mut time = Time::default();
    let steps: Vec<Step> = (0..200)
        .map(|n| timed(&mut time, n * 100, &[(1, n * 100)], 0))
        .collect();
    let first = steps
        .iter()
        .position(|step| *step == Step::Fails)
        .expect("it is noticed");
    assert!((10..25).contains(&first), "{first}");
}

#[test]
fn a_number_that_another_process_has_now_starts_from_nothing() {
    let mut memory = Memory::default();
    look(&mut memory, 0, &[held(1, 2000, 0)]);
    look(&mut memory, 900, &[held(1, 10, 10)]);
    let mut time = Time::default();
    for at in (0..3000).step_by(250) {
        timed(&mut time, at, &[(1, at * 3 / 10)], at * 3 / 10);
    }
    let other = ProcessId {
        pid: 1,
        start_ticks: 77,
    };
    let used = [(other, Used::Total(5 * SECOND))];
    let step = time.look(&time::Look {
        at: 3000 * MS,
        used: &used,
        dead: 0,
        charged: 900 * MS,
        outlasted: 0,
        ran: false,
        share: 3000,
        counts: true,
        is_open: false,
    });
    assert_eq!(step, Step::Nothing, "what it used elsewhere is not the slice's");
}

proptest! {
    /// Whatever is seen, only processes of that very look are named, and none before a second is over.
    #[test]
    fn only_processes_of_the_look_are_ended(looks in prop::collection::vec(
        (1_u64..600, prop::collection::vec((1_u32..6, 0_u64..3, 0_u64..2000, 0_u64..2000), 0..6)), 1..60)) {
        let mut memory = Memory::default();
        let (mut at, mut beyond_since) = (0, None);
        for (step, processes) in looks {
            at += step;
            let mut held: Vec<Held> = processes
                .iter()
                .map(|(pid, start, memory, accounted)| Held {
                    id: ProcessId { pid: *pid, start_ticks: *start },
                    memory: mib(*memory),
                    accounted: mib(*accounted),
                    leaves: false,
                    has_ended: false,
                    returns: false,
                })
                .collect();
            held.sort_by_key(|held| held.id);
            held.dedup_by_key(|held| held.id);
            let found = look(&mut memory, at, &held);
            let sum: u64 = held.iter().map(|held| held.memory.0).sum();
            if sum <= mib(1024).0 {
                beyond_since = None;
                prop_assert_eq!(&found.end, &None);
                prop_assert_eq!(found.beyond, Bytes(0));
            } else {
                beyond_since.get_or_insert(at);
            }
            let named: Vec<ProcessId> = match &found.end {
                None => Vec::new(),
                Some(Target::One(one)) => vec![*one],
                Some(Target::Holders(all)) => all.clone(),
                Some(Target::All) => held.iter().map(|held| held.id).collect(),
            };
            prop_assert!(named.iter().all(|named| held.iter().any(|held| held.id == *named)));
            if found.end.is_some() {
                prop_assert!(sum > mib(1024).0 + TOLERANCE.0);
                memory.note_end(&named, &[], at * MS);
            }
        }
        let _ = beyond_since;
    }

    /// Every debt ends: a slice that stands still while it is frozen runs again, in a time that its share bounds.
    #[test]
    fn every_debt_is_served(burst in 1_u64..20_000, share in 100_u32..10_000, every in 50_u64..1000) {
        let mut time = Time::default();
        let (mut at, mut total) = (0, 0);
        let mut frozen_at = None;
        for _ in 0..100_000 {
            let used = [(id(1), Used::Total(total * MS))];
            let step = time.look(&time::Look {
                at: at * MS, used: &used, dead: 0, charged: 0, outlasted: 0, ran: false, share, counts: true, is_open: false,
            });
            match step {
                Step::Freeze(_) => { frozen_at.get_or_insert(at); }
                Step::Thaw => break,
                Step::Nothing | Step::Test => {}
                Step::Fails => prop_assert!(false, "it stands still"),
            }
            if frozen_at.is_none() && total < burst { total += every; }
            if frozen_at.is_none() && total >= burst && at > 2 * burst + 5000 { break; }
            at += every;
        }
        prop_assert!(!time.is_frozen(), "it is never thawed");
        if let Some(frozen_at) = frozen_at {
            let longest = 21_000 * 10_000 / u64::from(share) * 10 / 9 + 2 * every + 1000;
            prop_assert!(at - frozen_at <= longest, "{} ms", at - frozen_at);
        }
    }

    /// Use that is charged, at whatever moments, with the driver's figures of another moment, is never paid twice.
    #[test]
    fn charged_use_is_never_owed(steps in prop::collection::vec((50_u64..400, 0_u64..100, 0_u64..70), 1..200)) {
        let mut time = Time::default();
        let (mut at, mut charged) = (0, 0);
        for (step, of_time, late) in steps {
            at += step;
            charged += step * of_time / 100;
            // The driver's figure lags behind the charge or is ahead of it, both together by less than the tolerance.
            let used = charged.saturating_sub(late) + 100 - late;
            let step = timed(&mut time, at, &[(1, used)], charged);
            prop_assert_eq!(step, Step::Nothing);
        }
    }
}
