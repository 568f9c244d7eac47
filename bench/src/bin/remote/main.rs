//! `cargo xtask bench remote`: what it costs that a program's device is in another process.
//!
//! - `ring`: the ring between the two, without CUDA;
//! - `calls`: a program over a worker against the same program over the limiter in its own process. Calls, launches, copies
//!   by each path against memcpy, and the way to the first kernel, also counted in round trips;
//! - `programs`: whole programs over a worker, here and further away, against the same ones over the limiter in their own
//!   processes;
//! - `clients`: 64 programs at once, both ways;
//! - `network`: the same program over a worker that is further away.

mod calls;
mod network;
mod place;
mod program;
mod programs;
mod ring;
mod stencil;

use std::path::PathBuf;

use clap::Parser;
use rustix::thread::CpuSet;

/// What it costs that a program's device is in another process
#[derive(Parser)]
struct Args {
    /// What to measure; everything, where nothing is named
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Measuring rounds for each figure
    #[arg(long, default_value_t = 51)]
    rounds: usize,
    /// Calls or messages in each round
    #[arg(long, default_value_t = 2000)]
    calls: u32,
    /// For a program: the driver to load and measure
    #[arg(long, hide = true)]
    program: Option<PathBuf>,
    /// For a program: it runs over a worker
    #[arg(long, hide = true)]
    over_worker: bool,
    /// For a program: only a stencil, with so many steps
    #[arg(long, hide = true)]
    stencil: Option<u32>,
    /// For a program: only its first kernel, and 1,000 launches with a synchronisation
    #[arg(long, hide = true)]
    only_start: bool,
    /// Runs of each whole program
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// The processors that the bench may use.
    #[arg(skip = CpuSet::new())]
    allowed: CpuSet,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The ring, without CUDA
    Ring,
    /// Calls, launches and copies over a worker
    Calls,
    /// Whole programs over a worker
    Programs,
    /// Many programs at once
    Clients,
    /// Calls and copies over a worker that is further away: emulated delays, and TCP with TLS
    Network,
}

fn main() -> anyhow::Result<()> {
    let mut args = Args::parse();
    if let Some(library) = &args.program {
        return match args.stencil {
            Some(steps) => stencil::run(library, steps),
            None => program::run(library, &args),
        };
    }
    args.allowed = rustix::thread::sched_getaffinity(None)?;
    let all = args.parts.is_empty();
    if all || args.parts.contains(&Part::Calls) {
        calls::run(&args)?;
    }
    if all || args.parts.contains(&Part::Programs) {
        programs::run(&args)?;
    }
    if all || args.parts.contains(&Part::Clients) {
        programs::together(&args)?;
    }
    if all || args.parts.contains(&Part::Network) {
        network::run(&args)?;
    }
    if all || args.parts.contains(&Part::Ring) {
        ring::run(&args)?;
    }
    Ok(())
}
