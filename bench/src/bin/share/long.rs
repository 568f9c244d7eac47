//! Launches of 80 ms to a second, captured steps, and one function of many lengths: do shares hold, is the device used,
//! and do two tenants' launches overlap?

use std::time::Duration;

use divvy_arbiter::sim::Outcome;
use divvy_arbiter::{MILLISECOND, Nanos};

use crate::engine::Sample;
use crate::host::{Tenant, Way};
use crate::measure::{outcome, watch};
use crate::shares::greedy;
use crate::tenant::Work;
use crate::{Bench, verdict};

const SPLITS: [(&str, &[f64]); 4] = [
    ("30/70", &[30.0, 70.0]),
    ("50/50", &[50.0, 50.0]),
    ("20/30/50", &[20.0, 30.0, 50.0]),
    ("4 x 25", &[25.0; 4]),
];

/// What the tenants launch: the n-th tenant takes the n-th list of lengths, the first again behind the last.
struct Launches {
    name: &'static str,
    lengths: &'static [&'static [Nanos]],
    one_shape: bool,
    nodes: u32,
}

const fn fixed(name: &'static str, lengths: &'static [&'static [Nanos]]) -> Launches {
    Launches {
        name,
        lengths,
        one_shape: false,
        nodes: 0,
    }
}

const ROWS: [Launches; 6] = [
    fixed("80 ms", &[&[80 * MILLISECOND]]),
    fixed("300 ms", &[&[300 * MILLISECOND]]),
    fixed("1 s", &[&[1000 * MILLISECOND]]),
    // A captured step of 200 nodes.
    Launches {
        nodes: 200,
        ..fixed("graph", &[&[200 * MILLISECOND]])
    },
    // One function, and only its argument tells how long it takes.
    Launches {
        one_shape: true,
        ..fixed(
            "grows",
            &[&[
                MILLISECOND,
                5 * MILLISECOND,
                25 * MILLISECOND,
                100 * MILLISECOND,
                300 * MILLISECOND,
            ]],
        )
    },
    // The first tenant's are long, the others' short.
    fixed(
        "one long",
        &[
            &[300 * MILLISECOND],
            &[MILLISECOND],
            &[MILLISECOND],
            &[MILLISECOND],
        ],
    ),
];

/// Time to find their pace: first launches of unknown lengths overlap, and what they cost is then repaid.
const SETTLE: Duration = Duration::from_secs(12);
/// A row lasts for as many of its longest launch, or as the command line says.
const LAUNCHES: u32 = 60;
const PAUSE: Duration = Duration::from_micros(300);
/// Two samples so close together tell whether two tenants ran between them.
const CLOSE: Nanos = MILLISECOND;

/// What came of a row.
struct Seen {
    outcome: Outcome,
    /// The longest time in which two tenants had the device in turns, within a launch; nanoseconds.
    overlap: Nanos,
}

/// Answers how many rows miss a target.
pub fn print(bench: &Bench) -> anyhow::Result<u32> {
    println!("\nLong launches: all tenants always have work");
    println!("targets: error <= 1 point or one launch of the row; kept >= 97 %; overlap <= 1 ms\n");
    println!(
        "{:<14}{:<10}{:<10}{:>7}{:>9}{:>9}{:>9}{:>8}{:>12}",
        "sharing", "split", "launches", "s", "error", "allowed", "split", "kept %", "overlap ms"
    );
    let mut missed = 0;
    for way in bench.ways().into_iter().filter(|way| way.is_ours()) {
        for (split_name, split) in SPLITS.iter().filter(|(name, _)| bench.wants(name)) {
            for row in ROWS.iter().filter(|row| bench.wants_kernel(row.name)) {
                if row.lengths.len() > split.len() {
                    continue;
                }
                let longest = row.lengths.iter().copied().flatten().copied().max().unwrap_or(0);
                let lasts = bench.lasts.max(Duration::from_nanos(longest) * LAUNCHES);
                let Seen { outcome, overlap } = play(bench, way, split, row, lasts)?;
                let error = outcome.error(split, 0, outcome.lasted, false);
                let of_used = outcome.error(split, 0, outcome.lasted, true);
                let allowed = (longest as f64 * 100.0 / outcome.lasted as f64).max(1.0);
                let kept = outcome.busy.iter().sum::<Nanos>() as f64 * 100.0 / outcome.lasted as f64;
                let met = error <= allowed && kept >= 97.0 && overlap <= MILLISECOND;
                println!(
                    "{:<14}{split_name:<10}{:<10}{:>7}{error:>9.2}{allowed:>9.2}{of_used:>9.2}{kept:>8.1}{:>12.2}  {}",
                    way.name(),
                    row.name,
                    lasts.as_secs(),
                    overlap as f64 / 1e6,
                    verdict(met, &mut missed)
                );
            }
        }
        println!();
    }
    Ok(missed)
}

fn play(bench: &Bench, way: Way, split: &[f64], row: &Launches, lasts: Duration) -> anyhow::Result<Seen> {
    let host = bench.host()?;
    let mut tenants: Vec<Tenant> = Vec::new();
    for ((n, share), lengths) in (1..).zip(split).zip(row.lengths.iter().cycle()) {
        let work = Work {
            one_shape: row.one_shape,
            nodes: row.nodes,
            ..greedy(lengths, n)
        };
        tenants.push(host.start(way, &format!("tenant{n}"), *share, &work)?);
    }
    let engine = host.engine()?;
    for tenant in &mut tenants {
        tenant.go()?;
    }
    std::thread::sleep(SETTLE);
    let samples = watch(&engine, lasts, PAUSE)?;
    let pids: Vec<u32> = tenants.iter().map(|tenant| tenant.pid).collect();
    tenants.iter_mut().for_each(Tenant::stop);
    for tenant in tenants {
        tenant.end()?;
    }
    Ok(Seen {
        overlap: overlap(&samples),
        outcome: outcome(&samples, &pids),
    })
}

/// The longest time in which each two neighbouring samples saw two processes run. A change of holder is seen by one
/// pair of samples; where they are far apart they tell nothing.
fn overlap(samples: &[Sample]) -> Nanos {
    let (mut since, mut longest) = (None, 0);
    for pair in samples.windows(2) {
        let time = pair[1].at.saturating_sub(pair[0].at);
        let ran = pair[1]
            .busy
            .iter()
            .filter(|(pid, busy)| **busy > pair[0].busy.get(pid).copied().unwrap_or(0))
            .count();
        match ran {
            2.. if time <= CLOSE => {
                // The first pair is the change itself.
                let from: Nanos = *since.get_or_insert(pair[1].at);
                longest = longest.max(pair[1].at.saturating_sub(from));
            }
            _ => since = None,
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn sample(at: Nanos, one: Nanos, two: Nanos) -> Sample {
        Sample {
            at: at * 100_000,
            busy: HashMap::from([(1, one), (2, two)]),
        }
    }

    #[test]
    fn turns_overlap_and_a_change_of_holder_does_not() {
        let change = [sample(0, 0, 0), sample(3, 3, 0), sample(6, 4, 2), sample(9, 4, 5)];
        assert_eq!(overlap(&change), 0);
        let turns = [
            sample(0, 0, 0),
            sample(3, 3, 0),
            sample(6, 4, 2),
            sample(9, 5, 3),
            sample(12, 6, 4),
            sample(15, 9, 4),
        ];
        assert_eq!(overlap(&turns), 600_000);
        let late = [sample(0, 0, 0), sample(30, 3, 9), sample(60, 6, 15)];
        assert_eq!(overlap(&late), 0, "too far apart");
    }
}
