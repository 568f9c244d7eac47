//! `divvy emulate profile`: what each line of a program's kernels does, counted while they run on an emulated device.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use divvy_model::{Fault, Selector};

use super::counted::KernelProfile;
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
