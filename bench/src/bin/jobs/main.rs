//! `cargo xtask bench jobs`: what Divvy adds to the start of a Slurm job.
//!
//! Two clusters of one node each, for real, on loopback and in folders of their own: one as it is, and one that `divvy slurm
//! setup` has set up, with an agent and an emulated device. Jobs of both start in alternating rounds, so that the machine's
//! mood cancels. A job's start ends when its program reads the clock.
//!
//! Run as root, with Slurm installed (`cargo xtask setup`).

mod site;
#[path = "../../../../tests/src/slurm.rs"]
#[expect(dead_code, reason = "the tests use more of a cluster than this bench")]
mod slurm;

use std::path::PathBuf;

use anyhow::bail;
use clap::Parser;
use divvy_bench::artifacts;
use divvy_bench::statistics::median;
use site::Site;

/// Milliseconds that a job's start may take longer, at most.
const MOST_MS: f64 = 100.0;

/// What Divvy adds to the start of a Slurm job
#[derive(Parser)]
struct Args {
    /// Measuring rounds of one job
    #[arg(long, default_value_t = 21)]
    rounds: usize,
    /// Jobs that start at once
    #[arg(long, default_value_t = 64)]
    together: usize,
    /// Measuring rounds of those
    #[arg(long, default_value_t = 3)]
    together_rounds: usize,
    /// Print what each program of Divvy's takes in a job, by the clock of the shell around it
    #[arg(long)]
    programs: bool,
    /// Measure the programs of this folder, and build none
    #[arg(long, value_name = "FOLDER")]
    built: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if !rustix::process::geteuid().is_root() {
        bail!("A cluster's daemons need root: run this with sudo");
    }
    if !slurm::is_installed() {
        bail!("Slurm and munge are not installed: `cargo xtask setup` installs them");
    }
    let built = match &args.built {
        Some(folder) => folder.clone(),
        None => artifacts::build(&[&artifacts::PRODUCT[..], &["slurm-options"]].concat())?,
    };
    let plain = Site::without()?;
    let divvy = Site::with(&built, args.programs)?;
    println!(
        "{:<52} {:>9} {:>9} {:>9}   target",
        "a job's start, ms, median", "without", "with", "added"
    );
    let mut alone = (Vec::new(), Vec::new());
    for round in 0..=args.rounds {
        let pair = (plain.starts(1)?, divvy.starts(1)?);
        // The first one reads what later ones find in memory.
        if round > 0 {
            alone.0.extend(pair.0);
            alone.1.extend(pair.1);
        }
    }
    let (without, with) = (median(&mut alone.0), median(&mut alone.1));
    let added = with - without;
    let verdict = if added <= MOST_MS { "met" } else { "MISSED" };
    println!(
        "{:<52} {without:>9.1} {with:>9.1} {added:>9.1}   <= {MOST_MS:.0}  {verdict}",
        "one job"
    );
    let (mut last, mut middle) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    for _ in 0..args.together_rounds {
        for (site, last, middle) in [
            (&plain, &mut last.0, &mut middle.0),
            (&divvy, &mut last.1, &mut middle.1),
        ] {
            let mut starts = site.starts(args.together)?;
            last.push(starts.iter().copied().fold(0.0, f64::max));
            middle.push(median(&mut starts));
        }
    }
    for (name, (mut without, mut with)) in [("the median of them", middle), ("the last of them", last)] {
        let (without, with) = (median(&mut without), median(&mut with));
        let title = format!("{} jobs at once, {name}", args.together);
        let each = (with - without) / args.together as f64;
        println!(
            "{title:<52} {without:>9.1} {with:>9.1} {:>9.1}   {each:.1} a job",
            with - without
        );
    }
    if args.programs {
        print!("{}", divvy.programs()?);
    }
    Ok(())
}
