//! One program, twice: over the limiter in its own process, and over a worker. Both are over the emulated device, whose
//! copies are memcpy's.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use divvy_bench::slice::Slice;

use crate::Args;
use crate::program::Figures;

/// What is built for it.
const PACKAGES: [&str; 4] = ["divvy-worker", "remote-cuda", "limit-cuda", "emulated-cuda"];

/// A worker, which ends with this.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Measures both, and prints one beside the other.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let built = divvy_bench::artifacts::build(&PACKAGES)?;
    let slice = Slice::new()?;
    let home = tempfile::Builder::new().prefix("divvy-").tempdir()?;
    let driver = built.join("libdivvy_emulated_cuda.so");
    let environment = |command: &mut Command| {
        command
            .env("DIVVY_SLICE", slice.socket())
            .env("DIVVY_DRIVER", &driver)
            .env("DIVVY_RUN_DIR", home.path())
            .env("DIVVY_EMULATED", "h100")
            .stdin(Stdio::null());
    };
    let here = program(args, &built.join("libdivvy_limit_cuda.so"), environment)?;
    let socket = home.path().join("worker.sock");
    let mut command = Command::new(built.join("divvy-worker"));
    environment(&mut command);
    let _worker = Worker(command.arg(&socket).spawn().context("Cannot start a worker")?);
    let began = Instant::now();
    while !socket.exists() {
        if began.elapsed() > Duration::from_secs(20) {
            bail!("The worker does not listen");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let there = program(args, &built.join("libdivvy_remote_cuda.so"), |command| {
        command.env("DIVVY_REMOTE", &socket).stdin(Stdio::null());
    })?;
    print(&here, &there);
    Ok(())
}

fn program(args: &Args, library: &Path, environment: impl FnOnce(&mut Command)) -> anyhow::Result<Figures> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("--program")
        .arg(library)
        .args(["--rounds", &args.rounds.to_string()])
        .args(["--calls", &args.calls.to_string()]);
    environment(&mut command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .context("Cannot start a program")?;
    if !output.status.success() {
        bail!(
            "A program over {} ended with {}",
            library.display(),
            output.status
        );
    }
    serde_json::from_slice(&output.stdout).context("A program prints its figures")
}

fn print(here: &Figures, there: &Figures) {
    println!(
        "{:<44}{:>16}{:>16}{:>9}",
        "", "in the process", "over a worker", "ratio"
    );
    let line = |name: &str, unit: &str, here: f64, there: f64| {
        println!(
            "{name:<44}{here:>13.1} {unit}{there:>13.1} {unit}{:>9.2}",
            there / here
        );
    };
    line(
        "start to the end of the first kernel",
        "ms",
        here.first_kernel_ms,
        there.first_kernel_ms,
    );
    line(
        "a call that waits (cuStreamQuery)",
        "ns",
        here.call_ns,
        there.call_ns,
    );
    line(
        "a call that the client answers",
        "ns",
        here.local_ns,
        there.local_ns,
    );
    line("a launch, submitted", "ns", here.launch_ns, there.launch_ns);
    line(
        "1000 launches and a synchronisation",
        "us",
        here.batch_us,
        there.batch_us,
    );
    for (a, b) in here.copies.iter().zip(&there.copies) {
        println!(
            "{:<44}{:>11.2} GB/s{:>11.2} GB/s{:>9.2}   {:.2} of memcpy",
            a.name,
            a.gigabytes,
            b.gigabytes,
            b.gigabytes / a.gigabytes,
            b.gigabytes / there.memcpy,
        );
    }
    println!(
        "{:<44}{:>11.2} GB/s{:>11.2} GB/s",
        "memcpy of as much, to compare", here.memcpy, there.memcpy
    );
}
