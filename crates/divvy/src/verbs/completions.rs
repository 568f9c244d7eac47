//! `divvy completions`: for a shell, from the grammar itself.

use clap_complete::Shell;
use divvy_model::Fault;

use crate::output;

/// Flags of `divvy completions`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy completions bash > ~/.local/share/bash-completion/completions/divvy
  divvy completions zsh > ~/.zfunc/_divvy")]
pub struct Args {
    /// The shell
    shell: Shell,
}

/// Prints them.
pub fn run(args: &Args, mut grammar: clap::Command) -> Result<u8, Fault> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut grammar, "divvy", &mut text);
    output::print(&String::from_utf8_lossy(&text))?;
    Ok(0)
}
