//! `divvy vm doctor`: what keeps a GPU of this machine from a virtual one.

use std::path::PathBuf;

use divvy_host::ladder;
use divvy_model::{Code, Fault, Isolation};
use divvy_vm::distribution::Family;
use divvy_vm::doctor::{Examined, Reach, Verdict, examine};
use serde::Serialize;

use super::{address, root};
use crate::context::Context;
use crate::output;

/// Flags of `divvy vm doctor`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy vm doctor
  divvy vm doctor 65:00.0
  divvy vm doctor --sysroot examples/hosts/passthrough")]
pub struct Args {
    /// This GPU alone, by its PCI address
    #[arg(value_name = "ADDRESS", value_parser = address)]
    gpu: Option<String>,
    /// Look at the machine captured below this folder (its `sys`, `proc` and `etc`) in the place of this one
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
}

/// What isolation a GPU can have.
#[derive(Debug, Serialize)]
struct Level {
    /// The GPU's PCI address.
    gpu: String,
    /// The strongest isolation level that is open, or that one command opens.
    level: Isolation,
    /// Why a virtual machine cannot have it; empty where it can.
    why_not_vm: Vec<String>,
}

#[derive(Serialize)]
struct Body {
    /// How the machine is configured to start.
    family: Family,
    /// The checks in order.
    items: Vec<Examined>,
    /// A line for each GPU.
    levels: Vec<Level>,
}

/// Examines.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let (tree, _) = root(args.sysroot.as_deref())?;
    let report = examine(&tree, args.gpu.as_deref(), rustix::process::geteuid().is_root());
    if let Some(gpu) = args.gpu.as_deref().filter(|_| report.reach.is_empty()) {
        return Err(
            Fault::new(Code::UnknownDevice, format!("{gpu} is no GPU of this machine"))
                .hint("`divvy vm status` lists them"),
        );
    }
    let devices = divvy_host::machine::read(&tree).devices;
    let level = |reach: Reach| {
        let mut here = devices.iter().filter(|device| device.pci_address == reach.gpu);
        let level = match reach.vm {
            true => Isolation::Vm,
            false => here
                .next()
                .map_or(Isolation::Env, |device| ladder::reach(device).level),
        };
        Level {
            gpu: reach.gpu,
            level,
            why_not_vm: reach.why_not,
        }
    };
    let failed = report.checks.iter().any(|check| check.verdict == Verdict::Fail);
    let body = Body {
        family: report.family,
        levels: report.reach.into_iter().map(level).collect(),
        items: report.checks,
    };
    if !output::document(context.format, "VmReport", &body)? {
        output::print(&text(&body))?;
    }
    Ok(if failed {
        Code::DoctorFailed.exit_status()
    } else {
        0
    })
}

fn text(body: &Body) -> String {
    let mut text = String::new();
    let mut shown: Option<&str> = None;
    for check in &body.items {
        if let Some(gpu) = check.gpu.as_deref()
            && shown != Some(gpu)
        {
            text.push_str(&format!("\n{gpu}\n"));
            shown = Some(gpu);
        }
        let word = match check.verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        text.push_str(&format!("  {word:<5} {:<13} {}\n", check.check, check.detail));
        if let Some(fix) = &check.fix {
            text.push_str(&format!("                      -> {fix}\n"));
        }
    }
    text.push('\n');
    for level in &body.levels {
        match level.why_not_vm.as_slice() {
            [] => text.push_str(&format!(
                "{} reaches `vm`: `divvy vm bind {}`\n",
                level.gpu, level.gpu
            )),
            why => text.push_str(&format!(
                "{} reaches `{}`, and not `vm`: {}\n",
                level.gpu,
                level.level,
                why.join("; ")
            )),
        }
    }
    text
}
