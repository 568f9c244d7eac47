//! `divvy guest`: devices for the programs of a virtual machine.

mod kit;
mod log;
mod relay;
mod run;
mod socket;

use divvy_model::Fault;

use crate::context::Context;

/// Flags of `divvy guest`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy guest run web --memory 4GiB --compute 30% -- qemu-system-x86_64 -m 2G web.qcow2
  divvy guest run web --memory 4GiB          # prints what QEMU or libvirt has to be told, and waits for the machine
  divvy guest kit /srv/kits                  # what the machine needs, as a tarball and a package")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

/// The verbs.
#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Give a machine a slice, for as long as it runs
    Run(run::Args),
    /// Serve a machine from inside a slice: what `run` starts there
    Relay(relay::Args),
    /// Write what a machine needs into a folder: a tarball, and a package for Debian and its kin
    Kit(kit::Args),
}

impl Args {
    /// Whether the exit status is that of the machine's program.
    pub fn is_run(&self) -> bool {
        !matches!(self.verb, Verb::Kit(_))
    }
}

/// The program of ours that runs in machines.
///
/// # Errors
/// [`divvy_model::Code::DropIn`] where this installation lacks it.
pub fn broker() -> Result<std::path::PathBuf, Fault> {
    kit::place("divvy-guest")
}

/// Does it; the exit status.
///
/// # Errors
/// Whatever stopped it.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    match &args.verb {
        Verb::Run(args) => run::run(args, context),
        Verb::Relay(args) => relay::run(args),
        Verb::Kit(args) => kit::run(args),
    }
}
