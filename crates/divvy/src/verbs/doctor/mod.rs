//! `divvy doctor`: can this machine run programs in slices? It looks, and changes nothing; with `--trial` it also runs a
//! program in a slice, which ends with that program.

mod checks;
mod machine;
mod trial;

use divvy_model::{Code, Fault};
use serde::Serialize;

use crate::context::Context;
use crate::output;
use crate::table::Table;

/// Flags of `divvy doctor`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy doctor
  divvy doctor --trial
  divvy doctor -o json
  divvy doctor --sysroot ./captured")]
pub struct Args {
    /// Also try a program in a slice, which starts an agent where none runs. Without this nothing is changed
    #[arg(long)]
    trial: bool,
    /// Look at the devices of the machine captured below this folder (its `sys` and `proc`) in the place of this one
    #[arg(long, value_name = "DIR", conflicts_with = "trial")]
    sysroot: Option<std::path::PathBuf>,
    /// Be the program that is tried: open libcuda.so.1 as any program would, and tell what it says
    #[arg(long, hide = true)]
    be_tried: bool,
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Works, with something to know.
    Warn,
    /// Programs will not run.
    Fail,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What it is about.
    pub category: &'static str,
    /// What was looked at.
    pub check: &'static str,
    /// How it came out.
    pub status: Status,
    /// What was found.
    pub detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Check {
    fn ok(category: &'static str, check: &'static str, detail: impl Into<String>) -> Self {
        Self {
            category,
            check,
            status: Status::Ok,
            detail: detail.into(),
            hint: None,
        }
    }

    fn warn(self, hint: impl Into<String>) -> Self {
        Self {
            status: Status::Warn,
            hint: Some(hint.into()),
            ..self
        }
    }

    fn fail(category: &'static str, check: &'static str, fault: &Fault) -> Self {
        let mut detail = format!("[{}] {}", fault.code, fault.message);
        for cause in &fault.causes {
            detail.push_str(": ");
            detail.push_str(cause);
        }
        Self {
            category,
            check,
            status: Status::Fail,
            detail,
            hint: fault.hint.clone(),
        }
    }
}

/// Checks everything.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    if args.be_tried {
        return trial::be_the_program();
    }
    let checks = match &args.sysroot {
        Some(root) => machine::captured(context, root)?,
        None => checks::all(context, args.trial),
    };
    let failed = checks.iter().any(|check| check.status == Status::Fail);
    let hints: Vec<String> = checks
        .iter()
        .filter_map(|check| {
            check
                .hint
                .as_ref()
                .map(|hint| format!("hint: {}: {hint}\n", check.check))
        })
        .collect();
    let mut text = output::list_text(context.format, "DoctorReport", checks, |check| check.check, table)?;
    if matches!(context.format, output::Format::Table | output::Format::Wide) && !hints.is_empty() {
        text = format!("{text}\n{}", hints.concat());
    }
    output::print(&text)?;
    Ok(if failed {
        Code::DoctorFailed.exit_status()
    } else {
        0
    })
}

fn table(checks: &[Check], _wide: bool) -> Table {
    let mut table = Table::new(vec![
        ("CATEGORY", false),
        ("CHECK", false),
        ("STATUS", false),
        ("FOUND", false),
    ])
    .without(&["CATEGORY"]);
    for check in checks {
        let status = match check.status {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Fail => "FAIL",
        };
        table.row(vec![
            check.category.into(),
            check.check.into(),
            status.into(),
            check.detail.clone(),
        ]);
    }
    table
}
