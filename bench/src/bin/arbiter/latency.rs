//! A latency-critical tenant beside two best-effort ones.

use divvy_arbiter::sim::{Actor, Lengths, Load, Outcome, Scenario, Sharing, percentile, run};
use divvy_arbiter::{MICROSECOND, MILLISECOND, Nanos, SECOND, Terms};
use divvy_bench::statistics::median;

const LASTS: Nanos = 120 * SECOND;

fn play(sharing: Sharing, actors: Vec<Actor>, seed: u64) -> Outcome {
    run(&Scenario {
        lasts: LASTS,
        seed,
        ..Scenario::new(sharing, actors)
    })
}

pub fn print(repeats: u64) {
    println!(
        "\nLatency: requests of 10 kernels of 0.5 ms by a Poisson process, beside two that always have work;"
    );
    println!(
        "ratio to alone, same arrivals; median of {repeats} seeds of {} s",
        LASTS / SECOND
    );
    println!(
        "targets: p50 <= 1.10, p99 <= 1.05, kept >= 0.90 beside 50 µs to 1 ms; beside 20 ms: + <= 21 ms\n"
    );
    println!(
        "{:<14}{:>6} {:<18}{:>8}{:>8}{:>8}{:>10}{:>10}{:>8}",
        "sharing", "load", "others' kernels", "p50", "p99", "p99.9", "p50 + ms", "p99 + ms", "kept"
    );
    let others = [
        ("50 µs", vec![Lengths::Fixed(50 * MICROSECOND); 2]),
        (
            "50 µs and 1 ms",
            vec![Lengths::Fixed(50 * MICROSECOND), Lengths::Fixed(MILLISECOND)],
        ),
        (
            "50 µs to 1 ms",
            vec![Lengths::Uniform(50 * MICROSECOND, MILLISECOND); 2],
        ),
        ("1 ms", vec![Lengths::Fixed(MILLISECOND); 2]),
        ("20 ms", vec![Lengths::Fixed(20 * MILLISECOND); 2]),
    ];
    for (name, sharing) in [
        ("leases", Sharing::leases()),
        ("time-slicing", Sharing::hardware()),
        ("limiter off", Sharing::Fifo { depth: 16 }),
    ] {
        for load in [30, 60] {
            for (kernels, lengths) in &others {
                row(name, &sharing, load, kernels, lengths, repeats);
            }
        }
        println!();
    }
    println!(
        "Beside kernels of exactly 1 ms at 30 % load p50 cannot be 1.10 without preemption: 7 requests of 10 find the"
    );
    println!(
        "other's kernel running, uniformly far from its end, so half of all wait 0.71 ms: 1.14 of 5 ms."
    );
}

fn row(name: &str, sharing: &Sharing, load: u64, kernels: &str, lengths: &[Lengths], repeats: u64) {
    let mut figures = vec![Vec::new(); 6];
    for seed in 1..=repeats {
        let share = super::shares::share(load as f64 + 10.0);
        let critical = Actor::new(Terms::latency(share), Load::inference(load));
        let greedy = |lengths: &Lengths| Actor::new(Terms::weight(1), Load::Greedy(lengths.clone()));
        let solo = play(Sharing::leases(), vec![critical.clone()], seed);
        let actors = [critical].into_iter().chain(lengths.iter().map(greedy)).collect();
        let beside = play(sharing.clone(), actors, seed);
        let at = |outcome: &Outcome, percent| percentile(&outcome.actors[0].latencies, percent) as f64;
        for (n, percent) in [50.0, 99.0, 99.9].into_iter().enumerate() {
            figures[n].push(at(&beside, percent) / at(&solo, percent));
        }
        for (n, percent) in [50.0, 99.0].into_iter().enumerate() {
            figures[3 + n].push((at(&beside, percent) - at(&solo, percent)) / 1e6);
        }
        let got = (beside.actors[1].busy + beside.actors[2].busy) as f64;
        figures[5].push(got / (LASTS - solo.actors[0].busy) as f64);
    }
    let medians: Vec<f64> = figures.iter_mut().map(|values| median(values)).collect();
    println!(
        "{name:<14}{load:>4} % {kernels:<18}{:>8.3}{:>8.3}{:>8.3}{:>10.2}{:>10.2}{:>8.3}",
        medians[0], medians[1], medians[2], medians[3], medians[4], medians[5]
    );
}
