//! The workers that join the slice which the limiter works in.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};
use divvy_ledger::Lease;

use crate::report::Figure;
use crate::worker::Task;

/// The slice of one run of the bench.
pub struct Slice(divvy_bench::slice::Slice);

impl Slice {
    pub fn new() -> anyhow::Result<Self> {
        divvy_bench::slice::Slice::new().map(Self)
    }

    /// Opens the gate, as an agent does for a tenant alone on its device.
    pub fn open_gate(&self) {
        self.0.pages().grant.beat();
        self.0.pages().grant.open_gate();
    }

    /// Leases the device to the slice until further notice, with any amount in flight.
    pub fn lease(&self) {
        self.0.pages().grant.beat();
        self.0.pages().grant.lease(Lease {
            epoch: 1,
            until_ns: u64::MAX,
            in_flight_ns: u64::MAX,
        });
    }

    /// What the agent keeps of the slice, as a line of JSON.
    pub fn history_line(&self) -> String {
        let ledger = &self.0.pages().ledger;
        let line = serde_json::json!({
            "memory_used_bytes": ledger.total_used(),
            "memory_peak_bytes": ledger.peak(),
            "refused_allocations": ledger.refusals().count,
        });
        format!("{line}\n")
    }

    /// Runs `copies` worker processes at the same time; answers what they printed.
    pub fn workers(
        &self,
        task: Task,
        copies: usize,
        libraries: &Path,
        rounds: usize,
    ) -> anyhow::Result<Vec<Figure>> {
        let mut workers = (0..copies)
            .map(|_| self.worker(task, libraries, rounds))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut outputs: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                worker
                    .stdout
                    .take()
                    .map(BufReader::new)
                    .context("A pipe was asked for")
            })
            .collect::<anyhow::Result<_>>()?;
        if let Task::Process = task {
            for output in &mut outputs {
                output.read_line(&mut String::new())?;
            }
        }
        for worker in &mut workers {
            drop(worker.stdin.take());
        }
        let mut figures = Vec::new();
        for output in outputs {
            for line in output.lines() {
                figures.push(Figure::parse(&line?)?);
            }
        }
        for mut worker in workers {
            let status = worker.wait()?;
            if !status.success() {
                bail!("A worker ended with {status}");
            }
        }
        self.0.require_empty()?;
        Ok(figures)
    }

    fn worker(&self, task: Task, libraries: &Path, rounds: usize) -> anyhow::Result<Child> {
        let task = clap::ValueEnum::to_possible_value(&task).context("Every task has a name")?;
        Command::new(std::env::current_exe()?)
            .args([
                "--worker",
                task.get_name(),
                "--rounds",
                &rounds.to_string(),
                "--libraries",
            ])
            .arg(libraries)
            .env("DIVVY_SLICE", self.0.socket())
            .env("DIVVY_DRIVER", libraries.join("libdivvy_null_cuda.so"))
            .env("NULL_CUDA_PAGE", "2097152")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("Cannot start a worker")
    }
}
