//! Slices that say that launches of an expired lease are in flight: their word is tested by a stop.

use divvy_model::SliceRecord;
use rustix::process::Signal;

use super::whole::{DEVICE, MS, Says, Whole, lives, supervised};
use super::{Shell, is_stopped, until};
use crate::api::events::EventKind;
use crate::decide::supervise::time::Used;

const SLICE: &str = "0123abcd";
/// The pause between two looks.
const PAUSE: u64 = 100 * MS;

/// A process whose slice's lease has expired.
struct Program<'a> {
    whole: &'a Whole,
    pid: u32,
    /// What the driver and the arbiter say of it so far.
    used: u64,
    outlasted: u64,
}

impl<'a> Program<'a> {
    fn start(whole: &'a Whole, shell: &mut Shell) -> Self {
        let pid = shell.spawn();
        Self {
            whole,
            pid,
            used: 0,
            outlasted: 0,
        }
    }

    /// Looks so many times. The process uses the whole device between two looks, unless it is stopped and `stands_still`
    /// then. Another process lets it go on behind each look if `is_continued`. Returns the looks at which it was stopped.
    fn play(&mut self, records: &[SliceRecord], looks: u64, stands_still: bool, is_continued: bool) -> u64 {
        let mut stopped = 0;
        for _ in 0..looks {
            let before = is_stopped(self.pid);
            stopped += u64::from(before);
            self.used += if before && stands_still { 0 } else { PAUSE };
            self.outlasted += PAUSE;
            let says = Says {
                used: vec![(self.pid, Used::Total(self.used))],
                charged: vec![(SLICE.to_owned(), 0)],
                outlasted: self.outlasted,
                since: PAUSE,
                ..Says::nothing()
            };
            self.whole.look(records, says);
            // The kernel does what it was told: a process that has not stopped yet would look like one that another continues.
            let of = (SLICE.to_owned(), DEVICE.to_owned());
            let is_frozen = self.whole.supervisor.lock().accounts.all[&of].is_frozen[1];
            until(|| !lives(self.pid) || is_stopped(self.pid) == is_frozen);
            if is_continued {
                let pid = rustix::process::Pid::from_raw(self.pid.cast_signed()).expect("a number");
                let _may_have_ended = rustix::process::kill_process(pid, Signal::CONT);
            }
            if !lives(self.pid) {
                break;
            }
        }
        stopped
    }
}

#[test]
fn a_launch_that_goes_on_while_its_slice_is_stopped_is_told_of_to_no_one() {
    let whole = Whole::start();
    let mut shell = Shell::start();
    let mut program = Program::start(&whole, &mut shell);
    let records = [supervised(SLICE, &shell)];
    let stopped = program.play(&records, 600, false, false);
    assert!((10..100).contains(&stopped), "stopped for {stopped} looks of 600");
    assert!(lives(program.pid) && !is_stopped(program.pid));
    assert!(whole.events().is_empty(), "{:?}", whole.events());
}

#[test]
fn one_that_stands_still_and_then_uses_the_device_again_pays_it_back() {
    let whole = Whole::start();
    let mut shell = Shell::start();
    let mut program = Program::start(&whole, &mut shell);
    let records = [supervised(SLICE, &shell)];
    let stopped = program.play(&records, 600, true, false);
    assert!(stopped > 350, "stopped for {stopped} looks of 600");
    assert!(lives(program.pid));
    let events = whole.events();
    let frozen = events.iter().find(|event| event.kind == EventKind::Frozen);
    let message = &frozen.expect("it is told of").message;
    assert!(
        message.contains("though it reports launches in flight"),
        "{message}"
    );
    assert!(!whole.has(EventKind::OveruseEnded), "{events:?}");
}

/// Its use goes on because it is continued, and not because a launch is in flight.
#[test]
fn one_that_another_process_continues_is_ended_whatever_it_says_of_its_launches() {
    let whole = Whole::start();
    let mut shell = Shell::start();
    let mut program = Program::start(&whole, &mut shell);
    let mut records = [supervised(SLICE, &shell)];
    // It stands still in the test only.
    program.play(&records, 80, true, false);
    assert!(whole.has(EventKind::Frozen), "{:?}", whole.events());
    records[0].terms.on_overuse = divvy_model::OnOveruse::Freeze;
    program.play(&records, 600, false, true);
    assert!(!lives(program.pid), "{:?}", whole.events());
    assert!(whole.has(EventKind::OveruseEnded), "{:?}", whole.events());
}

#[test]
fn a_helper_that_undoes_stops_shows_no_launch_in_flight() {
    let whole = Whole::start();
    let mut shell = Shell::start();
    let mut program = Program::start(&whole, &mut shell);
    let records = [supervised(SLICE, &shell)];
    program.play(&records, 600, false, true);
    assert!(!lives(program.pid), "{:?}", whole.events());
    assert!(whole.has(EventKind::OveruseEnded), "{:?}", whole.events());
}

/// Plays a process that holds little, for so many looks, and whose slice ends at look `ends`. Until then it is charged for its
/// use, or for none of it. Returns the nanoseconds that it had of the device behind the end.
fn outlives(looks: u64, ends: u64, is_charged: bool) -> u64 {
    let whole = Whole::start();
    let mut shell = Shell::start();
    let pid = shell.spawn();
    let records = [supervised(SLICE, &shell)];
    let (mut used, mut after) = (0, 0);
    for look in 0..looks {
        let had = if is_stopped(pid) { 0 } else { PAUSE };
        let has_ended = look >= ends;
        used += had;
        after += if has_ended { had } else { 0 };
        let charged = match (has_ended, is_charged) {
            (true, _) => Vec::new(),
            (false, true) => vec![(SLICE.to_owned(), used)],
            (false, false) => vec![(SLICE.to_owned(), 0)],
        };
        let says = Says {
            memory: vec![(pid, 30 << 20)],
            used: vec![(pid, Used::Total(used))],
            charged,
            since: PAUSE,
            ..Says::nothing()
        };
        whole.look(if has_ended { &[] } else { &records }, says);
        // The kernel does what it was told.
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    after
}

#[test]
fn a_process_that_outlives_its_slice_has_no_share_of_the_device() {
    const SECOND: u64 = 1000 * MS;
    let honest_before = outlives(600, 20, true);
    assert!(honest_before <= 3 * SECOND, "{honest_before} ns of 58 s");
    let frozen_before = outlives(600, 40, false);
    assert!(frozen_before <= SECOND, "{frozen_before} ns of 56 s");
}
