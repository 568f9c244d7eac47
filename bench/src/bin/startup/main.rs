//! `cargo xtask bench startup`: what Divvy adds to the start of a program.
//!
//! - `divvy run -- true` against `true`: the command, admission, the slice's pages, the page server.
//! - a program's first call, cuInit, through the limiter against the same driver without it.
//! - 64 processes that start at once in one slice, each to its first allocation, against the same without the limiter.
//!
//! Both sides of each in alternating rounds, the median of each, so that the machine's mood cancels.

mod command;
mod first_call;
mod together;

use std::path::{Path, PathBuf};

use clap::Parser;
use divvy_bench::statistics::median;
use first_call::Language;
use serde_json::json;

/// What Divvy adds to the start of a program
#[derive(Parser)]
struct Args {
    /// What to measure; everything, where nothing is named
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// How to print
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
    /// Measuring rounds for each figure
    #[arg(long, default_value_t = 41)]
    rounds: usize,
    /// Processes that start at once
    #[arg(long, default_value_t = 64)]
    together: usize,
    /// For a worker process: the driver to load and use
    #[arg(long, hide = true)]
    worker: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// `divvy run` over a program that does nothing
    Command,
    /// A program's first call
    FirstCall,
    /// Many bare processes at once
    Bare,
    /// Many Python programs at once
    Python,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Table,
    Json,
}

/// One line of the report; times in milliseconds.
struct Figure {
    name: String,
    without: Vec<f64>,
    with: Vec<f64>,
    /// The largest ratio that we promise, where we promise one.
    most: Option<f64>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(driver) = &args.worker {
        return first_call::worker(driver);
    }
    let libraries = divvy_bench::artifacts::build(&[
        "divvy",
        "limit-cuda",
        "limit-nvml",
        "limit-opencl",
        "emulated-cuda",
        "emulated-nvml",
        "null-cuda",
    ])?;
    let wants = |part| args.parts.is_empty() || args.parts.contains(&part);
    let mut figures = Vec::new();
    if wants(Part::Command) {
        figures.push(command::measure(&libraries, args.rounds)?);
    }
    for (name, driver) in drivers(&libraries).into_iter().filter(|_| wants(Part::FirstCall)) {
        figures.push(first_call::measure(name, &driver, &libraries, args.rounds)?);
    }
    let [nothing, emulated] = drivers(&libraries);
    for (part, language, (name, driver)) in [
        (Part::Bare, Language::Rust, &nothing),
        (Part::Bare, Language::Rust, &emulated),
        (Part::Python, Language::Python, &emulated),
    ] {
        if !wants(part) {
            continue;
        }
        let (libraries, rounds) = (&libraries, args.rounds);
        figures.push(together::measure(
            language,
            name,
            driver,
            libraries,
            args.together,
            rounds,
        )?);
    }
    print(&mut figures, args.output);
    Ok(())
}

/// Drivers to put below, by name.
fn drivers(libraries: &Path) -> [(&'static str, PathBuf); 2] {
    [
        (
            "a driver that does nothing",
            libraries.join("libdivvy_null_cuda.so"),
        ),
        ("the emulated driver", libraries.join("libdivvy_emulated_cuda.so")),
    ]
}

fn print(figures: &mut [Figure], format: Format) {
    let mut items = Vec::new();
    if format == Format::Table {
        println!(
            "{:<58} {:>9} {:>9} {:>9} {:>7}   target",
            "ms, median", "without", "with", "added", "ratio"
        );
    }
    for figure in figures {
        let (without, with) = (median(&mut figure.without), median(&mut figure.with));
        let ratio = with / without;
        if format == Format::Json {
            items.push(json!({
                "name": figure.name,
                "without_ms": without,
                "with_ms": with,
                "ratio": ratio,
                "target_ratio": figure.most,
            }));
            continue;
        }
        let target = match figure.most {
            Some(most) if ratio <= most => format!("<= {most:.2}  met"),
            Some(most) => format!("<= {most:.2}  MISSED"),
            None => String::new(),
        };
        println!(
            "{:<58} {without:>9.3} {with:>9.3} {:>9.3} {ratio:>7.3}   {target}",
            figure.name,
            with - without
        );
    }
    if format == Format::Json {
        println!("{:#}", json!({ "kind": "BenchStartup", "figures": items }));
    }
}
