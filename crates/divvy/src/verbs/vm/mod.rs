//! `divvy vm`: whole GPUs for virtual machines.

mod bind;
mod doctor;
mod status;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use divvy_host::machine::Sysroot;
use divvy_model::{Code, Fault};

use crate::context::Context;

/// Flags of `divvy vm`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy vm doctor
  divvy vm bind 0000:65:00.0 --dry-run
  divvy vm bind 0000:65:00.0
  divvy vm status
  divvy vm unbind 0000:65:00.0")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Say what keeps a GPU of this machine from a virtual one, and what fixes it; changes nothing
    Doctor(doctor::Args),
    /// Give a GPU and its whole IOMMU group to VFIO
    Bind(bind::Args),
    /// Give a group back to its first drivers
    Unbind(bind::Unbind),
    /// Show the groups with GPUs, and who has them
    Status(status::Args),
    /// Put right what a crash left half done, and bind again what was bound before a restart of the machine
    Restore,
}

/// Does it.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    match &args.verb {
        Verb::Doctor(args) => doctor::run(args, context),
        Verb::Bind(args) => bind::bind(args, context),
        Verb::Unbind(args) => bind::unbind(args, context),
        Verb::Status(args) => status::run(args, context),
        Verb::Restore => bind::restore(context),
    }
}

/// An address as people write it.
fn address(text: &str) -> Result<String, Fault> {
    divvy_vm::function::address(text)
}

/// The machine to look at: the one captured below a folder, or this one.
fn root(sysroot: Option<&Path>) -> Result<(Sysroot, PathBuf), Fault> {
    match sysroot {
        None => Ok((Sysroot::at("/"), "/".into())),
        Some(path) if path.is_dir() => Ok((Sysroot::at(path), path.into())),
        Some(path) => Err(
            Fault::new(Code::Usage, format!("there is no folder `{}`", path.display()))
                .hint("name one that holds `sys` and `proc`"),
        ),
    }
}
