//! `divvy gpu partition`: AMD's accelerators as a whole, or in parts.

use std::path::PathBuf;

use clap::Subcommand;
use divvy_host::amd::{Partitioning, plan, write};
use divvy_host::machine::Sysroot;
use divvy_model::{Code, Fault};
use serde::Serialize;

use crate::context::Context;
use crate::output;
use crate::table::Table;

/// Flags of `divvy gpu partition`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy gpu partition list
  divvy gpu partition set CPX/NPS4 --dry-run
  divvy gpu partition set SPX --yes")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show how each accelerator is divided
    List(List),
    /// Divide every accelerator of the machine so; all must be idle
    Set(Set),
}

/// Flags of `divvy gpu partition list`.
#[derive(Debug, clap::Args)]
struct List {
    /// Look at the machine captured below this folder
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
}

/// Flags of `divvy gpu partition set`.
#[derive(Debug, clap::Args)]
struct Set {
    /// CPX/NPS4, or CPX alone with the memory mode that usually goes with it
    #[arg(value_name = "MODE", value_parser = mode)]
    mode: Partitioning,
    /// Print what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Change it without asking: devices get other names and sizes
    #[arg(long, short)]
    yes: bool,
    /// Change the tree below this folder in the place of this machine's
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
}

fn mode(text: &str) -> Result<Partitioning, Fault> {
    text.parse()
}

/// Lists or sets.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    match &args.verb {
        Verb::List(args) => list(args, context),
        Verb::Set(args) => set(args, context),
    }
}

impl Args {
    /// Whether this changes this machine's devices.
    pub fn changes(&self) -> bool {
        matches!(&self.verb, Verb::Set(args) if !args.dry_run && args.sysroot.is_none())
    }
}

#[derive(Serialize)]
struct Item {
    index: u32,
    uuid: String,
    compute: String,
    memory: String,
    partition: u32,
    partitions: u32,
}

fn list(args: &List, context: &Context) -> Result<u8, Fault> {
    let survey = context.survey(args.sysroot.as_deref())?;
    let items = survey.devices.into_iter().filter_map(|device| {
        let state = device.hardware?.partition?;
        Some(Item {
            index: device.index,
            uuid: device.uuid,
            compute: state.compute,
            memory: state.memory,
            partition: state.index,
            partitions: state.count,
        })
    });
    output::list(
        context.format,
        "PartitionList",
        items.collect(),
        |item| &item.uuid,
        |items, _wide| {
            let mut table = Table::new(vec![
                ("INDEX", true),
                ("UUID", false),
                ("COMPUTE", false),
                ("MEMORY", false),
                ("PARTITION", false),
            ]);
            for item in items {
                table.row(vec![
                    item.index.to_string(),
                    item.uuid.clone(),
                    item.compute.clone(),
                    item.memory.clone(),
                    format!("{} of {}", item.partition, item.partitions),
                ]);
            }
            table
        },
    )?;
    Ok(0)
}

fn set(args: &Set, context: &Context) -> Result<u8, Fault> {
    let survey = context.survey(args.sysroot.as_deref())?;
    let root = args.sysroot.as_ref().map_or_else(Sysroot::default, Sysroot::at);
    let writes = plan(&root, &survey.devices, &args.mode)?;
    if !writes.is_empty() && !args.yes && !args.dry_run {
        return Err(
            Fault::new(Code::Usage, "this changes every accelerator of the machine")
                .hint("look at it with --dry-run, and add --yes to do it"),
        );
    }
    if !args.dry_run {
        write(&root, &writes)?;
    }
    let word = if args.dry_run { "would write" } else { "wrote" };
    let mut text: String = writes
        .iter()
        .map(|write| {
            format!(
                "{word} {} in the place of {} to /{}\n",
                write.after, write.before, write.file
            )
        })
        .collect();
    if writes.is_empty() {
        text.push_str("nothing to change\n");
    }
    output::print(&text)?;
    Ok(0)
}
