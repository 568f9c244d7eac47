//! What the others see when a holder is killed or stopped, and how soon a change of shares has settled.

use std::time::Duration;

use divvy_arbiter::{MILLISECOND, Nanos, SECOND};
use rustix::process::Signal;

use crate::host::{Tenant, Way};
use crate::measure::{outcome, watch};
use crate::shares::{SETTLE, begin};
use crate::{Bench, verdict};

/// How far a window of 200 ms may be from the split: a lease of 5 ms and a kernel of 1 ms may lie in it or just outside, at each
/// end.
const POINTS: f64 = 6.0;

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
        "\nChange: 30/60, hard, becomes 60/30; from the second command's return until every later 200 ms is split within 6 points:\n200 ms have room for a quantum and a kernel more or less at each end"
    );
    let mut worst = 0;
    for _ in 0..bench.repeats {
        worst = worst.max(change(bench)?);
    }
    let met = verdict(worst <= 200 * MILLISECOND, &mut missed);
    println!(
        "  settled within {:>5} ms, target 200 ms  {met}",
        worst / MILLISECOND
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
    let watcher = std::thread::spawn(move || watch(&engine, Duration::from_secs(2)));
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

fn change(bench: &Bench) -> anyhow::Result<Nanos> {
    let host = bench.host()?;
    let way = Way::Leases(&["--cap", "hard"]);
    let mut tenants = begin(&host, way, &[30.0, 60.0], &[MILLISECOND], false)?;
    let engine = host.engine()?;
    for tenant in &mut tenants {
        tenant.go()?;
    }
    std::thread::sleep(SETTLE);
    host.divvy(&["resize", "tenant2", "--compute", "30%"])?;
    host.divvy(&["resize", "tenant1", "--compute", "60%"])?;
    let samples = watch(&engine, Duration::from_secs(3))?;
    let pids: Vec<u32> = tenants.iter().map(|tenant| tenant.pid).collect();
    tenants.iter_mut().for_each(Tenant::stop);
    for tenant in tenants {
        tenant.end()?;
    }
    let outcome = outcome(&samples, &pids);
    anyhow::ensure!(outcome.lasted >= SECOND, "Nothing was measured");
    // Of what both got: what the machine loses at changes of holder is no matter of shares.
    Ok(outcome.settled(&[200.0 / 3.0, 100.0 / 3.0], 0, 200 * MILLISECOND, POINTS, true))
}
