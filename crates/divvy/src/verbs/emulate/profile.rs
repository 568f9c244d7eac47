//! `divvy emulate profile`: what each line of a program's kernels does, counted while they run on an emulated device.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault, Selector};
use serde::{Deserialize, Serialize};

use super::{Emulated, flame};
use crate::context::Context;
use crate::flags::parse;
use crate::folder::{PrivateFolder, cannot_write, output_file};
use crate::output::{self, Format};
use crate::table::Table;

/// Flags of `divvy emulate profile`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy emulate profile -- ./saxpy
  divvy emulate profile --flame flame.svg -- python program.py
  divvy emulate profile --lines 50 -- ./saxpy
  divvy emulate profile -o json -- ./saxpy > profile.json

It counts instructions, active lanes, sectors of device memory and passes of shared memory. It measures
no time: an emulated device has not a GPU's speed.")]
pub struct Args {
    /// Write a picture of the instructions by kernel and line, for a browser
    #[arg(long, value_name = "FILE")]
    flame: Option<PathBuf>,
    /// How many lines to list for each kernel
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    lines: usize,
    /// The device, as emulated:l4 [default: emulated:h100]
    #[arg(short, long, value_name = "DEVICE", value_parser = parse::<Selector>)]
    device: Option<Selector>,
    /// The program and its arguments: all that follows the first word that is no flag. `--` may stand before it
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Runs the program and prints what was counted.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let picture = args.flame.as_deref().map(output_file).transpose()?;
    let folder = PrivateFolder::new("emulate")?;
    let (pages, counted) = (folder.with("pages")?, folder.with("counted")?);
    let program = Emulated {
        device: args.device.as_ref(),
        command: &args.command,
        variables: &[("DIVVY_PROFILE", counted.clone().into())],
        aside: matches!(context.format, Format::Json | Format::Yaml),
    };
    let status = program.run(&pages, context)?;
    let profile = KernelProfile::read(&counted, status)?;
    if let (Some(mut file), Some(path)) = (picture, &args.flame) {
        file.write_all(flame::picture(&profile).as_bytes())
            .map_err(|error| cannot_write(path, &error))?;
    }
    if !output::document(context.format, "KernelProfile", &profile)? {
        output::print(&in_words(&profile, args.lines))?;
    }
    Ok(status)
}

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
    fn read(folder: &Path, exit_status: u8) -> Result<Self, Fault> {
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

/// The profile for people: the kernels, and the busiest lines of each.
fn in_words(profile: &KernelProfile, most: usize) -> String {
    if profile.kernels.is_empty() {
        return match profile.processes {
            0 => "nothing was counted: the program opened no CUDA device\n".to_owned(),
            _ => "nothing was counted: the program launched no kernel\n".to_owned(),
        };
    }
    let mut text = String::new();
    for kernel in &profile.kernels {
        let launches = match kernel.launches {
            1 => "1 launch".to_owned(),
            count => format!("{count} launches"),
        };
        let _ = writeln!(
            text,
            "kernel {}: {launches}, {} blocks, {} instructions of warps, {} of their lanes active",
            short(&kernel.name, 100),
            kernel.blocks,
            kernel.total.warps,
            percent(kernel.total.lanes, 32 * kernel.total.warps)
        );
        let mut places = kernel.places();
        places.sort_by_key(|(_, _, counts)| std::cmp::Reverse(counts.warps));
        let mut table = Table::new(vec![
            ("LINE", false),
            ("INSTRUCTIONS", true),
            ("SHARE", true),
            ("LANES", true),
            ("BYTES", true),
            ("SECTORS", true),
            ("IDEAL", true),
            ("BANKS", true),
            ("", false),
        ]);
        let left_out = places.len().saturating_sub(most);
        for (place, instruction, counts) in places.into_iter().take(most) {
            let some = |value: u64, is_there: bool| match is_there {
                true => value.to_string(),
                false => String::new(),
            };
            let global = counts.requests > 0;
            table.row(vec![
                place,
                counts.warps.to_string(),
                percent(counts.warps, kernel.total.warps),
                percent(counts.lanes, 32 * counts.warps),
                some(counts.bytes, global),
                some(counts.sectors, global),
                some(counts.ideal_sectors, global),
                match counts.shared_accesses {
                    0 => String::new(),
                    accesses => format!("{:.1}", counts.shared_passes as f64 / accesses as f64),
                },
                short(&instruction, 60),
            ]);
        }
        text.push_str(&table.to_text());
        if left_out > 0 {
            let _ = writeln!(text, "{left_out} more lines: `--lines` lists them");
        }
        text.push('\n');
    }
    text.push_str(
        "LANES: lanes of a warp that were active. SECTORS: those of 32 bytes that were asked for; IDEAL: those that would \
         do. BANKS: passes of an access to shared memory, 1 without conflicts.\n",
    );
    text
}

/// A text without tabs, and not longer than so many characters: mangled names are.
fn short(text: &str, most: usize) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn percent(part: u64, of: u64) -> String {
    match of {
        0 => String::new(),
        _ => format!("{:.0}%", 100.0 * part as f64 / of as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut() {
        assert_eq!(short("ld.param.u64 \t%rd4, [k];", 60), "ld.param.u64 %rd4, [k];");
        assert_eq!(short("abcdef", 3), "abc...");
        assert_eq!(short("äöü", 3), "äöü");
    }
}
