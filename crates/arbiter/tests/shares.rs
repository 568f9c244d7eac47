//! Shares as the model device sees them: the figures of the bench, on short plays.

use divvy_arbiter::sim::{Actor, Lengths, Load, Scenario, Sharing, Step, Turn, run};
use divvy_arbiter::{MICROSECOND, MILLISECOND, SECOND, Share, Terms};

fn share(percent: u16) -> Share {
    Share::new(percent * 100).expect("a share")
}

fn greedy(terms: Terms, lengths: Lengths) -> Actor {
    Actor::new(terms, Load::Greedy(lengths))
}

fn kernels() -> Vec<(&'static str, Lengths)> {
    vec![
        ("50 µs", Lengths::Fixed(50 * MICROSECOND)),
        ("1 ms", Lengths::Fixed(MILLISECOND)),
        ("20 ms", Lengths::Fixed(20 * MILLISECOND)),
        ("mixed", Lengths::mixed()),
    ]
}

fn splits() -> Vec<Vec<u16>> {
    vec![
        vec![10, 90],
        vec![30, 70],
        vec![50, 50],
        vec![20, 30, 50],
        vec![25; 4],
    ]
}

fn check(terms: fn(Share) -> Terms, conserves: bool) {
    for split in splits() {
        for (name, lengths) in kernels() {
            let actors = split
                .iter()
                .map(|&percent| greedy(terms(share(percent)), lengths.clone()));
            let outcome = run(&Scenario {
                lasts: 11 * SECOND,
                ..Scenario::new(Sharing::leases(), actors.collect())
            });
            let shares: Vec<f64> = split.iter().map(|&percent| f64::from(percent)).collect();
            let long = outcome.error(&shares, SECOND, 10 * SECOND, false);
            let short = outcome.error(&shares, SECOND, SECOND, false);
            let jain = outcome.jain(&shares);
            let kept = outcome.conservation();
            assert!(outcome.refusals.is_empty() && outcome.incidents.is_empty());
            assert!(long <= 1.0, "{split:?} of {name}: {long} points at 10 s");
            assert!(short <= 3.0, "{split:?} of {name}: {short} points at 1 s");
            assert!(jain >= 0.99, "{split:?} of {name}: Jain's index {jain}");
            assert!(!conserves || kept >= 97.0, "{split:?} of {name}: {kept} % kept");
        }
    }
}

#[test]
fn soft_shares_are_exact() {
    check(Terms::soft, true);
}

#[test]
fn hard_shares_are_exact() {
    check(Terms::hard, false);
}

#[test]
fn a_changed_share_is_settled_soon() {
    let mut scenario = Scenario::new(
        Sharing::leases(),
        vec![
            greedy(Terms::soft(share(30)), Lengths::Fixed(MILLISECOND)),
            greedy(Terms::soft(share(60)), Lengths::Fixed(MILLISECOND)),
        ],
    );
    scenario.lasts = 6 * SECOND;
    scenario.steps = vec![Step {
        at: 3 * SECOND,
        actor: 0,
        turn: Turn::Resize(Terms::soft(share(40))),
    }];
    let outcome = run(&scenario);
    let took = outcome.settled(&[40.0, 60.0], 3 * SECOND, 200 * MILLISECOND, 3.0, false);
    assert!(took <= 200 * MILLISECOND, "{took} ns");
}
