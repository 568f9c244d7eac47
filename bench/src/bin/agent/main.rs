//! What one user's flood costs the others. An agent of root's admits other users, and one of them floods it in five
//! ways. The time of another user's `divvy ps` meanwhile is compared with the same without a flood. Also the agent's
//! memory, and the slices it lost.
//!
//! Run as root: `cargo xtask bench agent`. The flooder is user 65534, the one that looks is user 65533.

mod flood;
mod host;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::Parser;
use flood::Flood;
use host::{Host, LOOKER};

/// The agent's memory at its peak, at most.
const MOST_MIB: f64 = 100.0;

#[derive(Parser)]
struct Args {
    /// How long each flood lasts
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// This program is the flooder
    #[arg(long, hide = true)]
    flood: Option<Flood>,
    /// What it floods
    #[arg(long, hide = true)]
    socket: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let duration = Duration::from_secs(args.seconds);
    if let (Some(flood), Some(socket)) = (args.flood, &args.socket) {
        println!("{}", flood.run(socket, duration)?);
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        bail!("A flood by another user needs root: run this with sudo");
    }
    let host = Host::start()?;
    let mut idle = host.looks(duration / 2, LOOKER)?;
    let (idle_p50, idle_p99) = (idle.part(0.5), idle.part(0.99));
    println!(
        "idle: another user's `divvy ps` takes {idle_p50:.1} ms (p50), {idle_p99:.1} ms (p99), {} looks\n",
        idle.count()
    );
    println!(
        "{:<28} {:>8} {:>8} {:>8} {:>10} {:>6} {:>6}  what became of the flood",
        "flood", "p50", "p99", "refused", "peak MiB", "fds", "lost"
    );
    let (mut peak, mut lost, mut refused) = (0.0_f64, 0, 0);
    for flood in Flood::ALL {
        host.forget_peak()?;
        let running = host.flood(flood, args.seconds)?;
        let mut looks = host.looks(duration, LOOKER)?;
        let descriptors = host.descriptors()?;
        let said = running.end()?;
        let memory = host.peak_mib()?;
        let gone = host.lost()?;
        println!(
            "{:<28} {:>7.2}x {:>7.2}x {:>8} {memory:>10.1} {descriptors:>6} {gone:>6}  {said}",
            flood.title(),
            looks.part(0.5) / idle_p50,
            looks.part(0.99) / idle_p99,
            looks.refused(),
        );
        peak = peak.max(memory);
        lost += gone;
        refused += looks.refused();
    }
    let verdict = |holds: bool| if holds { "ok" } else { "MISSED" };
    println!(
        "\nmemory at its peak {peak:.1} MiB, promise under {MOST_MIB:.0} MiB: {}",
        verdict(peak < MOST_MIB)
    );
    println!("slices lost {lost}, promise none: {}", verdict(lost == 0));
    println!("looks refused {refused}, promise none: {}", verdict(refused == 0));
    if peak >= MOST_MIB || lost > 0 || refused > 0 {
        bail!("A promise was missed");
    }
    Ok(())
}
