//! The wheel for pip, pipx and uv: the same program and libraries, in the environment's `bin` and `lib/divvy`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::archive;
use super::layout::Layout;
use crate::cargo::{finish, workspace_root};
use crate::python;
use crate::zig::FLOOR;

/// Writes `out/divvy-VERSION-py3-none-PLATFORM.whl`. A native build is for this machine's kind of Linux only.
///
/// # Errors
/// The packer cannot be installed, or refuses something.
pub fn pack(out: &Path, version: &str, layout: &Layout, native: bool) -> anyhow::Result<PathBuf> {
    let root = workspace_root();
    let tools = root.join("target/wheel");
    python::environment(&tools, &root.join("xtask/src/dist/requirements.txt"))?;
    let stage = tempfile::tempdir_in(out).context("Cannot make a folder to pack in")?;
    let top = stage.path().join(format!("divvy-{version}"));
    let data = top.join(format!("divvy-{version}.data"));
    // No pages: pip would leave their folders behind.
    for entry in &layout.programs {
        // pip puts `scripts` on the PATH and `data` below the environment's own folder.
        let (kind, place) = match entry.path().strip_prefix("bin/") {
            Some(program) => ("scripts", program),
            None => ("data", entry.path()),
        };
        entry.copy_to(&data.join(kind).join(place))?;
    }
    let source = root.join("deploy/packages/wheel");
    fs::create_dir_all(top.join("divvy"))?;
    fs::write(
        top.join("divvy/__init__.py"),
        format!("\"\"\"Divvy: `divvy --help`, or `python -m divvy`.\"\"\"\n\n__version__ = \"{version}\"\n"),
    )?;
    fs::copy(source.join("main.py"), top.join("divvy/__main__.py"))?;
    let about = top.join(format!("divvy-{version}.dist-info"));
    fs::create_dir_all(&about)?;
    let metadata = fs::read_to_string(source.join("METADATA"))?.replace("@VERSION@", version);
    fs::write(about.join("METADATA"), metadata)?;
    fs::copy(root.join("LICENSE"), about.join("LICENSE"))?;
    let tag = tag(native);
    let wheel = format!(
        "Wheel-Version: 1.0\nGenerator: cargo xtask dist\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n"
    );
    fs::write(about.join("WHEEL"), wheel)?;
    zipped(&tools, &top, out, &format!("divvy-{version}-py3-none-{tag}.whl"))
}

/// Packs a wheel's folder into `out`, where the packer gives it this name.
///
/// # Errors
/// The packer refuses something.
pub fn zipped(tools: &Path, top: &Path, out: &Path, name: &str) -> anyhow::Result<PathBuf> {
    archive::plain_folders(top)?;
    finish(
        Command::new(tools.join("bin/python"))
            // The oldest time that a zip archive can have.
            .env("SOURCE_DATE_EPOCH", "315532800")
            .args(["-m", "wheel", "pack", "--dest-dir"])
            .arg(out)
            .arg(top)
            .stdout(Stdio::null()),
    )?;
    let packed = out.join(name);
    if !packed.exists() {
        bail!("`wheel pack` has left no {}", packed.display());
    }
    Ok(packed)
}

fn tag(native: bool) -> String {
    let architecture = std::env::consts::ARCH;
    match native {
        true => format!("linux_{architecture}"),
        false => format!("manylinux_{}_{}_{architecture}", FLOOR.0, FLOOR.1),
    }
}
