//! What the others see when a holder is killed or stopped, and how soon a change of shares has settled.

use std::time::Duration;

use divvy_arbiter::{MILLISECOND, Nanos, SECOND};
use rustix::process::Signal;

use crate::host::{Tenant, Way};
use crate::measure::{PAUSE, outcome, watch};
use crate::shares::{SETTLE, begin};
use crate::{Bench, verdict};

/// How far a window of 200 ms may be from the split: a lease of 5 ms and a kernel of 1 ms may lie in it or just outside, at each
/// end.
const POINTS: f64 = 6.0;
/// By when a change has settled.
const WITHIN: Nanos = 200 * MILLISECOND;
/// How far a second's split may be off, as for any share.
const SECOND_POINTS: f64 = 3.0;

/// What a change of shares looked like, errors in points of what both got: the loss at changes of holder does not
/// concern shares.
#[derive(Default)]
struct Changed {
    /// From when on every window of 200 ms is as it should be.
    settled: Nanos,
    /// The largest error of a second that begins after the change should have settled.
    second: f64,
    /// The same of 200 ms.
    after: f64,
    /// The same before the change: what no change is needed for.
    before: f64,
}

impl Changed {
    fn worse(&self, other: &Self) -> Self {
        Self {
            settled: self.settled.max(other.settled),
            second: self.second.max(other.second),
            after: self.after.max(other.after),
            before: self.before.max(other.before),
        }
    }
}

/// Answers how many rows miss their target.
pub fn print(bench: &Bench) -> anyhow::Result<u32> {
    let mut missed = 0;
    println!(
        "\nFaults: two tenants of 50 %, kernels of 1 ms; the longest time without the device for the one beside"
    );
    for (name, signal, target) in [
        ("killed", Signal::KILL, 50),
        // 40 ms after the end of its lease, and one change of holder.
        ("stopped", Signal::STOP, 60),
    ] {
        let mut worst = 0;
        for _ in 0..bench.repeats {
            worst = worst.max(gap(bench, signal)?);
        }
        let met = verdict(worst <= target * MILLISECOND, &mut missed);
        println!(
            "  {name:<8} {:>5} ms, target {target} ms  {met}",
            worst / MILLISECOND
        );
    }
    println!(
        "\nChange: 30/60, hard, becomes 60/30; settled from where on every later 200 ms is split within {POINTS} points, for 200 ms have\nroom for a quantum and a kernel more or less at each end; worst of {} changes",
        bench.repeats
    );
    let mut worst = Changed::default();
    for _ in 0..bench.repeats {
        worst = worst.worse(&change(bench)?);
    }
    let met = verdict(worst.settled <= WITHIN, &mut missed);
    println!(
        "  settled {} ms after the second command's return, target {} ms  {met}",
        worst.settled / MILLISECOND,
        WITHIN / MILLISECOND
    );
    let met = verdict(worst.second <= SECOND_POINTS, &mut missed);
    println!(
        "  every second that begins {} ms after it or later is split within {:.2} points, target {SECOND_POINTS}  {met}",
        WITHIN / MILLISECOND,
        worst.second
    );
    println!(
        "  windows of 200 ms are up to {:.2} points off from then on, and {:.2} before, where nothing changes",
        worst.after, worst.before
    );
    Ok(missed)
}

fn gap(bench: &Bench, signal: Signal) -> anyhow::Result<Nanos> {
    let host = bench.host()?;
    let mut tenants = begin(&host, Way::Leases(&[]), &[50.0, 50.0], &[MILLISECOND], false)?;
    let engine = host.engine()?;
    for tenant in &mut tenants {
        tenant.go()?;
    }
    std::thread::sleep(SETTLE);
    let watcher = std::thread::spawn(move || watch(&engine, Duration::from_secs(2), PAUSE));
    std::thread::sleep(SETTLE / 2);
    tenants[0].signal(signal)?;
    let samples = watcher
        .join()
        .map_err(|_| anyhow::anyhow!("The watcher ended early"))??;
    let pids: Vec<u32> = tenants.iter().map(|tenant| tenant.pid).collect();
    if signal == Signal::STOP {
        tenants[0].signal(Signal::CONT)?;
    }
    tenants.iter_mut().for_each(Tenant::stop);
    Ok(outcome(&samples, &pids).longest_gap(1, 0))
}

fn change(bench: &Bench) -> anyhow::Result<Changed> {
    let host = bench.host()?;
    let way = Way::Leases(&["--cap", "hard"]);
    let mut tenants = begin(&host, way, &[30.0, 60.0], &[MILLISECOND], false)?;
    let engine = host.engine()?;
    for tenant in &mut tenants {
        tenant.go()?;
    }
    std::thread::sleep(SETTLE);
    let before = watch(&engine, Duration::from_secs(3), PAUSE)?;
    host.divvy(&["resize", "tenant2", "--compute", "30%"])?;
    host.divvy(&["resize", "tenant1", "--compute", "60%"])?;
    let after = watch(&engine, Duration::from_secs(3), PAUSE)?;
    let pids: Vec<u32> = tenants.iter().map(|tenant| tenant.pid).collect();
    for tenant in tenants {
        tenant.end()?;
    }
    let (before, after) = (outcome(&before, &pids), outcome(&after, &pids));
    anyhow::ensure!(after.lasted >= 2 * SECOND, "Nothing was measured");
    let (low, high) = (100.0 / 3.0, 200.0 / 3.0);
    Ok(Changed {
        settled: after.settled(&[high, low], 0, WITHIN, POINTS, true),
        second: after.error(&[high, low], WITHIN, SECOND, true),
        after: after.error(&[high, low], WITHIN, WITHIN, true),
        before: before.error(&[low, high], 0, WITHIN, true),
    })
}
