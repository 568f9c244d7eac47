//! Eight processes race on a slice of 1 GiB; a thousand are killed at random moments. The ledger stays exact.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use divvy_ledger::ReserveError;
use divvy_ledger::attach::{self, Attached};
use support::{Dice, MIB, Player, Slice, part, say, told};

const LIMIT: u64 = 1024 * MIB;
const SIZES: [u64; 3] = [MIB, 16 * MIB, 100 * MIB];

/// The roles that this binary plays when a test starts it again.
#[test]
fn child() {
    let Some((part, path)) = part() else { return };
    match part.as_str() {
        "racer" => racer(&attach::connect(&path, 0).expect("attach")),
        "victim" => victim(&attach::connect(&path, 0).expect("attach")),
        other => panic!("no part {other}"),
    }
}

/// Takes one request; a refusal must be justified.
fn request(tenant: &Attached, bytes: u64, held: &mut Vec<u64>) -> bool {
    match tenant.reserve(bytes) {
        Ok(()) => {
            held.push(bytes);
            true
        }
        Err(ReserveError::Refused {
            limit_bytes,
            used_bytes,
        }) => {
            assert_eq!(limit_bytes, LIMIT);
            assert!(
                used_bytes <= LIMIT && used_bytes + bytes > LIMIT,
                "{bytes} refused at {used_bytes}"
            );
            false
        }
        Err(error) => panic!("{error}"),
    }
}

fn racer(tenant: &Attached) {
    say("ready");
    loop {
        let mut dice = Dice(told().parse().expect("a seed"));
        let mut held = Vec::new();
        for _ in 0..60 {
            if dice.below(3) == 0 && !held.is_empty() {
                let given = held.swap_remove(dice.below(held.len() as u64) as usize);
                tenant.release(given).expect("release");
            } else {
                request(tenant, SIZES[dice.below(3) as usize], &mut held);
            }
        }
        // From here on until nothing fits, in any size down to the smallest.
        say("filling");
        told();
        while request(tenant, SIZES[dice.below(3) as usize], &mut held) || request(tenant, MIB, &mut held) {}
        say(&held.iter().sum::<u64>().to_string());
        told();
        held.drain(..)
            .for_each(|bytes| tenant.release(bytes).expect("release"));
        say("empty");
    }
}

#[test]
fn eight_processes_race_on_one_gib() {
    let slice = Slice::new(LIMIT);
    let ledger = &slice.pages.ledger;
    let mut racers: Vec<_> = (0..8).map(|_| Player::start("racer", &slice.path)).collect();
    racers.iter_mut().for_each(|racer| racer.expect("ready"));
    let over = AtomicBool::new(false);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if ledger.total_used() > LIMIT {
                    over.store(true, Ordering::Relaxed);
                }
                thread::yield_now();
            }
        });
        for trial in 0..200_u64 {
            for (number, racer) in racers.iter_mut().enumerate() {
                racer.tell(&(trial * 8 + number as u64 + 1).to_string());
            }
            racers.iter_mut().for_each(|racer| racer.expect("filling"));
            racers.iter_mut().for_each(|racer| racer.tell("fill"));
            let sum: u64 = racers
                .iter_mut()
                .map(|racer| racer.hear().expect("its sum").parse::<u64>().expect("a number"))
                .sum();
            // All continued until 1 MiB was refused: not a byte above the limit, nor a MiB below it.
            assert_eq!((sum, ledger.total_used()), (LIMIT, LIMIT), "trial {trial}");
            assert_eq!(
                ledger.processes().map(|process| process.used_bytes).sum::<u64>(),
                LIMIT
            );
            racers.iter_mut().for_each(|racer| racer.tell("empty"));
            racers.iter_mut().for_each(|racer| racer.expect("empty"));
            assert_eq!(ledger.total_used(), 0, "trial {trial}");
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(!over.into_inner(), "the total was seen above the limit");
    drop(racers);
    slice.expect_empty();
}

/// Works until it is killed: two threads, every kind of operation, most of them in flight at any moment.
fn victim(tenant: &Attached) {
    say("ready");
    thread::scope(|scope| {
        for seed in [3, 5] {
            scope.spawn(move || {
                let mut dice = Dice(seed);
                let mut held = Vec::new();
                loop {
                    let bytes = 512 << dice.below(12);
                    if held.len() < 64 && tenant.slot().reserve(bytes, LIMIT).is_ok() {
                        held.push(bytes);
                    } else if let Some(bytes) = held.pop() {
                        tenant.release(bytes).expect("release");
                    }
                }
            });
        }
    });
}

#[test]
fn a_thousand_are_killed_at_random_moments() {
    let slice = Slice::new(LIMIT);
    let survivor = slice.attach();
    let mut dice = Dice(11);
    for round in 0..250 {
        let mut victims: Vec<_> = (0..4).map(|_| Player::start("victim", &slice.path)).collect();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            // Other processes' operations overwrite the words that name the victims' operations.
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    survivor.slot().reserve(512, LIMIT).expect("it fits");
                    survivor.release(512).expect("release");
                }
            });
            // Some are killed before they attach, some during it, and most at work.
            let early = dice.below(5) == 0;
            for victim in &mut victims {
                if !early {
                    victim.expect("ready");
                }
                thread::sleep(Duration::from_micros(dice.below(1500)));
                victim.kill();
            }
            stop.store(true, Ordering::Relaxed);
        });
        // They are dead: a process that needs their bytes gets them at the first call.
        survivor
            .reserve(LIMIT)
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        survivor.release(LIMIT).expect("release");
        slice.pages.ledger.reap().expect("reap");
        assert_eq!(slice.pages.ledger.total_used(), 0, "round {round}");
        assert_eq!(slice.pages.ledger.processes().count(), 1, "round {round}");
    }
    drop(survivor);
    slice.expect_empty();
}
