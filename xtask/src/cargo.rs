//! Calling cargo again from inside a task, at the root of the workspace.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// The workspace's root: the folder above this package.
pub fn workspace_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies one folder below the root")
}

/// A command for the cargo that runs us, standing in the workspace's root.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace_root());
    command
}

/// Runs `command` to its end with our own input and output; anything but success is an error that names it.
pub fn finish(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("Cannot start {name}"))?;
    if !status.success() {
        bail!("{name} ended with {status}");
    }
    Ok(())
}
