//! Slices whose lease is long over: tenants that lie about that, and honest launches of any length.

use super::{MS, hard, id};
use crate::decide::supervise::time::{Look, Step, Time, Used};

/// A slice of 30 % with a hard cap, on a device that is played in steps of 10 ms.
struct Slice {
    /// The parts of the device that its processes have while their launches are in flight, in parts of 100.
    turns: &'static [u64],
    /// For how long launches go on behind a stop, in milliseconds: what is queued, or the rest of a long one.
    queued: u64,
    /// The hardware stops launches with their process: an emulated device.
    stops_at_once: bool,
    /// Until then, in milliseconds, launches are in flight. The slice gives its lease back then, if it is not stopped.
    until: u64,
    /// Another process undoes each stop before the next look.
    is_restless: bool,
    /// The driver's figures are of the last second.
    is_sampled: bool,
    /// Before all that, leases are charged for so many milliseconds, and the driver tells nothing.
    silent: u64,
}

impl Slice {
    const LIAR: Self = Self {
        turns: &[100],
        queued: 200,
        stops_at_once: false,
        until: u64::MAX,
        is_restless: false,
        is_sampled: false,
        silent: 0,
    };

    /// An honest one with one launch of so many milliseconds, by which it has half of the device.
    const fn of_one_launch(length: u64) -> Self {
        Self {
            turns: &[50],
            queued: u64::MAX,
            until: length,
            ..Self::LIAR
        }
    }

    fn play(&self, seconds: u64) -> Played {
        const STEP: u64 = 10;
        let mut played = Played::default();
        let mut time = Time::default();
        let mut totals = vec![0; self.turns.len()];
        let (mut outlasted, mut charged, mut next, mut stopped_at) = (0, 0, 0, None);
        let (mut has_ended, mut stop) = (false, 0);
        for at in (0..seconds * 1000).step_by(STEP as usize) {
            if at >= next {
                let step = time.look(&Look {
                    at: at * MS,
                    used: &self.figures(at, &totals, &played),
                    dead: 0,
                    charged: charged * MS,
                    outlasted: outlasted * MS,
                    ran: self.is_restless && stopped_at.is_some(),
                    share: 3000,
                    counts: true,
                    is_open: false,
                });
                match step {
                    Step::Nothing => {}
                    Step::Freeze(_) | Step::Test => drop(stopped_at.get_or_insert(at)),
                    Step::Thaw => stopped_at = None,
                    Step::Fails => {
                        played.fails_at = Some(at);
                        break;
                    }
                }
                played.freezes += u64::from(matches!(step, Step::Freeze(_)));
                next = at + if time.is_watched() { 100 } else { 250 };
            }
            let is_stopped = stopped_at.is_some() && !self.is_restless;
            let goes_on = match stopped_at.filter(|_| is_stopped) {
                None => true,
                Some(since) => !self.stops_at_once && at - since < self.queued,
            };
            let has_begun = at >= self.silent;
            let in_flight = has_begun && at < self.until;
            has_ended |= has_begun && !in_flight && !is_stopped;
            charged += if has_begun { 0 } else { STEP };
            outlasted += if has_ended || !has_begun { 0 } else { STEP };
            let mut used = 0;
            for (total, turn) in totals.iter_mut().zip(self.turns) {
                let had = if in_flight && goes_on { STEP * turn } else { 0 };
                *total += had;
                used += had;
            }
            played.had.push(used / 100);
            stop = if is_stopped { stop + STEP } else { 0 };
            played.longest_stop = played.longest_stop.max(stop);
            played.stopped += if is_stopped { STEP } else { 0 };
        }
        played
    }

    fn figures(&self, at: u64, totals: &[u64], played: &Played) -> Vec<(super::ProcessId, Used)> {
        let of_last_second: u64 = played.had.iter().rev().take(100).sum();
        let figure = |(number, total): (usize, &u64)| {
            let used = match self.is_sampled {
                true => Used::Rate(u32::try_from(of_last_second * 10).expect("a part")),
                false => Used::Total(total / 100 * MS),
            };
            (id(u32::try_from(number).expect("few") + 1), used)
        };
        // A driver tells of what used some in the last second.
        match self.is_sampled && (of_last_second == 0 || at == 0) {
            true => Vec::new(),
            false => totals.iter().enumerate().map(figure).collect(),
        }
    }
}

/// What happened, in milliseconds.
#[derive(Debug, Default)]
struct Played {
    /// The device's time that it had in each 10 ms.
    had: Vec<u64>,
    /// For how long it was stopped.
    stopped: u64,
    /// The longest time on end for which it was.
    longest_stop: u64,
    /// The looks at which it owed time.
    freezes: u64,
    /// When a freeze of it was of no use.
    fails_at: Option<u64>,
}

impl Played {
    fn all(&self) -> u64 {
        self.had.iter().sum()
    }

    /// The most that it had in five seconds, from so many seconds on.
    fn most_of_five_seconds(&self, from: usize) -> u64 {
        let windows = self.had[from * 100..].windows(500);
        windows.map(|window| window.iter().sum()).max().unwrap_or(0)
    }
}

/// It keeps its busy mark set, and passes the gate.
#[test]
fn one_that_says_that_its_launches_never_end_has_its_share() {
    let liar = Slice::LIAR.play(120);
    assert_eq!(liar.fails_at, None);
    // What it had before its word was tested, and all the rest is paid back.
    assert!(
        liar.most_of_five_seconds(7) <= 1600,
        "{} ms",
        liar.most_of_five_seconds(7)
    );
    let all = liar.all();
    assert!(
        all <= 120_000 * 3 / 10 + 500,
        "{all} ms: what it had at first is paid back"
    );
    assert!(all >= 120_000 * 2 / 10, "{all} ms: and it has most of its share");
    let sampled = Slice {
        is_sampled: true,
        ..Slice::LIAR
    };
    let all = sampled.play(240).all();
    assert!(all <= 240_000 * 36 / 100 + 5000, "sampled: {all} ms");
}

#[test]
fn an_honest_launch_of_an_hour_owes_nothing_and_is_stopped_for_seconds() {
    for is_sampled in [false, true] {
        let honest = Slice {
            is_sampled,
            ..Slice::of_one_launch(3_600_000)
        };
        let played = honest.play(3_700);
        assert_eq!((played.freezes, played.fails_at), (0, None), "{is_sampled}");
        assert!(played.stopped <= 60_000, "{} ms", played.stopped);
        assert!(played.longest_stop <= 10_200, "{} ms", played.longest_stop);
        assert_eq!(played.all(), 3_600_000 / 2);
    }
}

#[test]
fn honest_launches_of_some_seconds_are_not_stopped_at_all() {
    for length in [500, 3_000, 8_000, 18_000] {
        let played = Slice::of_one_launch(length).play(40);
        assert_eq!((played.stopped, played.fails_at), (0, None), "{length} ms");
    }
}

/// Whatever the moment at which the launch ends, in a test or not.
#[test]
fn an_honest_launch_that_ends_while_it_is_stopped_owes_nothing() {
    for length in (19_000..26_000).step_by(70) {
        let played = Slice::of_one_launch(length).play(60);
        assert_eq!((played.freezes, played.fails_at), (0, None), "{length} ms");
    }
}

/// A stop ends its turns, so its word looks untrue. It is held to its share and goes on.
#[test]
fn an_honest_launch_of_an_emulated_device_goes_on_at_its_share() {
    let honest = Slice {
        stops_at_once: true,
        ..Slice::of_one_launch(3_600_000)
    };
    let played = honest.play(240);
    assert_eq!(played.fails_at, None);
    let part = played.all() * 100 / 240_000;
    assert!((20..=31).contains(&part), "{part} %");
}

/// One process has a launch's turns. Three have three, and a stop does not take them away.
#[test]
fn launches_of_several_processes_that_no_stop_ends_are_said_to_go_on() {
    let several = Slice {
        turns: &[30, 30, 30],
        queued: u64::MAX,
        ..Slice::LIAR
    };
    let fails = several.play(240).fails_at;
    assert!(fails.is_some_and(|at| at < 60_000), "{fails:?}");
}

#[test]
fn one_whose_stops_another_process_undoes_is_said_not_to_stand_still() {
    let restless = Slice {
        is_restless: true,
        turns: &[60, 30],
        ..Slice::LIAR
    };
    let fails = restless.play(60).fails_at;
    assert!(fails.is_some_and(|at| at < 10_000), "{fails:?}");
}

/// A tenant that reports seconds of work in flight keeps its lease for eight seconds, waits until that is paid, and passes
/// the gate meanwhile.
#[test]
fn a_long_lease_and_use_past_the_gate_are_not_had_both() {
    const PERIOD: u64 = 27_000;
    let mut time = Time::default();
    let (mut total, mut charged, mut is_stopped, mut next) = (0, 0, false, 0);
    for at in (0..10 * PERIOD).step_by(10) {
        if at >= next {
            let used = [(id(1), Used::Total(total * MS))];
            let look = hard(at, &used, charged);
            match time.look(&look) {
                Step::Freeze(_) => is_stopped = true,
                Step::Thaw => is_stopped = false,
                Step::Nothing | Step::Test => {}
                Step::Fails => panic!("it stands still, at {at}"),
            }
            next = at + if time.is_watched() { 100 } else { 250 };
        }
        // Its lease says so also while it is stopped.
        charged += if at % PERIOD < 8000 { 10 } else { 0 };
        total += if is_stopped { 0 } else { 10 };
    }
    let part = total * 100 / (10 * PERIOD);
    assert!(part <= 33, "{part} %");
}

#[test]
fn one_process_whose_stops_another_undoes_is_ended() {
    for is_sampled in [false, true] {
        let restless = Slice {
            is_restless: true,
            is_sampled,
            turns: &[50],
            ..Slice::LIAR
        };
        let played = restless.play(600);
        let ended = played.fails_at.expect("its stops are of no use");
        assert!(ended < 40_000, "sampled: {is_sampled}, after {ended} ms");
    }
}

/// The hardware gives each process its turns, and the slice pays for one lease.
#[test]
fn first_launches_of_several_processes_of_a_slice_are_honest() {
    for (turns, length) in [
        (&[50, 50][..], 1000),
        (&[50, 50], 2000),
        (&[33, 33], 1000),
        (&[33, 33], 3000),
        (&[25, 25, 25], 2000),
    ] {
        let several = Slice {
            turns,
            queued: u64::MAX,
            until: length,
            ..Slice::LIAR
        };
        let played = several.play(60);
        assert_eq!(
            (played.freezes, played.stopped, played.fails_at),
            (0, 0, None),
            "{turns:?} for {length} ms"
        );
    }
}

/// It has so much queued that no short stop outlasts it, and queues as much again behind each.
#[test]
fn one_whose_queue_is_deeper_than_the_first_tests_has_its_share_in_the_end() {
    for is_sampled in [false, true] {
        let queues = Slice {
            turns: &[50],
            queued: 3000,
            is_sampled,
            ..Slice::LIAR
        };
        let played = queues.play(900);
        assert_eq!(played.fails_at, None);
        let part = played.all() * 100 / 900_000;
        assert!(part <= 33, "sampled: {is_sampled}, {part} %");
        assert!(played.freezes > 0);
    }
}

/// A driver that gave no figure for some seconds, once: an honest launch of an hour was stopped for 11 s at a time behind that.
#[test]
fn a_driver_that_was_late_once_makes_no_test_longer_for_ever() {
    for is_sampled in [false, true] {
        let honest = Slice {
            is_sampled,
            ..Slice::of_one_launch(3_600_000)
        };
        let delayed = Slice {
            silent: 5000,
            until: 3_605_000,
            ..honest
        };
        let (usual, delayed) = (honest.play(3_700), delayed.play(3_700));
        assert_eq!((delayed.freezes, delayed.fails_at), (0, None), "{is_sampled}");
        let more = delayed.stopped - usual.stopped;
        // One test at most is longer by the delay. What is sampled shows none.
        let most = if is_sampled { 1000 } else { 20_000 };
        assert!(more <= most, "sampled: {is_sampled}, {more} ms more");
        assert!(delayed.longest_stop <= 12_000, "{} ms", delayed.longest_stop);
    }
}

/// It leaves a lease of eight seconds unused. Beside a neighbour whose figures come, its own are not taken for late.
#[test]
fn a_lease_that_is_left_unused_is_not_had_later_past_the_gate() {
    const PERIOD: u64 = 27_000;
    let mut time = Time::default();
    let (mut total, mut charged, mut is_stopped, mut next) = (0, 0, false, 0);
    let mut had: Vec<u64> = Vec::new();
    for at in (0..10 * PERIOD).step_by(10) {
        if at >= next {
            let used = [(id(1), Used::Total(total * MS))];
            time.note_told();
            let step = time.look(&hard(at, &used, charged));
            match step {
                Step::Freeze(_) => is_stopped = true,
                Step::Thaw => is_stopped = false,
                Step::Nothing | Step::Test => {}
                Step::Fails => panic!("it stands still, at {at}"),
            }
            next = at + if time.is_watched() { 100 } else { 250 };
        }
        let of_period = at % PERIOD;
        charged += if of_period < 8000 { 10 } else { 0 };
        let uses = !is_stopped && (12_000..17_300).contains(&of_period);
        total += if uses { 10 } else { 0 };
        had.push(if uses { 10 } else { 0 });
    }
    let windows = had.windows(500).map(|window| window.iter().sum::<u64>());
    let most = windows.max().expect("some");
    assert!(most <= 2000, "{most} ms of five seconds");
}
