//! `cargo xtask bench intercept`: what a driver call costs through the limiter, over a driver that does nothing, against
//! that driver alone. Both in one process, in alternating rounds, the median of each; so the machine's mood cancels.
//!
//! The limiter works in a real slice: this program makes the pages and serves them; workers join it.

mod driver;
mod history;
mod measure;
mod report;
mod slice;
mod worker;

use std::path::Path;

use clap::Parser;

use report::{Figure, Format};

/// Nanoseconds per driver call through the limiter against the same call without it
#[derive(Parser)]
struct Args {
    /// How to print: a table or JSON
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
    /// Measuring rounds for each figure
    #[arg(long, default_value_t = 201)]
    rounds: usize,
    /// Measure what keeping history adds to these calls, and nothing else
    #[arg(long)]
    history: bool,
    /// For a worker process: what to measure
    #[arg(long, hide = true)]
    worker: Option<worker::Task>,
    /// For a worker process: the folder of the libraries
    #[arg(long, hide = true, default_value = "")]
    libraries: String,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(task) = args.worker {
        return worker::run(task, Path::new(&args.libraries), args.rounds);
    }
    let libraries = divvy_bench::artifacts::build(&["limit-cuda", "null-cuda"])?;
    let slice = slice::Slice::new()?;
    if args.history {
        let compared = history::compare(&slice, &libraries, args.rounds)?;
        report::print_compared(&compared, args.output);
        return Ok(());
    }
    let run = |task, copies, rounds| slice.workers(task, copies, &libraries, rounds);

    let mut figures = run(worker::Task::Single, 1, args.rounds)?;
    // An agent that beats: the gate has a thread from here on.
    slice.open_gate();
    figures.extend(run(worker::Task::Open, 1, args.rounds)?);
    slice.lease();
    figures.extend(run(worker::Task::Leased, 1, args.rounds)?);
    slice.open_gate();
    for (task, threads) in [(worker::Task::Threads2, 2), (worker::Task::Threads8, 8)] {
        figures.extend(
            run(task, 1, args.rounds)?
                .into_iter()
                .map(|f| f.named(&format!("{threads} threads"))),
        );
    }
    for copies in [1, 2, 8, 64] {
        // Many processes measure more rounds between them anyway, and share the machine's few cores.
        let of_each = run(worker::Task::Process, copies, (args.rounds / copies).max(7))?;
        let (short, spent): (Vec<_>, Vec<_>) =
            of_each.into_iter().enumerate().partition(|(at, _)| at % 2 == 0);
        for figures_of_one_kind in [short, spent] {
            let kind: Vec<Figure> = figures_of_one_kind
                .into_iter()
                .map(|(_, figure)| figure)
                .collect();
            figures.push(Figure::mean(&kind).named(&format!("{copies} processes")));
        }
    }
    report::print(&figures, args.output);
    Ok(())
}
