//! The documentation of the crates, with warnings as errors: a link that leads nowhere is one.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;

use crate::cargo::{cargo, finish};

/// Packages of programs for tests, benches and tasks, which no other crate uses: a third of rustdoc's time.
const LEFT_OUT: [&str; 5] = [
    "divvy-bench",
    "divvy-own-process",
    "divvy-tests",
    "rust-client",
    "xtask",
];

/// How cargo-clippy hands clippy's arguments on: each with this behind it. They are those of the step `lints`.
const LINTS: &str = "--deny__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__";

/// Builds it, with these flags of cargo.
///
/// rustdoc wants every crate checked before it. The step `lints` has checked them, by clippy; where cargo is told of the
/// same program with the same arguments, it takes those and checks none again.
pub fn build(flags: &[String]) -> anyhow::Result<()> {
    let mut command = cargo();
    command
        .args([
            "doc",
            "--quiet",
            "--workspace",
            "--no-deps",
            "--document-private-items",
        ])
        .args(LEFT_OUT.iter().flat_map(|package| ["--exclude", package]))
        .args(flags)
        .env("RUSTDOCFLAGS", "--deny warnings");
    if let Some(clippy) = clippy()? {
        command
            .env("RUSTC_WORKSPACE_WRAPPER", clippy)
            .env("CLIPPY_ARGS", LINTS);
    }
    finish(&mut command)
}

/// What cargo-clippy has in the compiler's place; none where it is not beside the compiler.
fn clippy() -> anyhow::Result<Option<PathBuf>> {
    let output = Command::new("rustc")
        .args(["--print", "sysroot"])
        .output()
        .context("Cannot start rustc")?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    Ok(Some(sysroot.join("bin/clippy-driver")).filter(|driver| driver.exists()))
}
