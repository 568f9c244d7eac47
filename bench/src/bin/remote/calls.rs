//! One program, twice: over the limiter in its own process, and over a worker. Both are over the emulated device, whose
//! copies are memcpy's.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use divvy_bench::slice::Slice;
use tempfile::TempDir;

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

/// A slice, and a worker that listens for programs.
pub struct Stand {
    /// Where the libraries are.
    pub built: PathBuf,
    /// The worker's socket.
    pub socket: PathBuf,
    slice: Slice,
    home: TempDir,
    worker: Option<Worker>,
}

impl Stand {
    /// Builds what is needed, and starts a worker.
    pub fn new() -> anyhow::Result<Self> {
        let home = tempfile::Builder::new().prefix("divvy-").tempdir()?;
        let mut stand = Self {
            built: divvy_bench::artifacts::build(&PACKAGES)?,
            socket: home.path().join("worker.sock"),
            slice: Slice::new()?,
            home,
            worker: None,
        };
        let mut command = Command::new(stand.built.join("divvy-worker"));
        stand.environment(&mut command);
        let worker = command.arg(&stand.socket).spawn();
        stand.worker = Some(Worker(worker.context("Cannot start a worker")?));
        let began = Instant::now();
        while !stand.socket.exists() {
            if began.elapsed() > Duration::from_secs(20) {
                bail!("The worker does not listen");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(stand)
    }

    fn environment(&self, command: &mut Command) {
        command
            .env("DIVVY_SLICE", self.slice.socket())
            .env("DIVVY_DRIVER", self.built.join("libdivvy_emulated_cuda.so"))
            .env("DIVVY_RUN_DIR", self.home.path())
            .env("DIVVY_EMULATED", "h100")
            .stdin(Stdio::null());
    }
}

/// Measures both, and prints one beside the other.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let stand = Stand::new()?;
    let here = program(args, &stand.built.join("libdivvy_limit_cuda.so"), |command| {
        stand.environment(command);
    })?;
    let there = program(args, &stand.built.join("libdivvy_remote_cuda.so"), |command| {
        command.env("DIVVY_REMOTE", &stand.socket).stdin(Stdio::null());
    })?;
    print(&here, &there);
    Ok(())
}

/// Runs the program that measures over this library.
pub fn program(
    args: &Args,
    library: &Path,
    environment: impl FnOnce(&mut Command),
) -> anyhow::Result<Figures> {
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
