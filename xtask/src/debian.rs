//! Debian packages a task needs: installed when we are root, named with the one command when we are not.

use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::cargo::finish;

/// Installs `packages` with apt-get. `why` ends the sentence "Installing Debian packages … for".
///
/// Call it only once something was found missing: it always asks the package lists anew.
pub fn install(packages: &[&str], why: &str) -> anyhow::Result<()> {
    let list = packages.join(" ");
    if !we_are_root() {
        bail!(
            "Debian packages are missing for {why}: run `sudo apt-get install --yes {list}`, then this again"
        );
    }
    println!("setup: installing Debian packages for {why}: {list}");
    finish(apt_get().arg("update")).context("apt-get cannot read the package lists")?;
    finish(
        apt_get()
            .args(["install", "--yes", "--no-install-recommends"])
            .args(packages),
    )
    .with_context(|| format!("apt-get cannot install {list}"))
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command
        .args(["--quiet", "--quiet"])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

fn we_are_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|us| us.uid() == 0)
}
