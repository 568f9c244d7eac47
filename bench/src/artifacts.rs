//! The libraries that a bench loads, built in the bench's own profile.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// The command and all that it puts in front of programs.
pub const PRODUCT: [&str; 6] = [
    "divvy",
    "limit-cuda",
    "limit-nvml",
    "limit-opencl",
    "emulated-cuda",
    "emulated-nvml",
];

/// Builds `packages` in the profile that the running bench was built in; answers the folder where the results lie.
///
/// # Errors
/// The build failed, with cargo's reason on stderr, or this program does not lie in a target folder.
pub fn build(packages: &[&str]) -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("Cannot find this program's file")?;
    let folder = program.parent().context("A program lies in a folder")?;
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        None | Some("debug") => "dev",
        Some(name) => name,
    };
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("bench lies one folder below the root")?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(workspace)
        .args(["build", "--quiet", "--profile", profile]);
    for package in packages {
        cargo.args(["--package", package]);
    }
    let status = cargo.status().context("Cannot start cargo")?;
    if !status.success() {
        bail!("{} did not build: {status}", packages.join(", "));
    }
    Ok(folder.to_owned())
}
