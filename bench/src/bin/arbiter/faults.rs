//! What others see when a holder is killed, stopped, or never ends.

use divvy_arbiter::sim::{Actor, Lengths, Load, Scenario, Sharing, Step, Turn, run};
use divvy_arbiter::{MICROSECOND, MILLISECOND, Nanos, SECOND, Terms};

use super::shares::share;

pub fn print(repeats: u64) {
    println!(
        "\nFaults: the longest time without the device for the one beside, over {} moments",
        repeats * 20
    );
    println!(
        "  killed   {:>4} ms (target 50 ms; contexts take 10 ms to go)",
        gap(repeats, Turn::Kill) / MILLISECOND
    );
    println!("  stopped  {:>4} ms", gap(repeats, Turn::Stop) / MILLISECOND);
}

fn gap(repeats: u64, turn: Turn) -> Nanos {
    let mut worst = 0;
    for moment in 0..repeats * 20 {
        let greedy = || {
            Actor::new(
                Terms::soft(share(50.0)),
                Load::Greedy(Lengths::Fixed(MILLISECOND)),
            )
        };
        let outcome = run(&Scenario {
            lasts: 3 * SECOND,
            steps: vec![Step {
                at: 2 * SECOND + moment * 137 * MICROSECOND,
                actor: 0,
                turn: turn.clone(),
            }],
            ..Scenario::new(Sharing::leases(), vec![greedy(), greedy()])
        });
        worst = worst.max(outcome.longest_gap(1, SECOND));
    }
    worst
}
