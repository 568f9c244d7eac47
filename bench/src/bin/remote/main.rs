//! `cargo xtask bench remote`: what it costs that a program's device is in another process.
//!
//! - `ring`: the ring between the two, without CUDA;
//! - `calls`: a program over a worker against the same program over the limiter in its own process. Calls, launches, copies
//!   by each path against memcpy, and the way to the first kernel;
//! - `network`: the same program over a worker that is further away.

mod calls;
mod network;
mod program;
mod ring;

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
    /// The processors that the bench may use.
    #[arg(skip = CpuSet::new())]
    allowed: CpuSet,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The ring, without CUDA
    Ring,
    /// Programs over a worker
    Calls,
    /// Programs over a worker that is further away: emulated delays, and TCP with TLS
    Network,
}

fn main() -> anyhow::Result<()> {
    let mut args = Args::parse();
    if let Some(library) = &args.program {
        return program::run(library, &args);
    }
    args.allowed = rustix::thread::sched_getaffinity(None)?;
    let all = args.parts.is_empty();
    if all || args.parts.contains(&Part::Calls) {
        calls::run(&args)?;
    }
    if all || args.parts.contains(&Part::Network) {
        network::run(&args)?;
    }
    if all || args.parts.contains(&Part::Ring) {
        ring::run(&args)?;
    }
    Ok(())
}
