//! The command line: `run`, and two words that the kit says to itself.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;

use crate::finding::{Finding, Verdict};
use crate::folder::Folder;
use crate::kit::{Kit, OWN_WORDS};
use crate::output::{complain, say};
use crate::part::{PARTS, find};
use crate::report::{self, Report};
use crate::run::{CUT, Options, follow_runner, run, try_device};
use crate::signals::Signals;

/// What the kit is told to do.
#[derive(Debug, Subcommand)]
pub enum Words {
    /// Run all parts that have not run, in order of worth
    Run {
        /// Where the results go; a run that finds results there goes on from them
        #[arg(
            long,
            value_name = "DIR",
            default_value = "divvy-kit-results",
            overrides_with = "out"
        )]
        out: PathBuf,
        /// Run this part, whether it has run or not; may be given several times
        #[arg(long, value_name = "NAME")]
        part: Vec<String>,
        /// Stop after so many minutes
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        minutes: Option<u64>,
        /// Let no part take longer than so many seconds
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        limit: Option<u64>,
        /// Ask this device: an index, or emulated:h100 [default: the first GPU]
        #[arg(long)]
        device: Option<String>,
    },
    /// List the parts
    List,
    /// What the kit tells itself
    #[command(flatten)]
    Inner(Inner),
}

/// What the kit tells itself.
#[derive(Debug, Subcommand)]
pub enum Inner {
    /// One part, in the process that the runner made for it
    #[command(hide = true)]
    Part {
        /// Which
        name: String,
        /// The folder of results
        #[arg(long)]
        out: PathBuf,
        /// How long it may take, in seconds
        #[arg(long)]
        limit: u64,
        /// As for all parts
        #[arg(long)]
        device: Option<String>,
        /// The short form
        #[arg(long)]
        short: bool,
    },
    /// One of the kit's own CUDA programs
    #[command(hide = true)]
    Tenant {
        /// Which
        word: String,
    },
}

/// Ended as wanted; some promise fails; it could not be done.
const FAILS: u8 = 1;
const CANNOT: u8 = 2;

/// Does what it is told.
#[must_use]
pub fn main(words: Words) -> ExitCode {
    let outcome = match words {
        Words::Run {
            out,
            part,
            minutes,
            limit,
            device,
        } => {
            let options = Options {
                parts: part,
                budget: minutes.map(|minutes| Duration::from_secs(minutes.saturating_mul(60))),
                limit: limit.map(Duration::from_secs),
                device,
                is_short: false,
            };
            run_all(&out, &options)
        }
        Words::List => {
            for part in PARTS {
                say(&format!("{:12} {}", part.name, part.about));
            }
            Ok(ExitCode::SUCCESS)
        }
        Words::Inner(inner) => Ok(ExitCode::from(main_inner(&inner))),
    };
    outcome.unwrap_or_else(|why| {
        complain(&why);
        ExitCode::from(CANNOT)
    })
}

/// Says which words stand before these where this program calls itself, as the kit is a verb of it.
pub fn called_by(own_words: &[&str]) {
    let _set_once = OWN_WORDS.set(own_words.iter().map(|word| (*word).to_owned()).collect());
}

/// Does what the kit told itself; the exit status.
#[must_use]
pub fn main_inner(inner: &Inner) -> u8 {
    let outcome = match inner {
        Inner::Part {
            name,
            out,
            limit,
            device,
            short,
        } => run_part(name, out, Duration::from_secs(*limit), device.clone(), *short),
        Inner::Tenant { word } => crate::tenant::run(word).map(|()| 0),
    };
    outcome.unwrap_or_else(|why| {
        complain(&why);
        CANNOT
    })
}

fn run_all(out: &std::path::Path, options: &Options) -> Result<ExitCode, String> {
    if let Some(unknown) = options.parts.iter().find(|name| find(name).is_none()) {
        let names: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
        return Err(format!(
            "there is no part `{unknown}`; the parts are {}",
            names.join(", ")
        ));
    }
    let results = Folder::open(out).map_err(|error| {
        format!(
            "nothing can be written in {}: {error}; choose another with --out",
            out.display()
        )
    })?;
    let signals = Signals::take().map_err(|error| error.to_string())?;
    let tried = try_device(options.device.as_deref(), &signals);
    if let Some(status) = signals.status() {
        return Ok(ExitCode::from(status));
    }
    tried.map_err(|why| {
        format!("there is no device to ask: {why}; `divvy doctor` looks for the reason, `--device emulated:h100` asks the emulated device")
    })?;
    run(&results, options, &signals, say).map_err(|error| format!("{}: {error}", out.display()))?;
    let report = Report::of(&results, options.device.as_deref());
    say(&format!(
        "the page: {}",
        results.path().join("report.md").display()
    ));
    if let Some(status) = signals.status() {
        return Ok(ExitCode::from(status));
    }
    Ok(match report.holds() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(FAILS),
    })
}

/// A part, in the process that the runner made for it.
fn run_part(
    name: &str,
    out: &std::path::Path,
    limit: Duration,
    device: Option<String>,
    is_short: bool,
) -> Result<u8, String> {
    let part = find(name).ok_or_else(|| format!("there is no part `{name}`"))?;
    let results = Folder::open(out).map_err(|error| error.to_string())?;
    let (kept, asked) = (results.clone(), device.clone());
    // The runner cannot: it was killed.
    follow_runner(move || drop(report::write(&kept, asked.as_deref())));
    let mut kit =
        Kit::new(&results, part.name, device, is_short, limit).map_err(|error| error.to_string())?;
    if part.is_shared && !crate::parts::may_share(&kit) {
        let why = "the card is set to take one program at a time: `nvidia-smi --compute-mode=DEFAULT` lets it be shared";
        kit.found(&Finding::skipped(part.name, why))?;
        return Ok(0);
    }
    match (part.run)(&mut kit) {
        Ok(()) if kit.is_cut => Ok(CUT),
        Ok(()) => Ok(0),
        Err(why) => {
            kit.found(&Finding::new(format!("{name}.ended"), Verdict::Fails, why))?;
            Ok(FAILS)
        }
    }
}
