//! Drivers that sample: each figure is of the last second, and errs.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::{MS, id};
use crate::decide::supervise::time::{Look, Step, Time, Used};

/// Milliseconds of a step.
const STEP: u64 = 10;

/// A slice of 30 % whose driver tells of the last second.
#[derive(Default)]
struct Sampled {
    time: Time,
    at: u64,
    next: u64,
    charged: u64,
    stopped: bool,
    freezes: u64,
    /// The use in each of the last steps.
    last: VecDeque<u64>,
    had: u64,
}

impl Sampled {
    /// One step in which it was charged for so much and wants so much. The driver errs by so many parts of 100, and of what it tells.
    fn step(&mut self, charged: u64, wants: u64, error: i64) {
        if self.at >= self.next {
            let used: u64 = self.last.iter().sum();
            let told = (used as i64 / 10) + error;
            let rate = [(
                id(1),
                Used::Rate(u32::try_from(told.clamp(0, 100)).expect("a part") * 100),
            )];
            let step = self.time.look(&Look {
                at: self.at * MS,
                used: if told <= 0 { &[] } else { &rate },
                dead: 0,
                charged: self.charged * MS,
                outlasted: 0,
                ran: false,
                share: 3000,
                counts: true,
                is_open: false,
            });
            match step {
                Step::Freeze(_) => (self.stopped, self.freezes) = (true, self.freezes + 1),
                Step::Thaw => self.stopped = false,
                Step::Nothing | Step::Test => {}
                Step::Fails => panic!("it stands still, at {}", self.at),
            }
            self.next = self.at + if self.time.is_watched() { 100 } else { 250 };
        }
        // What is stopped launches nothing, and gets no lease.
        self.charged += if self.stopped { 0 } else { charged };
        let used = if self.stopped { 0 } else { wants };
        self.had += used;
        self.last.push_back(used);
        if self.last.len() > 100 {
            self.last.pop_front();
        }
        self.at += STEP;
    }

    fn percent(&self) -> u64 {
        self.had * 100 / self.at
    }
}

/// It had 55 and 50 % for as long as it liked: a quarter of the time was forgiven for ever.
#[test]
fn a_program_that_takes_a_quarter_beside_its_leases_has_little_of_it_in_the_end() {
    for (takes, charged) in [(11, 6), (10, 5), (9, 0), (20, 6)] {
        let mut thief = Sampled::default();
        for turn in 0..60_000_u64 {
            let of = |parts: u64| if turn % 20 < parts { STEP } else { 0 };
            thief.step(of(charged), of(takes), 0);
        }
        assert!(thief.freezes > 0, "{takes} of 20, charged {charged}");
        let had = thief.percent();
        assert!(had <= 34, "{takes} of 20, charged {charged}: {had} %");
    }
}

#[test]
fn a_burst_is_forgiven_and_again_behind_a_quiet_time() {
    let mut slice = Sampled::default();
    for turn in 0..120_000_u64 {
        // Ten seconds of a fifth beside its leases, and a minute and a half without.
        let beside = if turn % 10_000 < 1000 && turn % 5 == 4 {
            STEP
        } else {
            0
        };
        let leased = if turn % 10 < 3 { STEP } else { 0 };
        slice.step(leased, leased + beside, 0);
    }
    assert_eq!(slice.freezes, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Its driver rounds, errs to both sides for up to three seconds on end, and by a tenth of its use to one. Launches take from a
    /// step to some seconds. It is charged for all that it uses.
    #[test]
    fn an_honest_slice_is_let_be_whatever_the_samples_noise(
        launches in prop::collection::vec((1_u64..400, 0_u64..3), 10..60),
        errors in prop::collection::vec(-20_i64..21, 5..50),
        lasts in prop::sample::select(vec![25_u64, 100, 300]),
        too_much in 0_u64..10,
    ) {
        let mut slice = Sampled::default();
        let (mut launch, mut left, mut waits) = (0, 0, 0);
        // What it errs by has a mean of zero.
        let mean = errors.iter().sum::<i64>() / errors.len() as i64;
        for turn in 0..60_000_u64 {
            if left == 0 && waits == 0 {
                let (length, more) = launches[launch % launches.len()];
                launch += 1;
                (left, waits) = (length, length * 7 / 3 + more * 10);
            }
            let runs = left > 0;
            if runs { left -= 1 } else { waits = waits.saturating_sub(1) }
            let used: u64 = slice.last.iter().sum();
            let error = match used {
                0 => 0,
                _ => errors[(turn / lasts) as usize % errors.len()] - mean + (used / 10 * too_much / 100) as i64,
            };
            slice.step(if runs { STEP } else { 0 }, if runs { STEP } else { 0 }, error);
        }
        prop_assert_eq!(slice.freezes, 0);
    }
}
