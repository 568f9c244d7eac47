//! The package for Debian and Ubuntu, by dpkg-deb.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::archive::{self, Entry};
use super::layout::Layout;
use crate::cargo::{finish, workspace_root};

/// Writes `out/divvy_VERSION_ARCHITECTURE.deb`. The same files give the same package.
///
/// # Errors
/// dpkg-deb is missing or refuses something.
pub fn pack(out: &Path, version: &str, layout: &Layout, compression: &str) -> anyhow::Result<PathBuf> {
    let architecture = architecture()?;
    let stage = tempfile::tempdir_in(out).context("Cannot make a folder to pack in")?;
    let top = stage.path().join("divvy");
    let files = archive::lay_out(&top.join("usr"), layout.installed())?;
    let source = workspace_root().join("deploy/packages/debian");
    // Where Debian's policy has it.
    archive::lay_out(
        &top.join("usr"),
        [&Entry::text(
            "share/doc/divvy/copyright".to_owned(),
            workspace_root().join("LICENSE"),
        )],
    )?;
    let mut bytes = 0;
    for file in &files {
        bytes += fs::metadata(file)?.len();
    }
    let control = fs::read_to_string(source.join("control"))?
        .replace("@VERSION@", version)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@KIBIBYTES@", &bytes.div_ceil(1024).to_string());
    let about = top.join("DEBIAN");
    fs::create_dir_all(&about)?;
    fs::write(about.join("control"), control)?;
    for script in ["postinst", "prerm", "postrm"] {
        fs::copy(source.join(script), about.join(script))?;
        fs::set_permissions(about.join(script), Permissions::from_mode(0o755))?;
    }
    archive::plain_folders(&top)?;
    let packed = out.join(format!("divvy_{version}_{architecture}.deb"));
    finish(
        Command::new("dpkg-deb")
            .env("SOURCE_DATE_EPOCH", "0")
            .args(["--root-owner-group", compression, "--build"])
            .arg(&top)
            .arg(&packed)
            .stdout(std::process::Stdio::null()),
    )?;
    Ok(packed)
}

/// Debian's name of this machine's architecture.
fn architecture() -> anyhow::Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("Debian's name of the architecture {other} is not known here"),
    }
}
