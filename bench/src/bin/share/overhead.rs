//! What leases cost an undisturbed tenant: its throughput in a slice over its throughput without Divvy. And what
//! supervision costs an honest one: its throughput in a supervised slice over that in a cooperative one, and the shares
//! of two tenants at either level.

use std::time::Instant;

use divvy_arbiter::sim::Outcome;
use divvy_arbiter::{MICROSECOND, MILLISECOND, Nanos};
use divvy_bench::statistics::median;

use crate::host::Way;
use crate::shares::{SETTLE, greedy, play};
use crate::{Bench, verdict};

/// How an undisturbed tenant runs: how it is called, and whether an idle slice stands beside it, so that it leases.
const RUNS: [(&str, Way, f64, bool); 6] = [
    ("without Divvy", Way::Off, 0.0, false),
    ("in a slice, uncapped", Way::Leases(&[]), 0.0, false),
    (
        "in a slice, hard cap of 100 %",
        Way::Leases(&["--cap", "hard"]),
        100.0,
        false,
    ),
    ("in a slice, beside an idle one", Way::Leases(&[]), 0.0, true),
    (
        "supervised, hard cap of 100 %",
        Way::Leases(&["--cap", "hard", "--isolation", "supervised"]),
        100.0,
        false,
    ),
    (
        "supervised, beside an idle one",
        Way::Leases(&["--isolation", "supervised"]),
        0.0,
        true,
    ),
];
/// The supervised runs, each with the cooperative one that is the same otherwise.
const PAIRS: [(usize, usize); 2] = [(4, 2), (5, 3)];

/// Answers how many rows miss their target.
pub fn print(bench: &Bench) -> anyhow::Result<u32> {
    let mut missed = 0;
    println!(
        "\nOverhead: kernels a second of a lone tenant, over those without Divvy; alternating rounds (target >= 0.99)"
    );
    for (name, length) in [("50 µs", 50 * MICROSECOND), ("1 ms", MILLISECOND)] {
        let mut rates = vec![Vec::new(); RUNS.len()];
        for _ in 0..bench.repeats {
            for ((_, way, share, beside), rates) in RUNS.iter().zip(&mut rates) {
                rates.push(rate(bench, *way, *share, *beside, length)?);
            }
        }
        let medians: Vec<f64> = rates.iter_mut().map(|rates| median(rates)).collect();
        for ((run, ..), rate) in RUNS.iter().zip(&medians) {
            let verdict = verdict(rate / medians[0] >= 0.99, &mut missed);
            println!(
                "  {name:<6} {run:<30} {rate:>10.1}/s {:>7.3}  {verdict}",
                rate / medians[0]
            );
        }
        for (supervised, cooperative) in PAIRS {
            let ratio = medians[supervised] / medians[cooperative];
            let verdict = verdict(ratio >= 0.99, &mut missed);
            println!(
                "  {name:<6} {:<30} {:>12} {ratio:>7.3}  {verdict}",
                RUNS[supervised].0, "/ cooperative"
            );
        }
    }
    for (name, cooperative, supervised) in LEVELS {
        let mut rows = [Vec::new(), Vec::new()];
        for _ in 0..bench.repeats {
            for (rows, way) in rows.iter_mut().zip([cooperative, supervised]) {
                rows.push(play(bench, way, &SPLIT, &[MILLISECOND], false)?);
            }
        }
        let [cooperative, supervised] = rows.map(|rows| Shared::median(&rows));
        let met =
            (cooperative.part - supervised.part).abs() <= 1.0 && supervised.used >= 0.99 * cooperative.used;
        println!(
            "  30/70 of 1 ms, {name}: cooperative {:.1} % of what is used, and {:.1} % used; supervised {:.1} and {:.1}  {}",
            cooperative.part,
            cooperative.used,
            supervised.part,
            supervised.used,
            verdict(met, &mut missed)
        );
    }
    Ok(missed)
}

/// Two tenants of these shares, soft and hard, at either level.
const SPLIT: [f64; 2] = [30.0, 70.0];
const LEVELS: [(&str, Way, Way); 2] = [
    (
        "soft",
        Way::Leases(&[]),
        Way::Leases(&["--isolation", "supervised"]),
    ),
    (
        "hard",
        Way::Leases(&["--cap", "hard"]),
        Way::Leases(&["--cap", "hard", "--isolation", "supervised"]),
    ),
];

/// The first tenant's part of what both used, and what both used of the device, in percent.
struct Shared {
    part: f64,
    used: f64,
}

impl Shared {
    fn median(rows: &[Outcome]) -> Self {
        let used = |row: &Outcome| -> f64 { (0..2).map(|n| row.percent(n, 0, row.lasted)).sum() };
        let part = |row: &Outcome| row.percent(0, 0, row.lasted) * 100.0 / used(row).max(1.0);
        Self {
            part: median(&mut rows.iter().map(part).collect::<Vec<_>>()),
            used: median(&mut rows.iter().map(used).collect::<Vec<_>>()),
        }
    }
}

fn rate(bench: &Bench, way: Way, share: f64, beside: bool, length: Nanos) -> anyhow::Result<f64> {
    let host = bench.host()?;
    let idle = || host.start(way, "idle", share, &greedy(&[length], 2));
    let _idle = beside.then(idle).transpose()?;
    let mut tenant = host.start(way, "alone", share, &greedy(&[length], 1))?;
    let began = Instant::now();
    tenant.go()?;
    std::thread::sleep(SETTLE * 2);
    let said = tenant.end()?;
    Ok(said.launched as f64 / began.elapsed().as_secs_f64())
}
