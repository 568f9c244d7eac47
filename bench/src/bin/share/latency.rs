//! A latency-critical tenant beside two best-effort ones.

use std::time::Duration;

use divvy_arbiter::sim::{Outcome, percentile};
use divvy_arbiter::{MICROSECOND, MILLISECOND, Nanos, SECOND};
use divvy_bench::statistics::median;

use crate::host::{Host, Tenant, Way};
use crate::measure::{PAUSE, outcome, watch};
use crate::shares::{SETTLE, greedy};
use crate::tenant::Work;
use crate::{Bench, gaps, verdict};

/// Requests of 10 kernels of 0.5 ms that keep the device busy for this many parts in a hundred.
fn requests(load: u64) -> Work {
    Work {
        lengths: vec![MILLISECOND / 2],
        // Without a load it waits: the others then keep all but what an idle tenant costs them.
        every: Some((5 * MILLISECOND * 100).checked_div(load).unwrap_or(3600 * SECOND)),
        kernels: 10,
        seed: load,
        ahead: 0,
        computes: false,
        one_shape: false,
        nodes: 0,
    }
}

/// What came of one play.
struct Heard {
    latencies: Vec<Nanos>,
    outcome: Outcome,
}

/// Beside kernels up to 1 ms: the ratios that a percentile may come to, and what the others keep at least.
const P50: f64 = 1.10;
const P99: f64 = 1.05;
const KEPT: f64 = 0.90;
/// Beside longer ones: the longest and this, in nanoseconds.
const BEYOND_LONGEST: Nanos = MILLISECOND;

/// Answers how many rows miss a target.
pub fn print(bench: &Bench) -> anyhow::Result<u32> {
    let mut missed = 0;
    println!(
        "\nLatency: requests of 10 kernels of 0.5 ms by a Poisson process, beside two that always have work;"
    );
    println!(
        "ratio to alone, same arrivals, {} s each; medians of {} rounds; its share is its load and {} points",
        bench.lasts.as_secs(),
        bench.rounds,
        bench.headroom
    );
    println!(
        "targets: p50 <= 1.10, p99 <= 1.05, kept >= 0.90 beside 50 µs to 1 ms; beside longer ones: p99 + <= one and 1 ms\n"
    );
    println!(
        "{:<14}{:>6} {:<16}{:>9}{:>9}{:>9}{:>10}{:>10}{:>8}",
        "sharing", "load", "others' kernels", "p50", "p99", "p99.9", "p50 + ms", "p99 + ms", "kept"
    );
    let others: [(&str, &[Nanos]); 6] = [
        ("50 µs", &[50 * MICROSECOND]),
        (
            "50 µs to 1 ms",
            &[
                50 * MICROSECOND,
                200 * MICROSECOND,
                500 * MICROSECOND,
                MILLISECOND,
            ],
        ),
        ("1 ms", &[MILLISECOND]),
        ("20 ms", &[20 * MILLISECOND]),
        ("80 ms", &[80 * MILLISECOND]),
        ("300 ms", &[300 * MILLISECOND]),
    ];
    for way in [Way::Leases(&[]), Way::Off]
        .into_iter()
        .filter(|way| bench.wants_way(*way))
    {
        for load in bench.loads.iter().copied() {
            let wanted = others.iter().filter(|(name, _)| bench.wants_kernel(name));
            let mut rows: Vec<(&str, &[Nanos], Vec<Row>)> = wanted
                .map(|(name, lengths)| (*name, *lengths, Vec::new()))
                .collect();
            for _ in 0..bench.rounds {
                let solo = play(bench, way, load, None)?;
                for (_, lengths, heard) in &mut rows {
                    heard.push(Row::of(&solo, &play(bench, way, load, Some(lengths))?));
                }
            }
            for (name, lengths, heard) in &rows {
                let row = Row::median(heard);
                let longest = lengths.iter().copied().max().unwrap_or(0);
                let met = match longest <= MILLISECOND {
                    true => row.p50 <= P50 && row.p99 <= P99 && row.kept >= KEPT,
                    false => row.more_99 * 1e6 <= (longest + BEYOND_LONGEST) as f64,
                };
                let met = if way.is_ours() {
                    verdict(met, &mut missed)
                } else {
                    ""
                };
                println!(
                    "{:<14}{load:>4} % {name:<16}{:>9.3}{:>9.3}{:>9.3}{:>10.2}{:>10.2}{:>8.3}  {met}",
                    way.name(),
                    row.p50,
                    row.p99,
                    row.p999,
                    row.more_50,
                    row.more_99,
                    row.kept
                );
            }
        }
        println!();
    }
    Ok(missed)
}

/// A row's figures: ratios to alone, milliseconds more, and the part that the others kept of what is left.
struct Row {
    p50: f64,
    p99: f64,
    p999: f64,
    more_50: f64,
    more_99: f64,
    kept: f64,
}

impl Row {
    fn of(solo: &Heard, beside: &Heard) -> Self {
        let at = |heard: &Heard, percent| percentile(&heard.latencies, percent) as f64;
        let ratio = |percent| at(beside, percent) / at(solo, percent).max(1.0);
        let more = |percent| (at(beside, percent) - at(solo, percent)) / 1e6;
        let lasted = beside.outcome.lasted as f64;
        let free = lasted - solo.outcome.actors[0].busy as f64 * lasted / solo.outcome.lasted as f64;
        Self {
            p50: ratio(50.0),
            p99: ratio(99.0),
            p999: ratio(99.9),
            more_50: more(50.0),
            more_99: more(99.0),
            kept: (beside.outcome.actors[1].busy + beside.outcome.actors[2].busy) as f64 / free,
        }
    }

    fn median(rows: &[Self]) -> Self {
        let of = |what: fn(&Self) -> f64| median(&mut rows.iter().map(what).collect::<Vec<_>>());
        Self {
            p50: of(|row| row.p50),
            p99: of(|row| row.p99),
            p999: of(|row| row.p999),
            more_50: of(|row| row.more_50),
            more_99: of(|row| row.more_99),
            kept: of(|row| row.kept),
        }
    }
}

fn play(bench: &Bench, way: Way, load: u64, others: Option<&[Nanos]>) -> anyhow::Result<Heard> {
    let host = bench.host()?;
    let critical = match way {
        Way::Leases(_) => Way::Leases(&["--class", "latency"]),
        Way::TimeSlicing | Way::Off => way,
    };
    let mut tenants = vec![host.start(
        critical,
        "critical",
        (load + bench.headroom) as f64,
        &requests(load),
    )?];
    for (n, lengths) in (1..=2).zip(others.into_iter().cycle()) {
        tenants.push(best_effort(&host, way, n, lengths)?);
    }
    let engine = host.engine()?;
    for tenant in &mut tenants {
        tenant.go()?;
    }
    std::thread::sleep(SETTLE);
    let pids: Vec<u32> = tenants.iter().map(|tenant| tenant.pid).collect();
    if bench.traces && others.is_some() {
        gaps::trace(&engine, &pids)?;
    }
    let samples = watch(&engine, bench.lasts, PAUSE)?;
    tenants.iter_mut().for_each(Tenant::stop);
    let mut said = Vec::new();
    for tenant in tenants {
        said.push(tenant.end()?);
    }
    let skipped =
        SETTLE.as_nanos() as f64 / (SETTLE + bench.lasts + Duration::from_millis(1)).as_nanos() as f64;
    let mut latencies = said.swap_remove(0).latencies;
    latencies.drain(..(latencies.len() as f64 * skipped) as usize);
    Ok(Heard {
        latencies,
        outcome: outcome(&samples, &pids),
    })
}

fn best_effort(host: &Host, way: Way, n: u64, lengths: &[Nanos]) -> anyhow::Result<Tenant> {
    host.start(way, &format!("beside{n}"), 0.0, &greedy(lengths, n))
}
