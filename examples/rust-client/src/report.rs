//! What the program found out, as text or as one JSON object.

use cudarc::driver::DriverError;
use serde::Serialize;

use crate::gpu::Gpu;
use crate::jobs::Outcome;

/// Everything the program has to tell.
#[derive(Serialize)]
pub struct Report {
    device: String,
    memory_total_bytes: u64,
    /// Free memory when the program had a context and nothing else.
    memory_free_at_start_bytes: u64,
    memory_free_at_end_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    allocation: Option<Allocation>,
    jobs: Vec<Outcome>,
}

/// The answer to `--allocate`.
#[derive(Serialize)]
struct Allocation {
    bytes: u64,
    /// CUDA's name of the refusal; nothing when the memory was given.
    error: Option<String>,
}

impl Report {
    /// Asks the device for its name and memory.
    pub fn new(gpu: &Gpu) -> anyhow::Result<Self> {
        let (free, total) = gpu.memory()?;
        Ok(Self {
            device: gpu.context.name()?,
            memory_total_bytes: total,
            memory_free_at_start_bytes: free,
            memory_free_at_end_bytes: free,
            allocation: None,
            jobs: Vec::new(),
        })
    }

    /// Notes what became of the allocation of `bytes`.
    pub fn allocation(&mut self, bytes: u64, error: Option<&DriverError>) {
        self.allocation = Some(Allocation {
            bytes,
            error: error.map(|error| format!("{:?}", error.0)),
        });
    }

    /// Notes one finished job.
    pub fn job(&mut self, outcome: Outcome) {
        self.jobs.push(outcome);
    }

    /// Asks once more how much memory is free.
    pub fn memory_at_end(&mut self, gpu: &Gpu) -> anyhow::Result<()> {
        self.memory_free_at_end_bytes = gpu.memory()?.0;
        Ok(())
    }

    /// Whether every job's result agreed with the CPU's.
    pub fn all_correct(&self) -> bool {
        self.jobs.iter().all(|job| job.correct)
    }

    /// Prints the report to standard output.
    pub fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            println!("{}", serde_json::to_string(self)?);
            return Ok(());
        }
        println!(
            "{}: {} MiB in all, {} MiB free",
            self.device,
            self.memory_total_bytes >> 20,
            self.memory_free_at_start_bytes >> 20
        );
        if let Some(Allocation { bytes, error }) = &self.allocation {
            let answer = error.as_deref().unwrap_or("given");
            println!("allocate {} MiB: {answer}", bytes >> 20);
        }
        for job in &self.jobs {
            let verdict = if job.correct { "right" } else { "WRONG" };
            println!(
                "{:<10} {verdict}  {:>9} results, largest error {:.1e}, {:.3} s",
                job.name, job.results, job.largest_error, job.seconds
            );
        }
        println!("{} MiB free at the end", self.memory_free_at_end_bytes >> 20);
        Ok(())
    }
}
