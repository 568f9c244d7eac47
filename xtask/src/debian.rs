//! Debian packages a task needs: installed when we are root, named with the one command when we are not; or, from the
//! components that a machine does not have, unpacked beside the build.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::cargo::{finish, workspace_root};

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

/// Whose packages.
#[derive(Clone, Copy)]
pub enum Release {
    /// This machine's Debian release.
    Own,
    /// Debian 13, for what Debian 12 has too old. Its programs run on an older libc as far as they ask for no newer one.
    Trixie,
}

/// The folder `target/debian/<package>` with the files of `package` out of `component` (`contrib`, `non-free`) of a
/// Debian release, fetched from the mirror that apt is set up with.
///
/// Nothing is installed, no dependency comes along, and apt's own settings and lists stay as they are: needs no root.
/// Returns at once when a former run has finished.
pub fn unpack(package: &str, release: Release, component: &str) -> anyhow::Result<PathBuf> {
    let home = workspace_root().join("target/debian");
    let folder = home.join(package);
    if folder.exists() {
        return Ok(folder);
    }
    println!("setup: unpacking the Debian package {package} of {component}");
    let downloads = home.join("downloads");
    for needed in ["lists/partial", "cache/archives/partial", "downloads"] {
        std::fs::create_dir_all(home.join(needed))
            .with_context(|| format!("Cannot make {}", home.join(needed).display()))?;
    }
    let sources = home.join("sources.list");
    std::fs::write(&sources, format!("deb {} {component}\n", mirror(release)?))
        .with_context(|| format!("Cannot write {}", sources.display()))?;
    finish(private_apt_get(&home, &sources).arg("update"))
        .context("apt-get cannot read the package lists")?;
    finish(
        private_apt_get(&home, &sources)
            .current_dir(&downloads)
            .args(["download", package]),
    )
    .with_context(|| format!("apt-get cannot download {package}"))?;

    let archive = downloaded(&downloads, package)?;
    // Renamed when it is whole: an interrupted run leaves nothing that looks finished.
    let unfinished = home.join(format!("{package}.unfinished"));
    finish(
        Command::new("dpkg-deb")
            .arg("--extract")
            .arg(&archive)
            .arg(&unfinished),
    )?;
    std::fs::remove_file(&archive).with_context(|| format!("Cannot remove {}", archive.display()))?;
    std::fs::rename(&unfinished, &folder).with_context(|| format!("Cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Address and release, as `deb` lines have them, of the Debian mirror that this machine's apt uses for its own release.
fn mirror(wanted: Release) -> anyhow::Result<String> {
    let release = std::fs::read_to_string("/etc/os-release").context("Cannot read /etc/os-release")?;
    let Some(codename) = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
    else {
        bail!("/etc/os-release names no release: this needs Debian");
    };
    let targets = Command::new("apt-get")
        .args(["indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)"])
        .output()
        .context("Cannot start apt-get: this needs Debian")?;
    let targets = String::from_utf8_lossy(&targets.stdout).into_owned();
    let own = format!(" {codename} main");
    let Some(found) = targets.lines().find_map(|line| line.strip_suffix(&own)) else {
        bail!("apt has no source for main of {codename}");
    };
    let codename = match wanted {
        Release::Own => codename,
        Release::Trixie => "trixie",
    };
    Ok(format!("{found} {codename}"))
}

/// apt-get with sources, lists and cache of its own.
fn private_apt_get(home: &Path, sources: &Path) -> Command {
    let mut command = apt_get();
    let mut set = |name: &str, value: &Path| {
        command.arg("--option").arg(format!("{name}={}", value.display()));
    };
    set("Dir::Etc::SourceList", sources);
    set("Dir::Etc::SourceParts", Path::new("/dev/null"));
    set("Dir::State::Lists", &home.join("lists"));
    set("Dir::Cache", &home.join("cache"));
    if we_are_root() {
        // Otherwise it drops to a user who cannot enter our folders, and warns.
        command.args(["--option", "APT::Sandbox::User=root"]);
    }
    command
}

/// The one archive of `package` in `folder`.
fn downloaded(folder: &Path, package: &str) -> anyhow::Result<PathBuf> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("Cannot read {}", folder.display()))? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.starts_with(&format!("{package}_")) && name.ends_with(".deb") {
            return Ok(path);
        }
    }
    bail!("apt-get left no archive of {package} in {}", folder.display());
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
