//! The emulated device's engine, as its page tells of it: exact, and no program's own word.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use divvy_arbiter::Nanos;
use divvy_device::{Uuid, devices, engine_usage_in};

/// What the engine had done at one moment, in nanoseconds of its own clock.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// The moment.
    pub at: Nanos,
    /// Time it has run for each process, by its id, up to that moment.
    pub busy: HashMap<u32, Nanos>,
}

/// The engine of a host's one device.
pub struct Engine {
    directory: PathBuf,
    device: Uuid,
}

impl Engine {
    /// The engine of the first device that `specification` makes in this run directory.
    pub fn open(directory: &Path, specification: &str) -> anyhow::Result<Self> {
        let all = devices(specification, directory)?;
        Ok(Self {
            directory: directory.to_owned(),
            device: all.first().context("No device")?.uuid,
        })
    }

    /// What it has done by now.
    pub fn sample(&self) -> anyhow::Result<Sample> {
        let usage = engine_usage_in(&self.directory, self.device)?;
        Ok(Sample {
            at: usage.now_ns,
            busy: usage
                .processes
                .iter()
                .map(|process| (process.pid, process.busy_ns))
                .collect(),
        })
    }
}
