//! 10,000 tenants on 64 devices on one core: is it real time, and what does an event cost?

use std::time::Instant;

use divvy_arbiter::sim::{Actor, Lengths, Load, Scenario, Sharing, run, run_timed};
use divvy_arbiter::{MILLISECOND, SECOND, Terms};

/// Prints simulated over real time and nanoseconds of an event.
pub fn print() {
    println!("\nSpeed: one thread plays devices, programs, gates and the agent");
    println!(
        "{:>8} tenants{:>8} devices{:>12} events{:>16}{:>14}",
        "", "", "", "simulated/real", "ns per event"
    );
    for (tenants, devices) in [(2, 1), (100, 1), (1_000, 8), (10_000, 64)] {
        let scenario = scenario(tenants, devices);
        let began = Instant::now();
        let outcome = run(&scenario);
        let ratio = outcome.lasted as f64 / began.elapsed().as_nanos() as f64;
        // Reading the clock around every event costs more than some events.
        let timed = run_timed(&scenario);
        let ns = timed.spent.as_nanos() as f64 / timed.events as f64;
        println!(
            "{tenants:>16}{devices:>16}{:>19}{ratio:>14.1} x{ns:>14.0}",
            outcome.events
        );
    }
}

fn scenario(tenants: u32, devices: u32) -> Scenario {
    // A third always has work, a third serves requests, a third thinks between bursts; one in a hundred is a gang.
    let actor = |n: u32| {
        let short = Lengths::Uniform(MILLISECOND / 10, 2 * MILLISECOND);
        let load = match n % 3 {
            0 => Load::Greedy(short),
            1 => Load::Requests {
                every: SECOND,
                kernels: 4,
                lengths: Lengths::Fixed(MILLISECOND / 2),
            },
            _ => Load::Bursts {
                kernels: 5,
                lengths: short,
                think: 200 * MILLISECOND,
            },
        };
        let actor = Actor::new(Terms::weight(1 + (n % 4) as u16), load).from(u64::from(n) * 1_000);
        let first = n % devices;
        if n % 100 == 99 && devices > 1 {
            actor.on([first, (first + 1) % devices])
        } else {
            actor.on([first])
        }
    };
    Scenario {
        devices,
        lasts: 5 * SECOND,
        bin: SECOND,
        ..Scenario::new(Sharing::leases(), (0..tenants).map(actor).collect())
    }
}
