//! Container engines as scenarios use them: Debian's podman over its runc or crun, with storage, directories and a root
//! file system of the scenario's own. There is no registry: the root file system is made of this machine's own files.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::binaries;
use crate::clients::on_path;
use crate::host::{Host, finish, succeeded};

/// A podman of a scenario's own.
pub struct Podman<'a> {
    host: &'a Host,
    home: PathBuf,
    runtime: &'static str,
}

/// A folder that is a container's root.
pub struct Image {
    root: PathBuf,
}

impl Image {
    /// A shell, a few programs, and what they load, of this machine's own.
    pub fn new(host: &Host) -> Self {
        let image = Self {
            root: host.folder().join("image"),
        };
        for folder in ["proc", "sys", "dev", "tmp", "etc", "run", "bin", "lib64"] {
            fs::create_dir_all(image.root.join(folder)).expect("a folder");
        }
        image.library("/lib64/ld-linux-x86-64.so.2");
        // What every distribution's glibc brings, whether a program of the image asks for it or not.
        for library in [
            "libc.so.6",
            "libm.so.6",
            "libdl.so.2",
            "libpthread.so.0",
            "librt.so.1",
            "libgcc_s.so.1",
        ] {
            image.library(&format!("/lib/x86_64-linux-gnu/{library}"));
        }
        for program in [
            "/bin/sh",
            "/bin/cat",
            "/bin/ls",
            "/bin/sleep",
            "/usr/bin/env",
            "/bin/dd",
            "/bin/mknod",
            "/usr/bin/id",
        ] {
            image.program(Path::new(program), program);
        }
        image
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// This machine's own root, with everything that is installed here.
    pub fn of_host() -> Self {
        Self { root: "/".into() }
    }

    /// Copies a program there, with the libraries that it loads.
    pub fn program(&self, file: &Path, name: &str) {
        self.file(file, name);
        let loads = finish(Command::new("ldd").arg(file));
        for word in String::from_utf8_lossy(&loads.stdout).split_whitespace() {
            if word.starts_with('/') {
                self.library(word);
            }
        }
    }

    fn library(&self, path: &str) {
        let real = fs::canonicalize(path).expect("a library");
        self.file(&real, path);
    }

    /// Copies a file there.
    pub fn file(&self, file: &Path, name: &str) {
        let to = self.root.join(name.trim_start_matches('/'));
        fs::create_dir_all(to.parent().expect("below the root")).expect("a folder");
        if !to.exists() {
            fs::copy(file, &to).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
    }

    /// Writes a file there.
    pub fn write(&self, name: &str, text: &str, mode: u32) {
        let to = self.root.join(name.trim_start_matches('/'));
        fs::create_dir_all(to.parent().expect("below the root")).expect("a folder");
        fs::write(&to, text).expect("written");
        fs::set_permissions(&to, fs::Permissions::from_mode(mode)).expect("a mode");
    }

    /// Makes a link there, whatever was there before.
    pub fn link(&self, name: &str, target: &str) {
        let place = self.root.join(name.trim_start_matches('/'));
        if place.is_dir() && !place.is_symlink() {
            fs::remove_dir_all(&place).expect("removed");
        }
        fs::create_dir_all(place.parent().expect("below the root")).expect("a folder");
        symlink(target, place).expect("a link");
    }
}

/// A static program that takes a container's emulated device without the limiter: `opens.c`.
pub fn opens(host: &Host, compiler: &Path) -> PathBuf {
    compiled(host, compiler, "opens", include_str!("opens.c"), "-static")
}

/// A program of a container that goes past the limiter in it: `goes_below.c`.
pub fn goes_below(host: &Host, compiler: &Path) -> PathBuf {
    compiled(host, compiler, "goes_below", include_str!("goes_below.c"), "-ldl")
}

/// A static program that takes memory and time of an emulated device of the host's, without the limiter: `static_tenant.c`.
pub fn static_tenant(host: &Host, compiler: &Path) -> PathBuf {
    compiled(
        host,
        compiler,
        "static_tenant",
        include_str!("static_tenant.c"),
        "-static",
    )
}

fn compiled(host: &Host, compiler: &Path, name: &str, text: &str, flag: &str) -> PathBuf {
    let (source, program) = (host.folder().join(format!("{name}.c")), host.folder().join(name));
    fs::write(&source, text).expect("written");
    let mut compile = Command::new(compiler);
    compile
        .arg(format!("-DPAGE_ABI_VERSION={}", divvy_ledger::PAGE_ABI_VERSION))
        .arg(format!("-DENGINE_ABI={}", divvy_device::engine::page::ENGINE_ABI))
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .arg(flag);
    succeeded(&finish(&mut compile));
    program
}

impl<'a> Podman<'a> {
    /// podman over runc, or nothing where it is not installed and need not be.
    pub fn new(host: &'a Host) -> Option<Self> {
        Self::over(host, "runc")
    }

    /// podman over this runtime.
    pub fn over(host: &'a Host, runtime: &'static str) -> Option<Self> {
        on_path("podman", "podman (cargo xtask setup)")?;
        on_path(runtime, "OCI runtime (cargo xtask setup)")?;
        let home = host.folder().join("podman");
        fs::create_dir_all(home.join("cdi")).expect("a folder");
        // Debian's defaults raise limits, which a sandbox may not.
        let settings = "[containers]\ndefault_ulimits=[\"nofile=1024:4096\",\"nproc=1024:2048\"]\n\
                        [engine]\ncgroup_manager=\"cgroupfs\"\nevents_logger=\"file\"\n";
        fs::write(home.join("containers.conf"), settings).expect("written");
        Some(Self { host, home, runtime })
    }

    /// The directory in which this podman finds CDI files; no other engine of the machine looks there.
    pub fn cdi(&self) -> PathBuf {
        self.home.join("cdi")
    }

    /// `podman` with these arguments.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.called(&[OsStr::new("podman")], self.runtime);
        command.args(arguments);
        command
    }

    /// `divvy podman` with these arguments.
    pub fn by_divvy(&self, arguments: &[&str]) -> Command {
        let divvy = binaries().join("divvy");
        let mut command = self.called(&[divvy.as_os_str(), OsStr::new("podman")], self.runtime);
        command.args(arguments);
        command
    }

    /// `podman` over `divvy container oci-runtime`, which has the scenario's own host and these settings, over this podman's
    /// runtime. What a container asks for counts unless the settings say otherwise: podman's annotations may be an
    /// image's.
    pub fn over_wrapper(&self, settings: &[(&str, &str)], arguments: &[&str]) -> Command {
        let all = [&[("DIVVY_CONTAINER_REQUESTS", "variables")], settings].concat();
        let settings = if settings
            .iter()
            .any(|(name, _)| *name == "DIVVY_CONTAINER_REQUESTS")
        {
            settings
        } else {
            &all
        };
        let wrapper = wrapper(self.host, &self.home, settings, self.runtime);
        let mut command = self.called(&[OsStr::new("podman")], wrapper.to_str().expect("UTF-8"));
        command.args(arguments);
        command
    }

    /// What is called with podman's own flags behind it.
    fn called(&self, program: &[&OsStr], runtime: &str) -> Command {
        // The scenario's directory is the machine's.
        let own = "mkdir -p /run/cdi && mount --bind \"$CDI\" /run/cdi";
        let mut command = in_namespace(self.host, self.runtime, own);
        command.args(program).env("CDI", self.cdi());
        command
            .env("CONTAINERS_CONF", self.home.join("containers.conf"))
            .arg("--root")
            .arg(self.home.join("storage"))
            .arg("--runroot")
            .arg(self.home.join("runroot"))
            .arg("--tmpdir")
            .arg(self.home.join("tmp"))
            .args(["--runtime", runtime]);
        command
    }

    /// `podman run` of a program on this image, without a network. The image itself is never written to.
    pub fn run(&self, flags: &[&str], image: &Image, program: &[&str]) -> Command {
        let mut command = self.command(&RUN);
        of_image(&mut command, flags, image, program);
        command
    }

    /// `divvy podman run` of the same.
    pub fn run_by_divvy(&self, flags: &[&str], image: &Image, program: &[&str]) -> Command {
        let mut command = self.by_divvy_run(&RUN);
        of_image(&mut command, flags, image, program);
        command
    }

    /// The same of a container that is there when it has ended.
    pub fn kept_by_divvy(&self, flags: &[&str], image: &Image, program: &[&str]) -> Command {
        let mut command = self.by_divvy_run(&KEPT);
        of_image_itself(&mut command, flags, image, program);
        command
    }

    /// Puts the image into the engine's own store, with the program that it runs: only the engine sees it there.
    pub fn import(&self, image: &Image, name: &str, program: &str) {
        let archive = self.home.join("image.tar");
        let mut tar = Command::new("tar");
        tar.arg("-cf").arg(&archive).arg("-C").arg(image.root()).arg(".");
        succeeded(&finish(&mut tar));
        let runs = format!("CMD [\"{program}\"]");
        let mut import = self.command(&["import", "--change", &runs]);
        succeeded(&finish(import.arg(&archive).arg(name)));
    }

    /// `divvy podman run` of such an image. The container is there when it has ended.
    pub fn imported_by_divvy(&self, flags: &[&str], name: &str) -> Command {
        let mut command = self.by_divvy_run(&KEPT);
        command.args(flags).arg(name);
        command
    }

    fn by_divvy_run(&self, run: &[&str]) -> Command {
        let mut command = self.by_divvy(run);
        // The agent may have been started outside this command's mount namespace: it removes the file by its path.
        command.arg("--cdi-directory").arg(self.cdi());
        command
    }

    /// `podman run` of the same over the wrapper.
    pub fn run_over_wrapper(
        &self,
        settings: &[(&str, &str)],
        flags: &[&str],
        image: &Image,
        program: &[&str],
    ) -> Command {
        let mut command = self.over_wrapper(settings, &RUN);
        of_image(&mut command, flags, image, program);
        command
    }

    /// The same of a container that is there when it has ended.
    pub fn kept_over_wrapper(&self, flags: &[&str], image: &Image, program: &[&str]) -> Command {
        let mut command = self.over_wrapper(&[], &KEPT);
        of_image_itself(&mut command, flags, image, program);
        command
    }

    /// The same under podman alone.
    pub fn kept(&self, flags: &[&str], image: &Image, program: &[&str]) -> Command {
        let mut command = self.command(&KEPT);
        of_image_itself(&mut command, flags, image, program);
        command
    }
}

impl Drop for Podman<'_> {
    fn drop(&mut self) {
        // Containers of a scenario that failed.
        let _ended = self.command(&["rm", "--all", "--force", "--time", "0"]).output();
        // Overlays of `:O` are mounted below.
        let _unmounted = self.command(&["unmount", "--all"]).output();
    }
}

/// A program that is `divvy container oci-runtime` on this host with these settings, over this runtime.
pub(crate) fn wrapper(host: &Host, folder: &Path, settings: &[(&str, &str)], runtime: &str) -> PathBuf {
    wrapper_of(&binaries().join("divvy"), host, folder, settings, runtime)
}

/// The same of a `divvy` that lies elsewhere.
pub(crate) fn wrapper_of(
    divvy: &Path,
    host: &Host,
    folder: &Path,
    settings: &[(&str, &str)],
    runtime: &str,
) -> PathBuf {
    let wrapper = folder.join("divvy-oci-runtime");
    // Engines give their runtimes an environment of their own.
    let mut script = String::from("#!/bin/sh\n");
    let known = host.command("true");
    let known = known
        .get_envs()
        .filter_map(|(name, value)| Some((name.to_str()?, value?.to_str()?)));
    let all = known
        .chain([("DIVVY_OCI_RUNTIME", runtime)])
        .chain(settings.iter().copied());
    for (name, value) in all {
        script.push_str(&format!("export {name}='{value}'\n"));
    }
    script.push_str(&format!("exec {} oci-runtime \"$@\"\n", divvy.display()));
    fs::write(&wrapper, script).expect("written");
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).expect("a mode");
    wrapper
}

const RUN: [&str; 3] = ["run", "--rm", "--network=none"];
const KEPT: [&str; 2] = ["run", "--network=none"];

fn of_image(command: &mut Command, flags: &[&str], image: &Image, program: &[&str]) {
    let over = format!("{}:O", image.root().display());
    command.args(flags).arg("--rootfs").arg(over).args(program);
}

/// On the image itself: podman 4.3 loses an overlay when it starts a container of `:O` again.
fn of_image_itself(command: &mut Command, flags: &[&str], image: &Image, program: &[&str]) {
    command
        .args(flags)
        .arg("--rootfs")
        .arg(image.root())
        .args(program);
}

/// A command in a mount namespace of its own, in which `script` has been run. crun 1.8 refuses to run with both cgroup
/// hierarchies mounted: it gets the old one alone.
pub(crate) fn in_namespace(host: &Host, runtime: &str, script: &str) -> Command {
    let mut script = format!("{script} && ");
    if runtime == "crun" && hybrid() {
        script.push_str("umount /sys/fs/cgroup/unified && ");
    }
    script.push_str("exec \"$@\"");
    let mut command = host.command("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]);
    command
}

/// Whether both cgroup hierarchies are mounted.
fn hybrid() -> bool {
    Path::new("/sys/fs/cgroup/unified/cgroup.controllers").exists()
}
