//! `cargo xtask bench jobs`: what Divvy adds to the start of a Slurm job.
//!
//! Three clusters of one node each, for real, on loopback and in folders of their own: one as it is, one with a prolog that does
//! nothing, and one that `divvy slurm setup` has set up, with an agent and an emulated device. Jobs of all start in alternating
//! rounds, so that the machine's mood cancels. A job's start ends when its program reads the clock.
//!
//! The second one tells what Slurm itself takes for having a prolog. Where the prolog runs when srun asks for the first time whether
//! the job's node is ready, srun sleeps for 100 ms before it asks again.
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

/// As `divvy slurm setup` writes them.
const OWN_FLAGS: &str = "Alloc";

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
    /// Measure Slurm alone: a prolog that does nothing, under each form of PrologFlags
    #[arg(long)]
    flags: bool,
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
    if args.flags {
        return of_flags(&args);
    }
    let built = match &args.built {
        Some(folder) => folder.clone(),
        None => artifacts::build(&[&artifacts::PRODUCT[..], &["slurm-options"]].concat())?,
    };
    let sites = [
        Site::without()?,
        Site::with_empty_prolog(OWN_FLAGS)?,
        Site::with(&built, args.programs)?,
    ];
    println!(
        "{:<42} {:>9} {:>9} {:>9} {:>9} {:>9}   target",
        "a job's start, ms, median", "without", "empty", "Divvy", "added", "by Divvy"
    );
    let mut alone = [const { Vec::new() }; 3];
    for round in 0..=args.rounds {
        for (site, starts) in sites.iter().zip(&mut alone) {
            let start = site.starts(1)?;
            // The first one reads what later ones find in memory.
            if round > 0 {
                starts.extend(start);
            }
        }
    }
    let row = Row::of(&mut alone);
    let verdict = if row.added() <= MOST_MS { "met" } else { "MISSED" };
    println!("{}   <= {MOST_MS:.0}  {verdict}", row.shown("one job"));
    let (mut last, mut middle) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
    for _ in 0..args.together_rounds {
        for ((site, last), middle) in sites.iter().zip(&mut last).zip(&mut middle) {
            let mut starts = site.starts(args.together)?;
            last.push(starts.iter().copied().fold(0.0, f64::max));
            middle.push(median(&mut starts));
        }
    }
    for (name, mut figures) in [("the median of them", middle), ("the last of them", last)] {
        let row = Row::of(&mut figures);
        let title = format!("{} jobs at once, {name}", args.together);
        println!(
            "{}   {:.1} a job",
            row.shown(&title),
            row.added() / args.together as f64
        );
    }
    let [_, _, divvy] = &sites;
    if args.programs {
        print!("{}", divvy.programs()?);
    }
    Ok(())
}

/// Forms of PrologFlags. Under `NoHold` a job's first step may begin before its prolog has ended: docs/adr/0073.
const FLAGS: [&str; 4] = ["Alloc", "Alloc,NoHold", "Contain", "Alloc,Serial"];

/// What each form of PrologFlags takes with programs that do nothing, by turns with a cluster that has no prolog.
fn of_flags(args: &Args) -> anyhow::Result<()> {
    let mut sites = vec![("no prolog", Site::without()?)];
    for flags in FLAGS {
        sites.push((flags, Site::with_empty_prolog(flags)?));
    }
    let mut starts = vec![Vec::new(); sites.len()];
    for round in 0..=args.rounds {
        for ((_, site), starts) in sites.iter().zip(&mut starts) {
            let start = site.starts(1)?;
            if round > 0 {
                starts.extend(start);
            }
        }
    }
    let medians: Vec<f64> = starts.iter_mut().map(|starts| median(starts)).collect();
    println!(
        "{:<42} {:>9} {:>9}",
        "a job's start, ms, median", "start", "added"
    );
    for ((flags, _), start) in sites.iter().zip(&medians) {
        println!("{flags:<42} {start:>9.1} {:>9.1}", start - medians[0]);
    }
    Ok(())
}

/// Medians of the three clusters, in milliseconds.
struct Row([f64; 3]);

impl Row {
    fn of(figures: &mut [Vec<f64>; 3]) -> Self {
        Self(figures.each_mut().map(|figures| median(figures)))
    }

    /// What Divvy's cluster takes more than one without any prolog.
    fn added(&self) -> f64 {
        self.0[2] - self.0[0]
    }

    fn shown(&self, title: &str) -> String {
        let [without, empty, with] = self.0;
        let (added, own) = (self.added(), with - empty);
        format!("{title:<42} {without:>9.1} {empty:>9.1} {with:>9.1} {added:>9.1} {own:>9.1}")
    }
}
