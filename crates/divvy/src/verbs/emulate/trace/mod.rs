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
mod story;
mod summary;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault, Selector};

use self::choice::Choice;
use self::chrome::Chrome;
use self::follow::Following;
use self::lines::Lines;
use self::story::Teller;
use self::summary::{Counting, Summary};
use super::Emulated;
use crate::context::Context;
use crate::flags::parse;
use crate::folder::{PrivateFolder, cannot_write, output_file};
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

/// Something that is told what the program does.
trait Listener: Send {
    /// Something happened.
    fn hear(&mut self, told: &story::Told);

    /// All that was told so far is to be on the disk.
    fn flush(&mut self) {}

    /// The program has ended.
    ///
    /// # Errors
    /// Why something could not be written.
    fn end(self: Box<Self>) -> Result<Option<Summary>, Fault>;
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
    // It knows how many processes there were, and whether there was anything.
    listeners.push(Box::new(Counting::default()));

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

/// Where a listener writes. The first failure is kept, and nothing is written after it: the program goes on.
struct Sink {
    out: Box<dyn Write + Send>,
    path: PathBuf,
    failed: Option<Fault>,
}

impl Sink {
    fn file(path: &Path) -> Result<Self, Fault> {
        Ok(Self {
            out: Box::new(std::io::BufWriter::new(output_file(path)?)),
            path: path.to_owned(),
            failed: None,
        })
    }

    fn standard_error() -> Self {
        Self {
            // A line is one write, so that it does not mix with what the program writes.
            out: Box::new(std::io::LineWriter::new(std::io::stderr())),
            path: PathBuf::from("standard error"),
            failed: None,
        }
    }

    fn write(&mut self, text: &str) {
        if self.failed.is_none()
            && let Err(error) = self.out.write_all(text.as_bytes())
        {
            self.fail(&error);
        }
    }

    fn flush(&mut self) {
        if self.failed.is_none()
            && let Err(error) = self.out.flush()
        {
            self.fail(&error);
        }
    }

    fn fail(&mut self, error: &std::io::Error) {
        self.failed = Some(cannot_write(&self.path, error));
        // What is in the buffer would be tried again when it is dropped.
        self.out = Box::new(std::io::sink());
    }

    fn end(mut self) -> Result<(), Fault> {
        self.flush();
        match self.failed {
            Some(fault) if fault.code == Code::OutputFile => Err(fault),
            _ => Ok(()),
        }
    }
}
