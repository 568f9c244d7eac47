//! A tenant for the stories: a CUDA program over cudarc that does what its standard input tells it, line by line, and
//! answers each line with one JSON object. It ends with its input. It knows nothing of Divvy.
//!
//! Lines: `info`, `allocate BYTES`, `free`, `compute`, `descriptors`, `environment NAME`, `exit STATUS`.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{BufRead, stdin};
use std::process::exit;
use std::sync::Arc;

use anyhow::Context;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError};
use serde_json::{Value, json};

struct Probe {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    held: Vec<CudaSlice<u8>>,
}

fn main() -> anyhow::Result<()> {
    let context = CudaContext::new(0).context("Cannot open CUDA device 0")?;
    let stream = context.new_stream().context("Cannot create a stream")?;
    let mut probe = Probe {
        context,
        stream,
        held: Vec::new(),
    };
    println!("{}", json!({ "pid": std::process::id() }));
    for line in stdin().lock().lines() {
        println!("{}", probe.answer(&line?)?);
    }
    Ok(())
}

impl Probe {
    fn answer(&mut self, line: &str) -> anyhow::Result<Value> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        Ok(match word {
            "info" => {
                let (free, total) = self.context.mem_get_info()?;
                json!({ "free_bytes": free, "total_bytes": total, "device_bytes": self.context.total_mem()? })
            }
            "allocate" => {
                let outcome = self.allocate(rest.parse()?);
                verdict(outcome.map(|memory| self.held.push(memory)))
            }
            "free" => {
                self.held.pop();
                verdict(self.stream.synchronize())
            }
            "compute" => json!({ "right": self.compute()? }),
            "descriptors" => json!({ "descriptors": descriptors()? }),
            "environment" => json!({ "value": std::env::var(rest).ok() }),
            "exit" => exit(rest.parse()?),
            other => anyhow::bail!("The probe does not know the word {other}"),
        })
    }

    fn allocate(&self, bytes: usize) -> Result<CudaSlice<u8>, DriverError> {
        let memory = self.stream.alloc_zeros(bytes)?;
        self.stream.synchronize()?;
        Ok(memory)
    }

    /// Copies numbers there and back by way of a second place on the device.
    fn compute(&self) -> anyhow::Result<bool> {
        let numbers: Vec<u32> = (0..4096).map(|i: u32| i.wrapping_mul(2_654_435_761)).collect();
        let there = self.stream.clone_htod(&numbers)?;
        let copy = self.stream.clone_dtod(&there)?;
        Ok(self.stream.clone_dtoh(&copy)? == numbers)
    }
}

fn verdict(outcome: Result<(), DriverError>) -> Value {
    json!({ "error": outcome.err().map(|error| format!("{:?}", error.0)) })
}

/// What this process's descriptors refer to.
fn descriptors() -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        // The descriptor that reads the folder is gone again.
        if let Ok(target) = fs::read_link(entry?.path()) {
            names.push(target.to_string_lossy().into_owned());
        }
    }
    Ok(names)
}
