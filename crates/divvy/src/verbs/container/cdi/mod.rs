//! `divvy container cdi`: devices and slices for container engines.

mod directories;
mod generate;
mod look;
mod slice;

use clap::Subcommand;
use divvy_model::Fault;

use crate::context::Context;

pub use generate::refresh;
pub use slice::{Made, Wanted, described, for_one, make};

/// Flags of `divvy container cdi`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy container cdi generate
  divvy container cdi generate --vendor amd --directory /etc/cdi --dry-run
  podman run --device \"$(divvy container cdi slice --memory 4GiB --compute 30%)\" image python train.py
  divvy container cdi list
  divvy container cdi validate")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Write files that let container engines give out this machine's devices
    Generate(generate::Args),
    /// Make a slice for containers, and print the name that an engine's --device takes
    Slice(slice::Args),
    /// Say what is wrong with the CDI files of this machine
    Validate(look::Args),
    /// List the CDI devices of this machine
    List(look::Args),
}

/// Does it.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    match &args.verb {
        Verb::Generate(args) => generate::run(args, context),
        Verb::Slice(args) => slice::run(args, context),
        Verb::Validate(args) => look::validate(args, context),
        Verb::List(args) => look::list(args, context),
    }
}
