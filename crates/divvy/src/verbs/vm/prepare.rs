//! `divvy vm prepare`: what the start of this machine has to be told.

use std::path::{Path, PathBuf};
use std::time::Duration;

use divvy_host::tool::{HostTools, Tools};
use divvy_model::Fault;
use divvy_vm::output::qemu::line;
use divvy_vm::prepare::apply::{apply, undo};
use divvy_vm::prepare::plan::Plan;

use super::root;
use crate::context::Context;
use crate::output;
use crate::verbs::agent::units;

/// Flags of `divvy vm prepare`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy vm prepare
  divvy vm prepare --apply
  divvy vm prepare --undo")]
pub struct Args {
    /// Write the files, with backups, and run the commands
    #[arg(long)]
    apply: bool,
    /// Put everything back as it was before --apply
    #[arg(long, conflicts_with = "apply")]
    undo: bool,
    /// Keep the drivers of this machine's GPUs from being loaded at all
    #[arg(long)]
    blacklist: bool,
    /// On the machine copied below this folder: its files are written, and no command is run
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
}

/// Plans, writes, or puts back.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let (tree, base) = root(args.sysroot.as_deref())?;
    let own = args.sysroot.is_none();
    if args.undo {
        let commands = undo(&base)?;
        let words = commands
            .into_iter()
            .map(|command| command.words)
            .collect::<Vec<_>>();
        output::print("the files are as they were\n")?;
        return follow(&words, own);
    }
    // Root starts it whenever the machine starts.
    let program = units::program(own && args.apply)?;
    let plan = Plan::make(&tree, args.blacklist)?.with_restore(&tree, Path::new(&program))?;
    if !args.apply {
        if !output::document(context.format, "VmPlan", &plan)? {
            output::print(&plan.text())?;
        }
        return Ok(0);
    }
    output::print(&plan.text())?;
    if plan.is_empty() {
        return Ok(0);
    }
    apply(Path::new(&base), &plan)?;
    let words: Vec<Vec<String>> = plan.commands.into_iter().map(|command| command.words).collect();
    follow(&words, own)
}

/// Runs the commands behind files that were written.
fn follow(commands: &[Vec<String>], own: bool) -> Result<u8, Fault> {
    let mut tools = HostTools {
        // An initramfs for each kernel takes its time.
        limit: Duration::from_secs(900),
        user: None,
    };
    for words in commands {
        let shown = line(words).replace(" \\\n  ", " ");
        if !own {
            output::print(&format!("not run: {shown}"))?;
            continue;
        }
        output::print(&format!("+ {shown}"))?;
        if let Some((program, rest)) = words.split_first() {
            let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
            tools.run(program, &rest, &[], "").map_err(|fault| {
                fault.hint("the files are written: run the rest by hand, or `divvy vm prepare --undo`")
            })?;
        }
    }
    Ok(0)
}
