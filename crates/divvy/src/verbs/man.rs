//! `divvy man`: the manual pages, from the grammar itself; for packagers.

use std::path::PathBuf;

use divvy_model::{Code, Fault};

/// Flags of `divvy man`.
#[derive(Debug, clap::Args)]
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
    std::fs::create_dir_all(&args.folder).map_err(cannot)?;
    clap_mangen::generate_to(grammar, &args.folder).map_err(cannot)?;
    Ok(0)
}
