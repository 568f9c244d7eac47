//! Three tenants of 300 ms launches, and one of them is killed, stopped, or launches what does not end. How soon is told
//! what happened, and how long do the others go without the device?

use std::time::{Duration, Instant};

use divvy_arbiter::{MILLISECOND, Nanos};
use rustix::process::Signal;

use crate::engine::Engine;
use crate::host::{Host, Tenant, Way};
use crate::measure::{PAUSE, outcome, watch};
use crate::shares::begin;
use crate::{Bench, verdict};

const LAUNCH: Nanos = 300 * MILLISECOND;
/// Time to find their pace: first launches of unknown lengths overlap, and what they cost is then repaid.
const SETTLE: Duration = Duration::from_secs(6);
/// How long the others are watched.
const WATCHED: Duration = Duration::from_secs(8);
/// By when it is told.
const WITHIN: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);

/// What happens to the first tenant, and what `divvy events` then says of it and of no other fault.
const FAULTS: [(&str, Fault, &str); 3] = [
    ("killed", Fault::Signal(Signal::KILL), "ended"),
    ("stopped", Fault::Signal(Signal::STOP), "is stopped"),
    ("a stuck kernel", Fault::Stuck, "its work outlasts its lease"),
];

#[derive(Clone, Copy)]
enum Fault {
    Signal(Signal),
    Stuck,
}

/// Answers how many rows miss their target.
pub fn print(bench: &Bench) -> anyhow::Result<u32> {
    let mut missed = 0;
    println!(
        "\nFaults among launches of 300 ms: three tenants of a third each, worst of {}; how soon `divvy events` tells the first\none's fault (target {} s), and the longest time without the device for the two others: a turn of two launches is 600 ms",
        bench.repeats,
        WITHIN.as_secs()
    );
    for (name, fault, word) in FAULTS {
        let (mut told, mut gap) = (Duration::ZERO, 0);
        for _ in 0..bench.repeats {
            let seen = one(bench, fault, word)?;
            told = told.max(seen.0);
            gap = gap.max(seen.1);
        }
        println!(
            "  {name:<15} told after {:>5} ms as \"{word}\", longest gap {:>5} ms  {}",
            told.as_millis(),
            gap / MILLISECOND,
            verdict(told <= WITHIN, &mut missed)
        );
    }
    Ok(missed)
}

fn one(bench: &Bench, fault: Fault, word: &str) -> anyhow::Result<(Duration, Nanos)> {
    let host = bench.host()?;
    let split = [100.0 / 3.0; 3].map(f64::floor);
    let mut tenants = begin(&host, Way::Leases(&[]), &split, &[LAUNCH], false)?;
    let engine = host.engine()?;
    tenants.iter_mut().try_for_each(Tenant::go)?;
    std::thread::sleep(SETTLE);
    let before = lines(&host, word)?;
    if matches!(fault, Fault::Signal(_)) {
        until_it_runs(&engine, tenants[0].pid)?;
    }
    let watcher = std::thread::spawn(move || watch(&engine, WATCHED, PAUSE));
    match fault {
        Fault::Signal(signal) => tenants[0].signal(signal)?,
        // It answers when the launch has been let through.
        Fault::Stuck => tenants[0].launch_what_does_not_end()?,
    }
    let since = Instant::now();
    while lines(&host, word)? == before && since.elapsed() < WATCHED {
        std::thread::sleep(LOOK);
    }
    let told = since.elapsed();
    let samples = watcher
        .join()
        .map_err(|_| anyhow::anyhow!("The watcher ended early"))??;
    let pids: Vec<u32> = tenants.iter().map(|tenant| tenant.pid).collect();
    // What is stuck or stopped ends by no word.
    let _may_be_dead = tenants[0].signal(Signal::KILL);
    tenants.iter_mut().for_each(Tenant::stop);
    let seen = outcome(&samples, &pids);
    Ok((told, seen.longest_gap(1, 0).max(seen.longest_gap(2, 0))))
}

/// One that has no work on the device holds no other up, stopped or not.
fn until_it_runs(engine: &Engine, pid: u32) -> anyhow::Result<()> {
    let busy = || Ok::<_, anyhow::Error>(engine.sample()?.busy.get(&pid).copied().unwrap_or(0));
    let mut before = busy()?;
    loop {
        std::thread::sleep(PAUSE);
        let now = busy()?;
        if now > before {
            return Ok(());
        }
        before = now;
    }
}

/// How often the first tenant's events say so.
fn lines(host: &Host, word: &str) -> anyhow::Result<usize> {
    let events = host.divvy(&["events"])?;
    let of_it = events
        .lines()
        .filter(|line| line.contains("tenant1") && line.contains(word));
    Ok(of_it.count())
}
