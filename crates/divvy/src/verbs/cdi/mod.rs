//! `divvy cdi`: devices and slices for container engines.

mod generate;
mod look;
mod slice;

use std::path::PathBuf;

use clap::Subcommand;
use divvy_container::cdi;
use divvy_model::{Code, Fault};

use crate::context::Context;

pub use generate::refresh;
pub use slice::{Made, Wish, for_one, make};

/// Flags of `divvy cdi`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy cdi generate
  divvy cdi generate --vendor amd --directory /etc/cdi --dry-run
  podman run --device \"$(divvy cdi slice --memory 4GiB --compute 30%)\" image python train.py
  divvy cdi list
  divvy cdi validate")]
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

fn capabilities(text: &str) -> Result<cdi::Capabilities, Fault> {
    text.parse()
}

/// The directories that engines read, or those named instead.
fn directories(named: &[PathBuf]) -> Vec<PathBuf> {
    match named {
        [] => cdi::STANDARD.iter().map(PathBuf::from).collect(),
        named => named.to_vec(),
    }
}

fn read_all(directories: &[PathBuf]) -> Result<Vec<cdi::Found>, Fault> {
    cdi::read_all(directories).map_err(|(directory, error)| {
        Fault::new(
            Code::CdiDirectory,
            format!("cannot read the CDI directory `{}`", directory.display()),
        )
        .because(&error)
    })
}

/// Refuses to write what another file in the same directory claims: then an engine would give out neither.
fn check_free(directory: &std::path::Path, file: &str, spec: &cdi::Spec) -> Result<(), Fault> {
    for found in read_all(&[directory.to_owned()])? {
        let Ok(other) = &found.spec else { continue };
        if found.path.file_name().is_some_and(|name| name == file) || other.kind != spec.kind {
            continue;
        }
        let taken = |device: &&cdi::Device| other.devices.iter().any(|theirs| theirs.name == device.name);
        if let Some(device) = spec.devices.iter().find(taken) {
            return Err(Fault::new(
                Code::CdiName,
                format!("{}={} is taken", spec.kind, device.name),
            )
            .cause(format!("`{}` claims it", found.path.display()))
            .hint(
                "an engine gives a name that two files claim to nobody: remove that file, or choose another name with \
                 --kind for devices or --name for a slice",
            ));
        }
    }
    Ok(())
}
