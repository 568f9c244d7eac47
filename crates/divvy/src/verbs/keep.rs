//! `divvy keep`: what the agent starts to keep a lasting slice.

use divvy_agent::{RunDir, close_inherited};
use divvy_model::Fault;

use crate::context::Context;

/// Flags of `divvy keep`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The slice, by its id
    id: String,
}

/// Keeps it.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    close_inherited();
    let run = RunDir::peek(context.peek().path());
    divvy_agent::keep(&run, &args.id)?;
    Ok(0)
}
