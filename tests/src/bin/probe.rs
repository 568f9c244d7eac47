//! A tenant for the scenarios: a CUDA program over cudarc that does what its standard input tells it, line by line, and
//! answers each line with one JSON object. It ends with its input. It knows nothing of Divvy.
//!
//! - `info`: what cuMemGetInfo and cuDeviceTotalMem say
//! - `allocate BYTES`: keep that much device memory, or say which error came
//! - `free`: give back what was allocated last
//! - `use N`: from now on CUDA device N; what is held on others stays
//! - `copy`: send numbers through the device and compare
//! - `descriptors`: what this process's descriptors refer to
//! - `environment NAME`: a variable's value
//! - `start N`: start N probes as children
//! - `children LINE`: send LINE to all of them before reading any answer
//! - `child I LINE`: send LINE to one of them
//! - `exit STATUS`: end at once, by the C library's exit
#![forbid(unsafe_code)]

use std::fs;
use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Child, ChildStdout, Command, Stdio, exit};
use std::sync::Arc;

use anyhow::Context;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError};
use serde_json::{Value, json};

struct Probe {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    held: Vec<CudaSlice<u8>>,
    children: Vec<Conversation>,
}

/// A child probe and its answers.
struct Conversation {
    child: Child,
    answers: BufReader<ChildStdout>,
}

fn main() -> anyhow::Result<()> {
    let context = CudaContext::new(0).context("Cannot open CUDA device 0")?;
    let stream = context.new_stream().context("Cannot create a stream")?;
    let mut probe = Probe {
        context,
        stream,
        held: Vec::new(),
        children: Vec::new(),
    };
    println!("{}", json!({ "pid": std::process::id() }));
    for line in stdin().lock().lines() {
        println!("{}", probe.answer(&line?)?);
    }
    for Conversation { mut child, .. } in probe.children.drain(..) {
        drop(child.stdin.take());
        child.wait()?;
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
            "use" => verdict(self.use_device(rest.parse()?)),
            "copy" => json!({ "right": self.copy()? }),
            "descriptors" => json!({ "descriptors": descriptors()? }),
            "environment" => json!({ "value": std::env::var(rest).ok() }),
            "start" => {
                let first = self.children.len();
                for _ in 0..rest.parse::<usize>()? {
                    self.children.push(Conversation::start()?);
                }
                let hellos: anyhow::Result<Vec<Value>> = self.children[first..]
                    .iter_mut()
                    .map(Conversation::answer)
                    .collect();
                json!({ "children": hellos? })
            }
            "children" => {
                for child in &mut self.children {
                    child.tell(rest)?;
                }
                let answers: anyhow::Result<Vec<Value>> =
                    self.children.iter_mut().map(Conversation::answer).collect();
                json!({ "answers": answers? })
            }
            "child" => {
                let (index, line) = rest
                    .split_once(' ')
                    .context("`child` needs an index and a line")?;
                let child = self
                    .children
                    .get_mut(index.parse::<usize>()?)
                    .context("There is no such child")?;
                child.tell(line)?;
                child.answer()?
            }
            "exit" => exit(rest.parse()?),
            other => anyhow::bail!("The probe does not know the word {other}"),
        })
    }

    fn use_device(&mut self, ordinal: usize) -> Result<(), DriverError> {
        let context = CudaContext::new(ordinal)?;
        self.stream = context.new_stream()?;
        self.context = context;
        Ok(())
    }

    fn allocate(&self, bytes: usize) -> Result<CudaSlice<u8>, DriverError> {
        let memory = self.stream.alloc_zeros(bytes)?;
        self.stream.synchronize()?;
        Ok(memory)
    }

    /// Copies numbers there and back by way of a second place on the device.
    fn copy(&self) -> anyhow::Result<bool> {
        let numbers: Vec<u32> = (0..4096).map(|i: u32| i.wrapping_mul(2_654_435_761)).collect();
        let there = self.stream.clone_htod(&numbers)?;
        let copy = self.stream.clone_dtod(&there)?;
        Ok(self.stream.clone_dtoh(&copy)? == numbers)
    }
}

impl Conversation {
    fn start() -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let answers = BufReader::new(child.stdout.take().context("A child's output is piped")?);
        Ok(Self { child, answers })
    }

    fn tell(&mut self, line: &str) -> anyhow::Result<()> {
        Ok(writeln!(
            self.child.stdin.as_mut().context("A child's input is piped")?,
            "{line}"
        )?)
    }

    fn answer(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("A child answered {line:?}"))
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
