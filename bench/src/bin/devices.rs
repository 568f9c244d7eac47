//! How long `divvy devices` takes: on an emulated host, and on a machine with 16 GPUs.
//!
//! Targets: below 50 ms on both.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, ensure};
use clap::Parser;
use divvy_bench::artifacts;
use divvy_bench::statistics::median;
use divvy_host::built::Built;

/// Times whole runs of the command, from start to exit.
#[derive(Parser)]
struct Arguments {
    /// Runs of each
    #[arg(long, default_value_t = 21)]
    repeat: u32,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let divvy = artifacts::build(&["divvy"])?.join("divvy");
    let folder = tempfile::tempdir()?;
    let built = Built::h100(folder.path().join("machine"), 16);
    let run_dir = folder.path().join("run");
    println!("{:<34} {:>10} {:>10}", "divvy devices", "median ms", "target ms");
    let emulated = ["devices"].as_slice();
    let root = built.root().to_string_lossy().into_owned();
    let captured = ["devices", "--sysroot", &root];
    for (name, words) in [
        ("emulated host (8 devices)", emulated),
        ("16 GPUs, half in MIG mode", &captured),
    ] {
        let mut times = Vec::new();
        for _ in 0..arguments.repeat {
            let start = Instant::now();
            let status = Command::new(&divvy)
                .args(words)
                .env("DIVVY_EMULATED", "h100*8")
                .env("DIVVY_RUN_DIR", &run_dir)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .context("divvy starts")?;
            ensure!(status.success(), "{words:?} failed");
            times.push(start.elapsed().as_secs_f64() * 1000.0);
        }
        println!("{name:<34} {:>10.1} {:>10}", median(&mut times), "< 50");
    }
    Ok(())
}
