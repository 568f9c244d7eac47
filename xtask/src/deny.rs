//! `cargo xtask deny`: licences, advisories and sources of all dependencies against deny.toml. Optional: it needs
//! cargo-deny, whose installation takes minutes.

use anyhow::bail;

use crate::cargo::{cargo, finish};

/// Arguments of `cargo xtask deny`.
#[derive(clap::Args)]
pub struct Args {}

/// Runs cargo-deny, or says how to get it.
pub fn run(_: &Args) -> anyhow::Result<()> {
    if !cargo().args(["deny", "--version"]).output()?.status.success() {
        bail!("cargo-deny is not installed: run `cargo install --locked cargo-deny`, then this again");
    }
    finish(cargo().args(["deny", "check"]))
}
