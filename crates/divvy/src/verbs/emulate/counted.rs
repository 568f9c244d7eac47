//! What a program's kernels did, as the emulated driver wrote it down.

use std::collections::BTreeMap;
use std::path::Path;

use divvy_model::{Code, Fault};
use serde::{Deserialize, Serialize};

/// What the kernels of a program did.
#[derive(Debug, Serialize)]
pub struct KernelProfile {
    /// The program's exit status, as a shell has it: 128 and the number of the signal that ended it.
    pub exit_status: u8,
    /// Processes of the program that opened the device.
    pub processes: u64,
    /// The kernels, those with the most instructions first.
    pub kernels: Vec<Kernel>,
}

/// A kernel, in all its launches.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// How often it was launched.
    pub launches: u64,
    /// Its blocks, in all launches.
    pub blocks: u64,
    /// What it did in all.
    pub total: Counts,
    /// Its instructions, in the order of the text.
    pub lines: Vec<Line>,
}

/// The instructions of a line in the PTX text.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// The source file and the line, where the PTX has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The line in the PTX text, from 1.
    pub ptx_line: u32,
    /// That line.
    pub instruction: String,
    /// What they did.
    pub counts: Counts,
}

/// What instructions did.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Instructions that warps executed.
    pub warps: u64,
    /// Lanes that executed them: 32 times as many where no lane was left out.
    pub lanes: u64,
    /// Accesses of warps to device memory.
    pub requests: u64,
    /// Bytes that their lanes asked for.
    pub bytes: u64,
    /// Sectors of 32 bytes that these lie in.
    pub sectors: u64,
    /// Sectors that would do if the bytes were neighbours.
    pub ideal_sectors: u64,
    /// Accesses of warps to shared memory.
    pub shared_accesses: u64,
    /// Passes that these take: one each without bank conflicts.
    pub shared_passes: u64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.warps += other.warps;
        self.lanes += other.lanes;
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.sectors += other.sectors;
        self.ideal_sectors += other.ideal_sectors;
        self.shared_accesses += other.shared_accesses;
        self.shared_passes += other.shared_passes;
    }
}

/// A line that the emulated driver wrote.
#[derive(Deserialize)]
struct Told {
    kernel: String,
    launches: u64,
    blocks: u64,
    source: Option<String>,
    ptx_line: u32,
    instruction: String,
    #[serde(flatten)]
    counts: Counts,
}

impl KernelProfile {
    /// Reads what the processes of a program have left in a folder.
    pub fn read(folder: &Path, exit_status: u8) -> Result<Self, Fault> {
        let cannot = |error: &dyn std::error::Error| {
            Fault::new(Code::Internal, "cannot read what was counted").because(error)
        };
        let mut kernels: BTreeMap<String, Kernel> = BTreeMap::new();
        let mut processes = 0;
        for entry in std::fs::read_dir(folder).map_err(|error| cannot(&error))? {
            let path = entry.map_err(|error| cannot(&error))?.path();
            if path.extension().is_none_or(|end| end != "jsonl") {
                continue;
            }
            processes += 1;
            let text = std::fs::read_to_string(path).map_err(|error| cannot(&error))?;
            let mut of_process: BTreeMap<String, (u64, u64)> = BTreeMap::new();
            for told in text
                .lines()
                .filter_map(|line| serde_json::from_str::<Told>(line).ok())
            {
                of_process.insert(told.kernel.clone(), (told.launches, told.blocks));
                let kernel = kernels.entry(told.kernel.clone()).or_default();
                kernel.name = told.kernel;
                kernel.total.add(&told.counts);
                kernel.lines.push(Line {
                    source: told.source,
                    ptx_line: told.ptx_line,
                    instruction: told.instruction,
                    counts: told.counts,
                });
            }
            for (name, (launches, blocks)) in of_process {
                let kernel = kernels.entry(name).or_default();
                kernel.launches += launches;
                kernel.blocks += blocks;
            }
        }
        let mut kernels: Vec<Kernel> = kernels.into_values().collect();
        kernels.sort_by_key(|kernel| std::cmp::Reverse(kernel.total.warps));
        Ok(Self {
            exit_status,
            processes,
            kernels,
        })
    }
}

impl Kernel {
    /// Counts by source line, or by PTX line where the text names no source: the place, an instruction's text, the counts.
    pub fn places(&self) -> Vec<(String, String, Counts)> {
        let mut places: Vec<(String, String, Counts)> = Vec::new();
        let mut at: BTreeMap<String, usize> = BTreeMap::new();
        for line in &self.lines {
            let (place, text) = match &line.source {
                Some(source) => (source.clone(), String::new()),
                None => (format!("PTX line {}", line.ptx_line), line.instruction.clone()),
            };
            let n = *at.entry(place.clone()).or_insert_with(|| {
                places.push((place, text, Counts::default()));
                places.len() - 1
            });
            places[n].2.add(&line.counts);
        }
        places
    }
}
