//! `cargo xtask bench <name> [arguments]`: builds and runs the program `bench/src/bin/<name>.rs`.
//!
//! Any program of the divvy-bench package is a bench; dropping a file there is all it takes to add one.

use anyhow::bail;

use crate::cargo::{cargo, finish, workspace_root};

/// Arguments of `cargo xtask bench`.
#[derive(clap::Args)]
pub struct Args {
    /// Which bench to run; without it, the benches there are
    name: Option<String>,
    /// Cargo profile to build with
    #[arg(long, default_value = "release-fast")]
    profile: String,
    /// Arguments for the bench itself
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Builds and runs the named bench, or lists the benches when none is named.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let known = names()?;
    let Some(name) = &args.name else {
        println!("{}", known.join("\n"));
        return Ok(());
    };
    if !known.contains(name) {
        bail!("No bench is called {name}; there are: {}", known.join(", "));
    }
    let mut command = cargo();
    command
        .args([
            "run",
            "--quiet",
            "--package",
            "divvy-bench",
            "--profile",
            &args.profile,
            "--bin",
            name,
            "--",
        ])
        .args(&args.arguments);
    finish(&mut command)
}

/// Names of the programs under bench/src/bin, sorted.
fn names() -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    let folder = workspace_root().join("bench/src/bin");
    // No folder yet is no bench yet.
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Ok(names);
    };
    for entry in entries {
        let path = entry?.path();
        if let (Some(stem), true) = (
            path.file_stem(),
            path.extension().is_some_and(|e| e == "rs") || path.is_dir(),
        ) {
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}
