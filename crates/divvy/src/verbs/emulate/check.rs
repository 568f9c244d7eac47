//! `divvy emulate check`: what is wrong with a program's kernels, found while they run on an emulated device.

use std::ffi::OsString;

use divvy_model::{Code, Fault, Selector};

use super::Emulated;
use super::report::{self, CheckReport};
use crate::context::Context;
use crate::flags::parse;
use crate::folder::PrivateFolder;
use crate::output::{self, Format};

/// Flags of `divvy emulate check`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy emulate check -- ./saxpy
  divvy emulate check -- python program.py
  divvy emulate check --leaks -- ./saxpy
  divvy emulate check --device emulated:l4 -o json -- ./saxpy > report.json

It finds races in shared and global memory, reads of memory that nothing has written, accesses outside
of allocations, of freed memory and of misaligned addresses, and barriers that only a part of a warp
reaches. It ends with 1 where it found something, and as the program otherwise.")]
pub struct Args {
    /// Also list allocations and objects that the program had not given back when it ended
    #[arg(long)]
    leaks: bool,
    /// The device, as emulated:l4 [default: emulated:h100]
    #[arg(short, long, value_name = "DEVICE", value_parser = parse::<Selector>)]
    device: Option<Selector>,
    /// The program and its arguments: all that follows the first word that is no flag. `--` may stand before it
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Runs the program and prints what was found.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let folder = PrivateFolder::new("emulate")?;
    let (pages, found) = (folder.with("pages")?, folder.with("found")?);
    let program = Emulated {
        device: args.device.as_ref(),
        command: &args.command,
        variables: &[("DIVVY_CHECK", found.clone().into())],
        aside: matches!(context.format, Format::Json | Format::Yaml),
    };
    let status = program.run(&pages, context)?;
    let mut report = CheckReport::read(&found, status)?;
    if !args.leaks {
        report.leave_leaks_out();
    }
    if !output::document(context.format, "CheckReport", &report)? {
        output::print(&report::in_words(&report))?;
    }
    Ok(match report.findings.is_empty() {
        true => status,
        false => Code::Findings.exit_status(),
    })
}
