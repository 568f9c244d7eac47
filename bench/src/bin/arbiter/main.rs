//! `cargo xtask bench arbiter`: leases by virtual time on the model device: shares, latency, faults, speed, a day.
//!
//! Everything here is simulated but the nanoseconds of an event: the arbiter is the real one, devices and programs are
//! `divvy_arbiter::sim`. What it shows is the algorithm; the emulated device and a GPU show the rest.

mod day;
mod faults;
mod latency;
mod shares;
mod speed;

use clap::Parser;

/// Leases by virtual time, on the model device
#[derive(Parser)]
struct Args {
    /// Only these parts: shares, latency, faults, speed, day
    only: Vec<String>,
    /// Random seeds; each figure is the median over them (shares: the worst)
    #[arg(long, default_value_t = 5)]
    repeats: u64,
    /// Simulated hours of the day
    #[arg(long, default_value_t = 24)]
    hours: u64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    if wanted("shares") {
        shares::print(args.repeats);
    }
    if wanted("latency") {
        latency::print(args.repeats);
    }
    if wanted("faults") {
        faults::print(args.repeats);
    }
    if wanted("speed") {
        speed::print();
    }
    if wanted("day") {
        day::print(args.hours)?;
    }
    Ok(())
}
