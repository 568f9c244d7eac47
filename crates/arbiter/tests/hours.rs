//! Hours of launches of random lengths, 50 µs to a second, of tenants that stay and of newcomers that come and are killed.
//! No gate knows a length before it has seen a launch, and the devices run in turns what is in flight at once.
//!
//! An hour by default; `DIVVY_TEST_HOURS=24` for a day.

use divvy_arbiter::sim::{
    Actor, Lengths, Load, Outcome, Random, Scenario, Sharing, Step, Turn, percentile, run,
};
use divvy_arbiter::{MICROSECOND, MILLISECOND, Nanos, SECOND, Share, Terms};

const LONGEST: Nanos = SECOND;
const HOUR: Nanos = 3600 * SECOND;

const SOFT: usize = 0;
const HARD: usize = 1;
const CRITICAL: usize = 2;
/// Percent of the device: the sum is 100.
const SHARES: [u16; 3] = [30, 20, 10];
const NEWCOMER: u16 = 40;

/// Within this time of its arrival a tenant's lengths are learnt, and what that cost is repaid.
const LEARNS: Nanos = 30 * SECOND;

struct Newcomer {
    actor: usize,
    hard: bool,
    from: Nanos,
    to: Nanos,
}

fn share(percent: u16) -> Share {
    Share::new(percent * 100).expect("a share")
}

fn lengths(random: &mut Random) -> Lengths {
    match random.between(0, 3) {
        // One function: only its arguments tell how long it takes.
        0 => Lengths::Uniform(50 * MICROSECOND, LONGEST),
        1 => Lengths::OneOf(vec![
            50 * MICROSECOND,
            MILLISECOND,
            20 * MILLISECOND,
            300 * MILLISECOND,
            LONGEST,
        ]),
        // From 50 µs to a second, each power of two as often.
        2 => Lengths::Fixed(((50 * MICROSECOND) << random.between(0, 15)).min(LONGEST)),
        _ => Lengths::mixed(),
    }
}

fn scenario(hours: u64) -> (Scenario, Vec<Newcomer>) {
    let mut random = Random::new(7);
    let mut actors = vec![
        Actor::new(
            Terms::soft(share(SHARES[SOFT])),
            Load::Greedy(Lengths::Uniform(50 * MICROSECOND, LONGEST)),
        ),
        Actor::new(
            Terms::hard(share(SHARES[HARD])),
            Load::Greedy(Lengths::OneOf(vec![
                50 * MICROSECOND,
                MILLISECOND,
                20 * MILLISECOND,
                LONGEST,
            ])),
        ),
        Actor::new(
            Terms::latency(share(SHARES[CRITICAL])),
            Load::Requests {
                every: 100 * MILLISECOND,
                kernels: 10,
                lengths: Lengths::Fixed(MILLISECOND / 2),
            },
        ),
    ];
    let (mut steps, mut newcomers) = (Vec::new(), Vec::new());
    let mut from = 60 * SECOND;
    loop {
        let to = from + random.between(90, 600) * SECOND;
        if to > hours * HOUR {
            break;
        }
        let hard = random.between(0, 1) == 1;
        let terms = if hard { Terms::hard } else { Terms::soft };
        let actor = actors.len();
        actors.push(Actor::new(terms(share(NEWCOMER)), Load::Greedy(lengths(&mut random))).from(from));
        steps.push(Step {
            at: to,
            actor,
            turn: Turn::Kill,
        });
        newcomers.push(Newcomer {
            actor,
            hard,
            from,
            to,
        });
        from = to + random.between(5, 60) * SECOND;
    }
    let mut scenario = Scenario {
        lasts: hours * HOUR,
        bin: SECOND,
        steps,
        ..Scenario::new(Sharing::leases(), actors)
    };
    scenario.host.learns = true;
    scenario.host.slice = Some(2 * MILLISECOND);
    (scenario, newcomers)
}

/// How far a tenant is from its share, in units of what is allowed: a point, or a launch of the window. A hard cap pays
/// for the critical tenant's requests that the device runs within its launches: `taken` percent at most.
fn error(outcome: &Outcome, actor: usize, percent: u16, hard: bool, from: Nanos, to: Nanos) -> f64 {
    let got = outcome.percent(actor, from, to) - f64::from(percent);
    let allowed = (LONGEST as f64 * 100.0 / (to - from) as f64).max(1.0);
    let taken = outcome.percent(CRITICAL, from, to) * f64::from(percent) / 100.0;
    let less = (-got - if hard { taken } else { 0.0 }).max(0.0);
    // A soft share may have what others leave.
    let more = if hard { got.max(0.0) } else { 0.0 };
    less.max(more) / allowed
}

#[test]
fn hours_of_random_lengths_leave_shares_as_they_should_be() {
    let hours =
        std::env::var("DIVVY_TEST_HOURS").map_or(1, |hours| hours.parse().expect("a number of hours"));
    let (scenario, newcomers) = scenario(hours);
    let outcome = run(&scenario);
    let mut worst = [0.0_f64; 3];
    for newcomer in &newcomers {
        let (from, to) = (newcomer.from + LEARNS, newcomer.to - SECOND);
        let soft = error(&outcome, SOFT, SHARES[SOFT], false, from, to);
        let hard = error(&outcome, HARD, SHARES[HARD], true, from, to);
        let theirs = error(&outcome, newcomer.actor, NEWCOMER, newcomer.hard, from, to);
        for (worst, error) in worst.iter_mut().zip([soft, hard, theirs]) {
            *worst = worst.max(error);
        }
    }
    let over_all = [
        outcome.percent(SOFT, LEARNS, hours * HOUR),
        outcome.percent(HARD, LEARNS, hours * HOUR),
    ];
    let kept = outcome.conservation();
    let learning = |at: Nanos| {
        at < LEARNS
            || newcomers
                .iter()
                .any(|newcomer| (newcomer.from..newcomer.from + LEARNS).contains(&at))
    };
    let late: Vec<_> = outcome
        .overlaps
        .iter()
        .filter(|(from, _)| !learning(*from))
        .collect();
    let waited = percentile(&outcome.actors[CRITICAL].latencies, 99.0);
    println!(
        "{hours} h, {} newcomers: {:.2} % and {:.2} % of 30 (soft) and 20 (hard); worst errors {worst:.2?} of what is allowed; \
         {kept:.2} % used; {} overlaps, {} of them later than the first launches; p99 {} ms; {} incidents",
        newcomers.len(),
        over_all[0],
        over_all[1],
        outcome.overlaps.len(),
        late.len(),
        waited / MILLISECOND,
        outcome.incidents.len(),
    );
    assert!(outcome.refusals.is_empty());
    assert_eq!(
        outcome.registered,
        3 + newcomers
            .iter()
            .filter(|newcomer| newcomer.to == hours * HOUR)
            .count()
    );
    assert!(worst.iter().all(|error| *error <= 1.0), "{worst:?}");
    assert!((over_all[1] - 20.0).abs() <= 1.0, "{over_all:?}");
    assert!(kept >= 97.0, "{kept} %");
    assert!(late.is_empty(), "{late:?}");
    assert!(waited <= LONGEST + 100 * MILLISECOND, "{waited} ns");
}
