//! `divvy emulate trace`: what a program asks of CUDA, call by call, while it runs on an emulated device.
//!
//! - `follow`: the thread that reads what the program's processes record
//! - `choice`: what of it is wanted
//! - `story`: which call is inside which, and which never ended
//! - `lines`: the text, `chrome`: the trace for Perfetto, `summary`: counts and times

mod choice;
mod chrome;
mod follow;
mod lines;
mod listener;
mod story;
mod summary;

use std::ffi::OsString;
use std::path::PathBuf;

use divvy_model::{Fault, Selector};

use self::choice::Choice;
use self::chrome::Chrome;
use self::follow::Following;
use self::lines::Lines;
use self::listener::{Listener, Sink};
use self::story::Teller;
use super::Emulated;
use crate::context::Context;
use crate::flags::parse;
use crate::folder::PrivateFolder;
use crate::output::{self, Format};
use crate::report::remark;

/// Flags of `divvy emulate trace`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy emulate trace -- ./saxpy
  divvy emulate trace --summary -- python program.py
  divvy emulate trace --only 'cuMem*,cuLaunch*' -- ./saxpy
  divvy emulate trace --json trace.json -- python program.py

It shows the calls of the CUDA driver and runtime with their arguments, results and times, and each kernel
and copy with its stream. --json writes a file that https://ui.perfetto.dev and chrome://tracing open.")]
pub struct Args {
    /// Write a trace for Perfetto in the place of the lines: threads, streams, launches and memory over time
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the lines to this file, while the program runs [default: standard error]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print counts and times by function and kernel at the end, in the place of the lines
    #[arg(long)]
    summary: bool,
    /// Only these functions and kernels, separated by commas; `*` stands for any letters. cuGetProcAddress is left out unless named
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Only what devices do: kernels, copies and fills, and no calls
    #[arg(long)]
    kernels: bool,
    /// Also the driver's calls that the CUDA runtime makes for the program
    #[arg(long)]
    nested: bool,
    /// The device, as emulated:l4 [default: emulated:h100]
    #[arg(short, long, value_name = "DEVICE", value_parser = parse::<Selector>)]
    device: Option<Selector>,
    /// The program and its arguments: all that follows the first word that is no flag. `--` may stand before it
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Runs the program, and shows what it does.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let choice = Choice::new(&args.only, args.kernels, args.nested)?;
    let is_document = matches!(context.format, Format::Json | Format::Yaml);
    let mut listeners: Vec<Box<dyn Listener>> = Vec::new();
    if let Some(path) = &args.json {
        listeners.push(Box::new(Chrome::new(Sink::file(path)?)));
    }
    match &args.file {
        Some(path) => listeners.push(Box::new(Lines::new(Sink::file(path)?))),
        None if args.json.is_none() && !args.summary && !is_document => {
            listeners.push(Box::new(Lines::new(Sink::standard_error())));
        }
        None => {}
    }

    let folder = PrivateFolder::new("emulate")?;
    let (pages, records) = (folder.with("pages")?, folder.with("records")?);
    let program = Emulated {
        device: args.device.as_ref(),
        command: &args.command,
        variables: &[("DIVVY_TRACE", records.clone().into())],
        aside: is_document,
    };
    let following = Following::new(&records, Teller::new(choice), listeners)?;
    let status = program.run_beside(&pages, context, || following.start())?;
    let mut summary = following.end()?;
    summary.exit_status = status;
    if summary.incomplete {
        remark("some of it is missing: the disk of the temporary folder was full (TMPDIR names another)");
    }
    if !output::document(context.format, "TraceSummary", &summary)? {
        if args.summary {
            output::print(&summary.in_words())?;
        } else if summary.is_empty() {
            remark("nothing was traced: the program made no CUDA call");
        }
    }
    Ok(status)
}
