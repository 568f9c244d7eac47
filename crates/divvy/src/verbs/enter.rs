//! `divvy enter`: the last step of `divvy run`, in the child: become the program.

use std::ffi::OsString;

use divvy_agent::launch;
use divvy_model::Fault;

/// Flags of `divvy enter`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The program and its arguments
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

/// Becomes it.
pub fn run(args: &Args) -> Result<u8, Fault> {
    Err(launch::enter(&args.command))
}
