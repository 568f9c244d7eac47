//! A latency-critical tenant beside two best-effort ones.

use std::time::Duration;

use divvy_arbiter::sim::{Outcome, percentile};
use divvy_arbiter::{MICROSECOND, MILLISECOND, Nanos};

use crate::Bench;
use crate::host::{Host, Tenant, Way};
use crate::measure::{outcome, watch};
use crate::shares::{SETTLE, greedy};
use crate::tenant::Work;

/// Requests of 10 kernels of 0.5 ms that keep the device busy for this many parts in a hundred.
fn requests(load: u64) -> Work {
    Work {
        lengths: vec![MILLISECOND / 2],
        every: Some(5 * MILLISECOND * 100 / load),
        kernels: 10,
        seed: load,
        ahead: 0,
    }
}

/// What came of one play.
struct Heard {
    latencies: Vec<Nanos>,
    outcome: Outcome,
}

pub fn print(bench: &Bench) -> anyhow::Result<()> {
    println!(
        "\nLatency: requests of 10 kernels of 0.5 ms by a Poisson process, beside two that always have work;"
    );
    println!("ratio to alone, same arrivals, {} s each", bench.lasts.as_secs());
    println!(
        "targets: p50 <= 1.10, p99 <= 1.05, kept >= 0.90 beside 50 µs to 1 ms; beside 20 ms: + <= 21 ms\n"
    );
    println!(
        "{:<14}{:>6} {:<16}{:>9}{:>9}{:>9}{:>10}{:>10}{:>8}",
        "sharing", "load", "others' kernels", "p50", "p99", "p99.9", "p50 + ms", "p99 + ms", "kept"
    );
    let others: [(&str, &[Nanos]); 4] = [
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
    ];
    for way in [Way::Leases(&[]), Way::TimeSlicing] {
        for load in [30, 60] {
            let solo = play(bench, way, load, None)?;
            for (name, lengths) in others {
                let beside = play(bench, way, load, Some(lengths))?;
                let ratio = |percent| {
                    percentile(&beside.latencies, percent) as f64
                        / (percentile(&solo.latencies, percent) as f64).max(1.0)
                };
                let added = |percent| {
                    (percentile(&beside.latencies, percent) as f64
                        - percentile(&solo.latencies, percent) as f64)
                        / 1e6
                };
                let lasted = beside.outcome.lasted as f64;
                let free = lasted - solo.outcome.actors[0].busy as f64 * lasted / solo.outcome.lasted as f64;
                let kept = (beside.outcome.actors[1].busy + beside.outcome.actors[2].busy) as f64 / free;
                println!(
                    "{:<14}{load:>4} % {name:<16}{:>9.3}{:>9.3}{:>9.3}{:>10.2}{:>10.2}{kept:>8.3}",
                    way.name(),
                    ratio(50.0),
                    ratio(99.0),
                    ratio(99.9),
                    added(50.0),
                    added(99.0)
                );
            }
        }
        println!();
    }
    Ok(())
}

fn play(bench: &Bench, way: Way, load: u64, others: Option<&[Nanos]>) -> anyhow::Result<Heard> {
    let host = bench.host()?;
    let critical = match way {
        Way::Leases(_) => Way::Leases(&["--class", "latency"]),
        Way::TimeSlicing => way,
    };
    let mut tenants = vec![host.start(critical, "critical", load as f64 + 10.0, &requests(load))?];
    for (n, lengths) in (1..=2).zip(others.into_iter().cycle()) {
        tenants.push(best_effort(&host, way, n, lengths)?);
    }
    let engine = host.engine()?;
    for tenant in &mut tenants {
        tenant.go()?;
    }
    std::thread::sleep(SETTLE);
    let samples = watch(&engine, bench.lasts)?;
    let pids: Vec<u32> = tenants.iter().map(|tenant| tenant.pid).collect();
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
