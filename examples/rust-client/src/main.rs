//! A CUDA program in Rust: runs the kernels of examples/cuda on the device it finds, checks each result against the
//! CPU, and says what the driver tells it about memory. It knows nothing of Divvy.
//!
//! Exit code 0 when every result is right, 1 otherwise. An allocation that the device refuses is a fact to report,
//! not a failure.

mod gpu;
mod jobs;
mod report;
mod size;

use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Parser;

use gpu::Gpu;
use report::Report;
use size::Size;

/// Run CUDA kernels, check them against the CPU, and report the device's memory.
#[derive(Parser)]
struct Arguments {
    /// Which job to run: all of them when none is named
    #[arg(long = "job", value_name = "NAME", value_parser = jobs::NAMES)]
    jobs: Vec<String>,
    /// Run the jobs again and again for this long
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    repeat: f64,
    /// Try to allocate this much device memory and keep it: 512MiB, 2GiB, 1GB
    #[arg(long, value_name = "SIZE")]
    allocate: Option<Size>,
    /// Stay on the device this long after the jobs
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    hold: f64,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let gpu = Gpu::open()?;
    let mut report = Report::new(&gpu)?;

    // Kept until the end of main: --hold is there to be seen from outside.
    let kept = arguments.allocate.map(|size| gpu.allocate(size.bytes()));
    if let (Some(size), Some(attempt)) = (arguments.allocate, &kept) {
        report.allocation(size.bytes(), attempt.as_ref().err());
    }

    let end = Instant::now() + Duration::try_from_secs_f64(arguments.repeat)?;
    loop {
        for name in jobs::NAMES {
            if arguments.jobs.is_empty() || arguments.jobs.iter().any(|wanted| wanted == name) {
                report.job(jobs::run(name, &gpu)?);
            }
        }
        if Instant::now() >= end {
            break;
        }
    }

    report.memory_at_end(&gpu)?;
    report.print(arguments.json)?;
    sleep(Duration::try_from_secs_f64(arguments.hold)?);

    if !report.all_correct() {
        std::process::exit(1);
    }
    Ok(())
}
