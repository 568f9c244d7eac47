//! `cargo xtask bench share`: compute shares on the emulated device, from `divvy run --compute` to the engine.
//!
//! The programs, the gate, the agent and its arbiter are the real ones. The device is the emulated one under its timing
//! model, so its clock is measured and not this machine's. `bench arbiter` judges the algorithm alone.

mod engine;
mod faults;
mod gaps;
mod host;
mod latency;
mod long;
mod long_faults;
mod measure;
mod overhead;
mod plot;
mod shares;
mod tenant;

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use host::{Host, Way};

/// Compute shares, on the emulated device
#[derive(Parser)]
struct Args {
    /// Only these parts: shares, long, latency, faults, overhead, plot; and, if it is named, gaps
    only: Vec<String>,
    /// Seconds that each row lasts
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Only this split, as the table names it
    #[arg(long)]
    split: Option<String>,
    /// Only these kernels, as the table names them
    #[arg(long)]
    kernel: Option<String>,
    /// Only this way of sharing: soft, hard, time-slicing, off
    #[arg(long)]
    way: Option<String>,
    /// How often each fault is tried
    #[arg(long, default_value_t = 5)]
    repeats: u64,
    /// How often each share and latency is measured: the median counts
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    /// Loads that the latency-critical tenant has, in percent
    #[arg(long, value_delimiter = ',', default_values_t = [30, 60])]
    load: Vec<u64>,
    /// Points of share that the latency-critical tenant has beyond its load
    #[arg(long, default_value_t = 10)]
    headroom: u64,
    /// The emulated device
    #[arg(long, default_value = "h100,timing=model")]
    device: String,
    /// Where the picture goes
    #[arg(long, default_value = "bench/results/share.svg")]
    svg: PathBuf,
    /// Take the command and the libraries from this folder, and build nothing
    #[arg(long)]
    programs: Option<PathBuf>,
    /// For a tenant: what it does
    #[arg(long, hide = true)]
    tenant: Option<String>,
}

/// What all parts need.
pub struct Bench {
    programs: PathBuf,
    device: String,
    split: Option<String>,
    kernel: Option<String>,
    way: Option<String>,
    /// How long a row lasts.
    pub lasts: Duration,
    /// How often a fault is tried.
    pub repeats: u64,
    /// How often a share or a latency is measured.
    pub rounds: u64,
    /// Loads of the latency-critical tenant, in percent.
    pub loads: Vec<u64>,
    /// Whether to print who has the engine for a second of each latency's row.
    pub traces: bool,
    /// Points of share beyond the load.
    pub headroom: u64,
}

impl Bench {
    /// A fresh host.
    fn host(&self) -> anyhow::Result<Host> {
        Host::new(self.programs.clone(), &self.device)
    }

    fn wants(&self, split: &str) -> bool {
        self.split.as_deref().is_none_or(|only| only == split)
    }

    fn wants_kernel(&self, kernel: &str) -> bool {
        self.kernel.as_deref().is_none_or(|only| only == kernel)
    }

    fn wants_way(&self, way: Way) -> bool {
        self.way.as_deref().is_none_or(|only| way.name().contains(only))
    }

    fn ways(&self) -> Vec<Way> {
        let all = [
            Way::Leases(&[]),
            Way::Leases(&["--cap", "hard"]),
            Way::TimeSlicing,
            Way::Off,
        ];
        all.into_iter().filter(|way| self.wants_way(*way)).collect()
    }
}

/// A row's last word; counts those that miss their target.
fn verdict(met: bool, missed: &mut u32) -> &'static str {
    *missed += u32::from(!met);
    if met { "met" } else { "missed" }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(work) = &args.tenant {
        return tenant::run(&serde_json::from_str(work)?);
    }
    let programs = match args.programs {
        Some(programs) => programs,
        None => divvy_bench::artifacts::build(&divvy_bench::artifacts::PRODUCT)?,
    };
    let traces = args.only.iter().any(|only| only == "gaps");
    let bench = Bench {
        programs,
        device: args.device,
        split: args.split,
        kernel: args.kernel,
        way: args.way,
        lasts: Duration::from_secs(args.seconds),
        repeats: args.repeats,
        rounds: args.rounds,
        loads: args.load,
        traces,
        headroom: args.headroom,
    };
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let mut missed = 0;
    if wanted("shares") {
        missed += shares::print(&bench)?;
    }
    if wanted("long") {
        missed += long::print(&bench)?;
    }
    if wanted("latency") {
        missed += latency::print(&bench)?;
    }
    if wanted("faults") {
        missed += faults::print(&bench)?;
        missed += long_faults::print(&bench)?;
    }
    if wanted("overhead") {
        missed += overhead::print(&bench)?;
    }
    println!("{missed} rows of ours miss a target");
    if traces {
        for (split, lengths, computes) in shares::wanted(&bench) {
            gaps::print(&bench, split, lengths, computes)?;
        }
    }
    if wanted("plot") {
        shares::draw(&bench, &args.svg)?;
    }
    Ok(())
}
