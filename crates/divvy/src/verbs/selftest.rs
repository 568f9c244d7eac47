//! `divvy selftest`: the short form of the kit for machines with a GPU.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use divvy_kit::{Folder, Inner, Options, Report, Signals, Verdict, clear_old, private_folder, try_device};
use divvy_model::{Code, Fault};

use crate::output;

/// All of it ends within this time.
const BUDGET: Duration = Duration::from_secs(120);
/// The begin of the name of each folder of results.
const NAME: &str = "divvy-selftest";
/// Some promise does not hold.
const FAILS: u8 = 1;

/// Flags of `divvy selftest`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  divvy selftest
  divvy selftest --report report.md          # to attach to an issue: it names no host, user, path or serial number
  divvy selftest --device emulated:h100      # where there is no GPU")]
pub struct Args {
    /// Write all that was found into this file, as a page in Markdown; with the ending .json, as a document
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Ask this device: an index, or emulated:h100 [default: the first GPU]
    #[arg(long)]
    device: Option<String>,
    #[command(subcommand)]
    inner: Option<Inner>,
}

/// Runs the parts and prints a line for each promise.
pub fn run(args: &Args) -> Result<u8, Fault> {
    divvy_kit::called_by(&["selftest"]);
    if let Some(inner) = &args.inner {
        return Ok(divvy_kit::main_inner(inner));
    }
    // Before the work, which takes a while.
    let mut opened = args.report.as_deref().map(create).transpose()?;
    let signals = Signals::take()
        .map_err(|error| Fault::new(Code::RunDir, "signals cannot be waited for").because(&error))?;
    let tried = try_device(args.device.as_deref(), &signals);
    if let Some(status) = signals.status() {
        return Ok(status);
    }
    tried.map_err(|why| {
        Fault::new(Code::NoDevice, "there is no device to test")
            .cause(why)
            .hint("`divvy doctor` looks for the reason; `--device emulated:h100` tests the emulated device")
    })?;
    clear_old(NAME);
    let folder = private_folder(NAME).map_err(|error| {
        Fault::new(Code::RunDir, "no temporary folder can be had")
            .because(&error)
            .hint("TMPDIR names another folder")
    })?;
    let cannot = |error: &dyn std::error::Error| {
        Fault::new(
            Code::RunDir,
            format!("cannot keep results in `{}`", folder.display()),
        )
        .because(error)
        .hint("TMPDIR names another folder")
    };
    let results = Folder::open(&folder).map_err(|error| {
        let _left = fs::remove_dir_all(&folder);
        cannot(&error)
    })?;
    let options = Options {
        budget: Some(BUDGET),
        device: args.device.clone(),
        is_short: true,
        ..Options::default()
    };
    let outcome = divvy_kit::run(&results, &options, &signals, |_| {}).map_err(|error| cannot(&error));
    let report = Report::of(&results, options.device.as_deref());
    let _left = fs::remove_dir_all(&folder);
    outcome?;
    for part in report.parts.iter().filter(|part| part.was_tried()) {
        for finding in part
            .findings
            .iter()
            .filter(|finding| finding.verdict != Verdict::Fact)
        {
            output::print(&format!(
                "{:8} {}: {}",
                finding.verdict.word(),
                finding.check,
                finding.says
            ))?;
        }
        if let Some(why) = part.cut_short() {
            output::print(&format!("{:8} {}: {why}", Verdict::Fails.word(), part.name))?;
        }
    }
    if let (Some(file), Some(opened)) = (&args.report, &mut opened) {
        let text = match file.extension().is_some_and(|ending| ending == "json") {
            true => serde_json::to_string_pretty(&report).unwrap_or_default(),
            false => report.page(),
        };
        // A pipe has no length.
        let _no_file = opened.set_len(0);
        opened
            .write_all(text.as_bytes())
            .map_err(|error| unwritable(file, &error))?;
        output::print(&format!("the report: {}", file.display()))?;
    }
    if let Some(status) = signals.status() {
        return Ok(status);
    }
    Ok(if report.holds() { 0 } else { FAILS })
}

/// What the file has stays until there is a report to put in its place.
fn create(file: &Path) -> Result<File, Fault> {
    let mut options = OpenOptions::new();
    let opened = options.write(true).create(true).truncate(false).open(file);
    opened.map_err(|error| unwritable(file, &error))
}

fn unwritable(file: &Path, error: &std::io::Error) -> Fault {
    Fault::new(Code::Usage, format!("cannot write `{}`", file.display()))
        .because(error)
        .hint("--report names a file in a folder that you may write in")
}
