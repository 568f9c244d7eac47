//! Debian packages that a task needs. They are installed when we are root; otherwise the one command is printed.
//! Packages of components that a machine does not have are unpacked beside the build.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::cargo::{finish, workspace_root};

/// Installs `packages` with apt-get. `why` ends the sentence "Installing Debian packages … for".
///
/// Call it only once something was found missing: it always asks the package lists again.
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

/// The same for packages with services, of which none is started: Debian's own switch for that is there meanwhile.
pub fn install_without_services(packages: &[&str], why: &str) -> anyhow::Result<()> {
    let switch = Path::new("/usr/sbin/policy-rc.d");
    let is_ours = we_are_root() && !switch.exists();
    if is_ours {
        std::fs::write(switch, "#!/bin/sh\nexit 101\n").context("Cannot keep services from starting")?;
        std::fs::set_permissions(switch, Permissions::from_mode(0o755))?;
    }
    let installed = install(packages, why);
    if is_ours {
        std::fs::remove_file(switch).context("Cannot take /usr/sbin/policy-rc.d away again")?;
    }
    installed
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
/// Nothing is installed, no dependency comes along, no script of the package runs, and apt's own settings and lists stay
/// as they are: needs no root. Returns at once when a former run has finished.
pub fn unpack(package: &str, release: Release, component: &str) -> anyhow::Result<PathBuf> {
    unpack_as(package, release, component, |_| Ok(package.to_owned()))
}

/// The folder `target/debian/linux-image` with the kernel of this release for virtual machines, and its modules. It is
/// not installed.
pub fn kernel() -> anyhow::Result<PathBuf> {
    // This package has no file, and needs the one of the release's latest kernel.
    const LATEST: &str = "linux-image-cloud-amd64";
    unpack_as("linux-image", Release::Own, "main", |apt| {
        let output = apt
            .configured("apt-cache")
            .args(["depends", "--important", LATEST])
            .output()
            .context("Cannot start apt-cache")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let named = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("Depends: "));
        named
            .map(str::to_owned)
            .with_context(|| format!("{LATEST} depends on no kernel"))
    })
}

/// The folder `target/debian/hwloc-machines` with the trees of real machines that hwloc's own tests read, an archive each.
///
/// They are in no package, but in Debian's source of hwloc.
pub fn machines() -> anyhow::Result<PathBuf> {
    let home = workspace_root().join("target/debian");
    let folder = home.join("hwloc-machines");
    if folder.exists() {
        return Ok(folder);
    }
    if !crate::setup::is_installed("bzip2") {
        install(&["bzip2"], "the trees of captured machines")?;
    }
    println!("setup: fetching captured machines, from Debian's source of hwloc");
    std::fs::create_dir_all(&home).with_context(|| format!("Cannot make {}", home.display()))?;
    let apt = Apart::sources_of(Release::Own, "main")?;
    finish(apt.get().arg("update")).context("apt-get cannot read the package lists")?;
    finish(
        apt.get()
            .current_dir(apt.downloads())
            .args(["source", "--download-only", "hwloc"]),
    )
    .context("apt-get cannot download the source of hwloc")?;
    let archive = file_in(&apt.downloads(), |name| name.contains(".orig.tar."))
        .context("apt-get left no source of hwloc")?;
    let unfinished = home.join("hwloc-machines.unfinished");
    std::fs::create_dir_all(&unfinished).with_context(|| format!("Cannot make {}", unfinished.display()))?;
    finish(
        Command::new("tar")
            .arg("--extract")
            .arg("--file")
            .arg(&archive)
            .arg("--directory")
            .arg(&unfinished)
            .args(["--no-same-owner", "--strip-components=4", "--wildcards"])
            .arg("hwloc-*/tests/hwloc/linux/*.tar.bz2"),
    )?;
    std::fs::rename(&unfinished, &folder).with_context(|| format!("Cannot make {}", folder.display()))?;
    Ok(folder)
}

/// The same for a package whose name is asked for when the lists are there.
fn unpack_as(
    name: &str,
    release: Release,
    component: &str,
    find: impl Fn(&Apart) -> anyhow::Result<String>,
) -> anyhow::Result<PathBuf> {
    let home = workspace_root().join("target/debian");
    let folder = home.join(name);
    if folder.exists() {
        return Ok(folder);
    }
    println!("setup: unpacking the Debian package {name} of {component}");
    std::fs::create_dir_all(&home).with_context(|| format!("Cannot make {}", home.display()))?;
    let apt = Apart::new(release, component)?;
    finish(apt.get().arg("update")).context("apt-get cannot read the package lists")?;
    let package = find(&apt)?;
    finish(
        apt.get()
            .current_dir(apt.downloads())
            .args(["download", &package]),
    )
    .with_context(|| format!("apt-get cannot download {package}"))?;

    let archive = downloaded(&apt.downloads(), &package)?;
    // Renamed when it is whole: an interrupted run leaves nothing that looks finished.
    let unfinished = home.join(format!("{name}.unfinished"));
    finish(
        Command::new("dpkg-deb")
            .arg("--extract")
            .arg(&archive)
            .arg(&unfinished),
    )?;
    std::fs::rename(&unfinished, &folder).with_context(|| format!("Cannot make {}", folder.display()))?;
    Ok(folder)
}

/// What a bare Debian system has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bare {
    /// Its essential packages, and no more.
    Essential,
    /// And apt.
    Apt,
}

/// An archive of a bare Debian system. It is made once.
///
/// # Errors
/// What is missing: mmdebstrap has to be installed, and packages are installed into a folder by root only.
pub fn root(release: Release, bare: Bare) -> anyhow::Result<PathBuf> {
    let home = workspace_root().join("target/debian");
    let mirror = Mirror::of(release)?;
    let (variant, suffix) = match bare {
        Bare::Essential => ("essential", ""),
        Bare::Apt => ("apt", "-apt"),
    };
    let archive = home.join(format!("root-{}{suffix}.tar", mirror.codename));
    if archive.exists() {
        return Ok(archive);
    }
    std::fs::create_dir_all(&home).with_context(|| format!("Cannot make {}", home.display()))?;
    println!("setup: making a bare root of Debian {}", mirror.codename);
    let keys = keyring(&mirror.codename, Path::exists)?;
    // Renamed when it is whole: an interrupted run leaves nothing that looks finished.
    let unfinished = archive.with_extension("unfinished.tar");
    finish(
        Command::new("mmdebstrap")
            .args(["--quiet", "--mode=root", "--format=tar"])
            .arg(format!("--variant={variant}"))
            .arg(format!("--keyring={}", keys.display()))
            .arg(&mirror.codename)
            .arg(&unfinished)
            .arg(mirror.source("deb", &keys, "main").trim_end())
            .stdin(Stdio::null()),
    )?;
    std::fs::rename(&unfinished, &archive).with_context(|| format!("Cannot make {}", archive.display()))?;
    Ok(archive)
}

/// apt with a source, lists and a cache of its own, in a folder that goes with it.
///
/// The folder is not below ours: run by root, apt fetches as the user `_apt`, which cannot enter a folder of root's.
struct Apart {
    home: TempDir,
}

impl Apart {
    /// For packages.
    fn new(release: Release, component: &str) -> anyhow::Result<Self> {
        Self::with("deb", release, component)
    }

    /// For sources of packages.
    fn sources_of(release: Release, component: &str) -> anyhow::Result<Self> {
        Self::with("deb-src", release, component)
    }

    fn with(kind: &str, release: Release, component: &str) -> anyhow::Result<Self> {
        let home = tempfile::Builder::new()
            .prefix("divvy-apt-")
            .permissions(Permissions::from_mode(0o755))
            .tempdir()
            .context("Cannot make a folder for apt")?;
        let apart = Self { home };
        for needed in ["lists/partial", "cache/archives/partial", "downloads"] {
            let folder = apart.home.path().join(needed);
            std::fs::create_dir_all(&folder).with_context(|| format!("Cannot make {}", folder.display()))?;
        }
        if we_are_root() {
            finish(Command::new("chown").arg("_apt").arg(apart.downloads()))?;
        }
        let mirror = Mirror::of(release)?;
        let keys = keyring(&mirror.codename, Path::exists)?;
        std::fs::write(apart.sources(), mirror.source(kind, &keys, component))
            .context("Cannot write apt's sources")?;
        Ok(apart)
    }

    fn sources(&self) -> PathBuf {
        self.home.path().join("sources.list")
    }

    fn downloads(&self) -> PathBuf {
        self.home.path().join("downloads")
    }

    fn get(&self) -> Command {
        self.with_options(apt_get())
    }

    /// Another program of apt's, with the same lists.
    fn configured(&self, program: &str) -> Command {
        self.with_options(Command::new(program))
    }

    fn with_options(&self, mut command: Command) -> Command {
        let mut set = |name: &str, value: &Path| {
            command.arg("--option").arg(format!("{name}={}", value.display()));
        };
        set("Dir::Etc::SourceList", &self.sources());
        set("Dir::Etc::SourceParts", Path::new("/dev/null"));
        set("Dir::State::Lists", &self.home.path().join("lists"));
        set("Dir::Cache", &self.home.path().join("cache"));
        command
    }
}

/// Where packages of a release come from.
struct Mirror {
    address: String,
    codename: String,
}

impl Mirror {
    /// The Debian mirror that this machine's apt uses for its own release.
    fn of(wanted: Release) -> anyhow::Result<Self> {
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
        let Some(address) = targets.lines().find_map(|line| line.strip_suffix(&own)) else {
            bail!("apt has no source for main of {codename}");
        };
        let codename = match wanted {
            Release::Own => codename,
            Release::Trixie => "trixie",
        };
        Ok(Self {
            address: address.to_owned(),
            codename: codename.to_owned(),
        })
    }

    /// The line for apt. Only the keys of this release are trusted, not all that the machine trusts.
    fn source(&self, kind: &str, keys: &Path, component: &str) -> String {
        let Self { address, codename } = self;
        format!(
            "{kind} [signed-by={}] {address} {codename} {component}\n",
            keys.display()
        )
    }
}

/// The file with the keys of one release's archive, from Debian's package debian-archive-keyring.
fn keyring(codename: &str, exists: impl Fn(&Path) -> bool) -> anyhow::Result<PathBuf> {
    let names = [
        format!("debian-archive-{codename}-automatic"),
        // Of all releases: where a distribution has no file for each.
        "debian-archive-keyring".to_owned(),
    ];
    for name in names {
        for ending in ["gpg", "pgp"] {
            let path = Path::new("/usr/share/keyrings").join(format!("{name}.{ending}"));
            if exists(&path) {
                return Ok(path);
            }
        }
    }
    bail!(
        "No key of Debian's {codename}: run `sudo apt-get install --yes debian-archive-keyring`, then this again"
    )
}

/// The one archive of `package` in `folder`.
fn downloaded(folder: &Path, package: &str) -> anyhow::Result<PathBuf> {
    let begin = format!("{package}_");
    file_in(folder, |name| name.starts_with(&begin) && name.ends_with(".deb"))
        .with_context(|| format!("apt-get left no archive of {package} in {}", folder.display()))
}

/// The file of `folder` whose name is right.
fn file_in(folder: &Path, is_right: impl Fn(&str) -> bool) -> anyhow::Result<PathBuf> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("Cannot read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if is_right(&name) {
            return Ok(path);
        }
    }
    bail!("It is not there");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_keys_of_the_release_are_trusted() {
        let own = "/usr/share/keyrings/debian-archive-trixie-automatic.gpg";
        let found = keyring("trixie", |_| true).expect("all files are there");
        assert_eq!(found, Path::new(own));
        let of_all = keyring("trixie", |path| path.ends_with("debian-archive-keyring.pgp"));
        assert_eq!(
            of_all.expect("one file is there"),
            Path::new("/usr/share/keyrings/debian-archive-keyring.pgp")
        );
        assert!(keyring("trixie", |_| false).is_err());
        let mirror = Mirror {
            address: "http://mirror/debian".to_owned(),
            codename: "trixie".to_owned(),
        };
        assert_eq!(
            mirror.source("deb", &found, "main"),
            format!("deb [signed-by={own}] http://mirror/debian trixie main\n")
        );
    }
}
