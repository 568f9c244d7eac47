//! `divvy gpu vgpu`: virtual GPUs for virtual machines.

use std::path::PathBuf;

use clap::Subcommand;
use divvy_host::machine::Sysroot;
use divvy_host::vgpu::{Vgpu, VgpuType, create, free, list, types};
use divvy_model::Fault;
use serde::Serialize;

use crate::context::Context;
use crate::output;
use crate::report::remark;

/// Flags of `divvy gpu vgpu`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy gpu vgpu list
  divvy gpu vgpu create --function 0000:3b:00.0 --type nvidia-558 --uuid c73f1fa6-489e-4834-9476-d70dabd98c40
  divvy gpu vgpu free c73f1fa6-489e-4834-9476-d70dabd98c40")]
pub struct Args {
    /// Work on the tree below this folder in the place of this machine's
    #[arg(long, value_name = "DIR", global = true)]
    sysroot: Option<PathBuf>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show the types that functions offer, and the virtual GPUs there are
    List,
    /// Make one
    Create {
        /// PCI address of the GPU, or of a virtual function of it
        #[arg(long, value_name = "ADDRESS")]
        function: String,
        /// Its type, by id or name
        #[arg(long = "type", value_name = "TYPE")]
        kind: String,
        /// UUID of a mediated one
        #[arg(long, value_name = "UUID", default_value = "")]
        uuid: String,
        /// Look whether it could be made, and make nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Free one that no virtual machine holds
    Free {
        /// UUID of a mediated one, PCI address of a virtual function
        #[arg(value_name = "ID")]
        id: String,
        /// Only if it is still of this type
        #[arg(long = "type", value_name = "TYPE")]
        kind: Option<String>,
    },
}

#[derive(Serialize)]
struct Body {
    types: Vec<VgpuType>,
    items: Vec<Vgpu>,
}

/// Lists, makes or frees.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let root = args.sysroot.as_ref().map_or_else(Sysroot::default, Sysroot::at);
    match &args.verb {
        Verb::List => {
            let body = Body {
                types: types(&root),
                items: list(&root),
            };
            if output::document(context.format, "VgpuList", &body)? {
                return Ok(0);
            }
            let mut text = String::new();
            for kind in &body.types {
                text.push_str(&format!(
                    "{} offers {} ({}), {} left\n",
                    kind.function, kind.id, kind.name, kind.available
                ));
            }
            for vgpu in &body.items {
                let holder = vgpu
                    .holder
                    .map_or_else(|| "free".into(), |pid| format!("held by process {pid}"));
                text.push_str(&format!("{} is a {}, {holder}\n", vgpu.id, vgpu.kind));
            }
            if text.is_empty() {
                remark("no device here offers virtual GPUs, and there is none");
            }
            output::print(&text)?;
        }
        Verb::Create {
            function,
            kind,
            uuid,
            dry_run,
        } => {
            let mediated = types(&root).iter().any(|offered| {
                offered.function == *function && offered.way == divvy_host::vgpu::VgpuWay::Mediated
            });
            if mediated && uuid.is_empty() {
                return Err(
                    Fault::new(divvy_model::Code::Usage, "a mediated virtual GPU wants a --uuid")
                        .hint("`uuidgen` makes one"),
                );
            }
            create(&root, function, kind, uuid, *dry_run)?;
            output::print(&format!(
                "{} {kind} on {function}\n",
                if *dry_run { "would make" } else { "made" }
            ))?;
        }
        Verb::Free { id, kind } => {
            free(&root, id, kind.as_deref())?;
            output::print(&format!("freed {id}\n"))?;
        }
    }
    Ok(0)
}
