//! How exact shares are on the emulated device, beside its own time-slicing.

use std::time::Duration;

use divvy_arbiter::sim::Outcome;
use divvy_arbiter::{MICROSECOND, MILLISECOND, Nanos, SECOND, Settings};
use divvy_bench::statistics::median;

use crate::host::{Host, Tenant, Way};
use crate::measure::{PAUSE, outcome, watch};
use crate::tenant::Work;
use crate::{Bench, plot, verdict};

/// The splits that are published, in percent.
const SPLITS: [(&str, &[f64]); 6] = [
    ("10/90", &[10.0, 90.0]),
    ("30/70", &[30.0, 70.0]),
    ("50/50", &[50.0, 50.0]),
    ("20/30/50", &[20.0, 30.0, 50.0]),
    ("4 x 25", &[25.0; 4]),
    ("16 equal", &[6.25; 16]),
];

/// The kernels that are published. `real` ones compute; the others wait for the device's clock.
const KERNELS: [(&str, &[Nanos]); 5] = [
    ("50 µs", &[50 * MICROSECOND]),
    ("1 ms", &[MILLISECOND]),
    ("20 ms", &[20 * MILLISECOND]),
    ("mixed", &[50 * MICROSECOND, MILLISECOND, 20 * MILLISECOND]),
    (REAL, &[MILLISECOND]),
];
const REAL: &str = "real";
/// The split that they are measured with.
const REAL_SPLIT: &str = "30/70";

/// Time to find their pace before it counts.
pub const SETTLE: Duration = Duration::from_secs(1);

/// What of all that is asked for, in the table's order.
pub fn wanted(bench: &Bench) -> Vec<(&'static [f64], &'static [Nanos], bool)> {
    let splits = SPLITS.iter().filter(|(name, _)| bench.wants(name));
    splits
        .flat_map(|(_, split)| {
            let kernels = KERNELS.iter().filter(|(name, _)| bench.wants_kernel(name));
            kernels.map(|(name, lengths)| (*split, *lengths, *name == REAL))
        })
        .collect()
}

/// A program that always has more to do.
pub fn greedy(lengths: &[Nanos], seed: u64) -> Work {
    let longest = lengths.iter().copied().max().unwrap_or(0);
    Work {
        lengths: lengths.to_vec(),
        every: None,
        kernels: 0,
        seed,
        // As deep as a training loop launches ahead.
        ahead: (4 * longest).max(20 * MILLISECOND),
        computes: false,
        one_shape: false,
        nodes: 0,
    }
}

/// Lets tenants of these shares work side by side; answers what each got.
pub fn play(
    bench: &Bench,
    way: Way,
    split: &[f64],
    lengths: &[Nanos],
    computes: bool,
) -> anyhow::Result<Outcome> {
    let host = bench.host()?;
    let mut tenants = begin(&host, way, split, lengths, computes)?;
    let engine = host.engine()?;
    for tenant in &mut tenants {
        tenant.go()?;
    }
    std::thread::sleep(SETTLE);
    let samples = watch(&engine, bench.lasts, PAUSE)?;
    let pids: Vec<u32> = tenants.iter().map(|tenant| tenant.pid).collect();
    tenants.iter_mut().for_each(Tenant::stop);
    for tenant in tenants {
        tenant.end()?;
    }
    Ok(outcome(&samples, &pids))
}

/// Starts a greedy tenant for each share.
pub fn begin(
    host: &Host,
    way: Way,
    split: &[f64],
    lengths: &[Nanos],
    computes: bool,
) -> anyhow::Result<Vec<Tenant>> {
    let work = |seed| Work {
        computes,
        ..greedy(lengths, seed)
    };
    (1..)
        .zip(split)
        .map(|(n, share)| host.start(way, &format!("tenant{n}"), *share, &work(n)))
        .collect()
}

/// What a program by itself keeps of the device, by its kernels: as much as this machine feeds it.
#[derive(Default)]
struct Alone(Vec<(Vec<Nanos>, bool, f64)>);

impl Alone {
    /// As a part of the time.
    fn keeps(&mut self, bench: &Bench, lengths: &[Nanos], computes: bool) -> anyhow::Result<f64> {
        let known = |one: &&(Vec<Nanos>, bool, f64)| one.0 == lengths && one.1 == computes;
        if let Some((.., part)) = self.0.iter().find(known) {
            return Ok(*part);
        }
        let outcome = play(bench, Way::Off, &[100.0], lengths, computes)?;
        let part = outcome.busy.iter().sum::<Nanos>() as f64 / outcome.lasted as f64;
        self.0.push((lengths.to_vec(), computes, part));
        Ok(part)
    }
}

/// A row's figures: the largest error in points over windows of 10 s, 1 s and a tenth, the error of the split, Jain's
/// index, and what was kept in percent, both also of all of the time. Then by how many milliseconds a share was passed
/// in any second.
struct Row {
    at_10: f64,
    at_1: f64,
    at_tenth: f64,
    split: f64,
    jain: f64,
    kept: f64,
    raw_10: f64,
    raw: f64,
    over: f64,
}

impl Row {
    /// Of one play, where a program by itself keeps the part `solo` of the device.
    fn of(bench: &Bench, outcome: &Outcome, split: &[f64], solo: f64) -> Self {
        let long = Nanos::try_from(bench.lasts.as_nanos()).unwrap_or(Nanos::MAX);
        let long = long.min(10 * SECOND) / SECOND * SECOND;
        let fair: Vec<f64> = split.iter().map(|share| share * solo).collect();
        let error = |window| outcome.error(&fair, 0, window, false);
        // Of all the time, not of the time in which a tenant wanted it: all of them always do.
        let raw = outcome.busy.iter().sum::<Nanos>() as f64 * 100.0 / outcome.lasted as f64;
        let over = (0..split.len()).map(|tenant| outcome.violation(tenant, split[tenant], SECOND));
        Self {
            at_10: error(long),
            at_1: error(SECOND),
            at_tenth: error(SECOND / 10),
            split: outcome.error(split, 0, long, true),
            jain: outcome.jain(split),
            kept: raw / solo,
            raw_10: outcome.error(split, 0, long, false),
            raw,
            over: over.max().unwrap_or(0) as f64 / 1e6,
        }
    }

    fn median(rows: &[Self]) -> Self {
        let of = |what: fn(&Self) -> f64| median(&mut rows.iter().map(what).collect::<Vec<_>>());
        Self {
            at_10: of(|row| row.at_10),
            at_1: of(|row| row.at_1),
            at_tenth: of(|row| row.at_tenth),
            split: of(|row| row.split),
            jain: of(|row| row.jain),
            kept: of(|row| row.kept),
            raw_10: of(|row| row.raw_10),
            raw: of(|row| row.raw),
            over: of(|row| row.over),
        }
    }
}

/// Answers how many rows of the leases miss a target.
///
/// # Errors
/// The device alone, with no limiter, meets the target for a split: then the figures show nothing.
pub fn print(bench: &Bench) -> anyhow::Result<u32> {
    let settings = Settings::default();
    println!(
        "Shares: all tenants always have work, {} s each; medians of {} rounds",
        bench.lasts.as_secs(),
        bench.rounds
    );
    println!(
        "targets: error <= 1 point at 10 s, <= 3 at 1 s; Jain >= 0.99; kept >= 97 %; hard caps passed in any 1 s by"
    );
    println!(
        "no more than quantum + in-flight bound + longest kernel (allowed). 10 s, 1 s, 0.1 s and kept are against what"
    );
    println!(
        "one of these programs keeps of the device by itself, without Divvy (alone); raw is against all of the time\n"
    );
    println!(
        "{:<14}{:<10}{:<7}{:>8}{:>8}{:>8}{:>8}{:>9}{:>8}{:>8}{:>8}{:>8}{:>10}{:>9}",
        "sharing",
        "split",
        "kernel",
        "10 s",
        "1 s",
        "0.1 s",
        "split",
        "Jain",
        "kept %",
        "alone %",
        "raw 10",
        "raw %",
        "over ms",
        "allowed"
    );
    let mut missed = 0;
    let mut alone = Alone::default();
    for way in bench.ways() {
        for (split_name, split) in SPLITS.iter().filter(|(name, _)| bench.wants(name)) {
            for (kernel, lengths) in KERNELS.iter().filter(|(name, _)| bench.wants_kernel(name)) {
                if *kernel == REAL && *split_name != REAL_SPLIT {
                    continue;
                }
                let solo = alone.keeps(bench, lengths, *kernel == REAL)?;
                let mut rows = Vec::new();
                for _ in 0..bench.rounds {
                    let outcome = play(bench, way, split, lengths, *kernel == REAL)?;
                    rows.push(Row::of(bench, &outcome, split, solo));
                }
                let row = Row::median(&rows);
                let longest = lengths.iter().copied().max().unwrap_or(0);
                let allowed = (settings.quantum + settings.in_flight + longest) as f64 / 1e6;
                let hard = way.is_hard();
                let cap = match hard {
                    true => format!("{:>10.2}{allowed:>9.2}", row.over),
                    false => format!("{:>10}{:>9}", "-", "-"),
                };
                let met = row.at_10 <= 1.0
                    && row.at_1 <= 3.0
                    && row.jain >= 0.99
                    && row.kept >= 97.0
                    && (!hard || row.over <= allowed);
                let word = match way.is_ours() {
                    true => verdict(met, &mut missed),
                    false if row.split > 1.0 => "fails",
                    false => "",
                };
                let uneven = split.iter().any(|share| *share != split[0]);
                anyhow::ensure!(
                    way != Way::Off || !uneven || row.split > 1.0,
                    "{split_name} without a limiter is split right: the other rows show nothing"
                );
                println!(
                    "{:<14}{split_name:<10}{kernel:<7}{:>8.2}{:>8.2}{:>8.2}{:>8.2}{:>9.4}{:>8.1}{:>8.1}{:>8.2}{:>8.1}{cap}  {word}",
                    way.name(),
                    row.at_10,
                    row.at_1,
                    row.at_tenth,
                    row.split,
                    row.jain,
                    row.kept,
                    solo * 100.0,
                    row.raw_10,
                    row.raw,
                );
            }
        }
        println!();
    }
    Ok(missed)
}

/// Draws 30/70 over time.
pub fn draw(bench: &Bench, file: &std::path::Path) -> anyhow::Result<()> {
    let split = [30.0, 70.0];
    let mut panels = Vec::new();
    for way in bench.ways().into_iter().filter(|way| !way.is_hard()) {
        panels.push((way.name(), play(bench, way, &split, &[MILLISECOND], false)?));
    }
    let title = "30 % and 70 %, kernels of 1 ms, in windows of 0.1 s";
    std::fs::write(file, plot::svg(title, &split, &panels, SECOND / 10))?;
    println!("drawn: {}", file.display());
    Ok(())
}
