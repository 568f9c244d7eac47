//! `divvy man`: the manual pages, from the grammar itself; for packagers.

use std::path::PathBuf;

use divvy_model::{Code, Fault};

use crate::report::remark;

/// Flags of `divvy man`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy man ~/.local/share/man/man1")]
pub struct Args {
    /// The folder to write to
    folder: PathBuf,
}

/// Writes them.
pub fn run(args: &Args, grammar: clap::Command) -> Result<u8, Fault> {
    let cannot = |error: std::io::Error| {
        Fault::new(
            Code::Internal,
            format!("cannot write to `{}`", args.folder.display()),
        )
        .because(&error)
    };
    // With `divvy man run` a user wants to read a page, and not a folder `run`.
    if let Some(verb) = args
        .folder
        .to_str()
        .filter(|word| grammar.find_subcommand(word).is_some())
    {
        return Err(Fault::new(Code::Usage, format!("`{verb}` is a verb, and `divvy man` wants a folder"))
            .hint(format!("`divvy help {verb}` shows its page; `divvy man ./{verb}` writes all pages to a folder of that name")));
    }
    std::fs::create_dir_all(&args.folder).map_err(cannot)?;
    clap_mangen::generate_to(grammar, &args.folder).map_err(cannot)?;
    let folder = args.folder.display();
    remark(&format!(
        "wrote the manual pages to {folder}; `man {folder}/divvy-run.1` shows one"
    ));
    Ok(0)
}
