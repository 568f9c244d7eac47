//! The package for Fedora, Rocky, SUSE and their kin, by rpmbuild.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::archive;
use super::layout::Layout;
use crate::cargo::{finish, workspace_root};

/// Folders that go with the package: Divvy's own, and those that not every system has. Several packages may own one.
const FOLDERS: [&str; 7] = [
    "/usr/lib/divvy",
    "/usr/share/doc/divvy",
    "/usr/lib/sysusers.d",
    "/usr/share/fish",
    "/usr/share/fish/vendor_completions.d",
    "/usr/share/zsh",
    "/usr/share/zsh/site-functions",
];

/// Writes `out/divvy-VERSION-1.ARCHITECTURE.rpm`.
///
/// # Errors
/// rpmbuild is missing (Debian's package `rpm` has it) or refuses something.
pub fn pack(out: &Path, version: &str, layout: &Layout) -> anyhow::Result<PathBuf> {
    let stage = tempfile::tempdir_in(out).context("Cannot make a folder to pack in")?;
    let tree = stage.path().join("tree");
    let files = archive::lay_out(&tree.join("usr"), layout.installed())?;
    archive::plain_folders(&tree)?;
    let mut list = String::from("%defattr(-,root,root,-)\n");
    for file in &files {
        let _written = writeln!(list, "\"/{}\"", file.strip_prefix(&tree)?.display());
    }
    for folder in FOLDERS {
        let _written = writeln!(list, "%dir \"{folder}\"");
    }
    for folder in folders_below(&tree.join("usr/share/doc/divvy"))? {
        let _written = writeln!(list, "%dir \"/{}\"", folder.strip_prefix(&tree)?.display());
    }
    let names = stage.path().join("files");
    fs::write(&names, list)?;
    let define = |name: &str, value: &Path| format!("{name} {}", value.display());
    let mut rpmbuild = Command::new("rpmbuild");
    rpmbuild
        .env("SOURCE_DATE_EPOCH", "0")
        .args(["--quiet", "-bb"])
        .args(["--define", &define("_topdir", stage.path())])
        .args(["--define", &define("divvy_version", Path::new(version))])
        .args(["--define", &define("divvy_tree", &tree)])
        .args(["--define", &define("divvy_list", &names)])
        .args(["--define", &define("_rpmdir", out)])
        .args([
            "--define",
            "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
        ])
        .arg(workspace_root().join("deploy/packages/rpm/divvy.spec"))
        .stdout(Stdio::null());
    finish(&mut rpmbuild)
        .context("rpmbuild is in the package `rpm` of Debian, and in `rpm-build` elsewhere")?;
    let packed = out.join(format!("divvy-{version}-1.{}.rpm", std::env::consts::ARCH));
    if !packed.exists() {
        bail!("rpmbuild has left no {}", packed.display());
    }
    Ok(packed)
}

fn folders_below(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            all.extend(folders_below(&path)?);
            all.push(path);
        }
    }
    all.sort();
    Ok(all)
}
