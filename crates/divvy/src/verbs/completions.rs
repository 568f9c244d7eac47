//! `divvy completions`: a shell's script, which asks this command what may stand where.

use clap_complete::Shell;
use divvy_model::Fault;

use crate::{complete, output};

/// Flags of `divvy completions`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy completions bash > ~/.local/share/bash-completion/completions/divvy
  divvy completions zsh > ~/.zfunc/_divvy
  divvy completions fish > ~/.config/fish/completions/divvy.fish")]
pub struct Args {
    /// The shell
    shell: Shell,
}

/// Prints it.
pub fn run(args: &Args, mut grammar: clap::Command) -> Result<u8, Fault> {
    let live = match args.shell {
        Shell::Bash | Shell::Zsh | Shell::Fish => complete::script(&args.shell.to_string()),
        // Those of other shells know the grammar, and no names.
        _ => None,
    };
    let text = live.unwrap_or_else(|| {
        let mut text = Vec::new();
        clap_complete::generate(args.shell, &mut grammar, "divvy", &mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    output::print(text.trim_end())?;
    Ok(0)
}
