//! `cargo xtask oracle`: the crate container-device-interface as a judge of our CDI files and of what `divvy container oci-runtime` makes of
//! them. It has some two hundred crates below it, so nothing else depends on it and CI does not build it.

use crate::cargo::{cargo, finish, workspace_root};
use crate::deny;

/// Arguments of `cargo xtask oracle`.
#[derive(clap::Args)]
pub struct Args {}

/// Builds the package `oracle` in a folder of its own, and has it compare.
pub fn run(_: &Args) -> anyhow::Result<()> {
    let root = workspace_root();
    // Its crates may have licences that ours may not, but come from the same place.
    deny::check("oracle/Cargo.toml", &["sources"])?;
    finish(
        cargo()
            .args([
                "run",
                "--quiet",
                "--locked",
                "--manifest-path",
                "oracle/Cargo.toml",
                "--target-dir",
            ])
            .arg(root.join("target/oracle"))
            .arg("--")
            .arg(root.join("tests/golden")),
    )
}
