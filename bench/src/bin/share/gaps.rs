//! Where engine time goes between two leases: a trace of who had the engine, sampled as fast as this machine can.

use std::time::Instant;

use crate::Bench;
use crate::engine::Engine;
use crate::host::Tenant;
use crate::shares::{SETTLE, begin};

/// Prints the stretches of a second: which process had the engine, for how long, and how long none had it.
pub fn print(bench: &Bench, split: &[f64], lengths: &[u64], computes: bool) -> anyhow::Result<()> {
    let way = bench.ways()[0];
    let host = bench.host()?;
    let mut tenants = begin(&host, way, split, lengths, computes)?;
    let engine = host.engine()?;
    tenants.iter_mut().try_for_each(Tenant::go)?;
    std::thread::sleep(SETTLE);
    let pids: Vec<u32> = tenants.iter().map(|tenant| tenant.pid).collect();
    trace(&engine, &pids)?;
    for tenant in tenants {
        tenant.end()?;
    }
    Ok(())
}

/// Prints who had the engine for a second from now on.
pub fn trace(engine: &Engine, pids: &[u32]) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut samples = Vec::new();
    while began.elapsed().as_millis() < 1000 {
        samples.push(engine.sample()?);
        std::thread::sleep(std::time::Duration::from_micros(20));
    }
    let mut stretches: Vec<(usize, u64)> = Vec::new();
    for pair in samples.windows(2) {
        let ran = |pid: &u32| {
            let busy = |n: usize| pair[n].busy.get(pid).copied().unwrap_or(0);
            busy(1).saturating_sub(busy(0))
        };
        let all = pair[1].at.saturating_sub(pair[0].at);
        let each: Vec<u64> = pids.iter().map(ran).collect();
        let idle = all.saturating_sub(each.iter().sum());
        for (who, time) in each.into_iter().chain([idle]).enumerate() {
            match stretches.last_mut() {
                _ if time < 1_000 => {}
                Some((last, total)) if *last == who => *total += time,
                _ => stretches.push((who, time)),
            }
        }
    }
    let name = |who: usize| match who {
        none if none == pids.len() => '-',
        one => char::from(b'A' + (one % 26) as u8),
    };
    for (who, time) in stretches.iter().take(120) {
        print!("{}{:.2} ", name(*who), *time as f64 / 1e6);
    }
    println!();
    Ok(())
}
