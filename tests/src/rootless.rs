//! podman without root: as the user `nobody`, which every machine has, with one user id and directories of the
//! scenario's own.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::build::binaries;
use crate::clients::on_path;
use crate::containers::{Image, in_namespace, wrapper_of};
use crate::host::{Host, finish, succeeded};

/// Where no agent is, whatever runs on this machine beside the tests.
const NO_SYSTEM: &str = "/run/divvy-none";

/// See the module.
pub struct Rootless<'a> {
    host: &'a Host,
    home: PathBuf,
    runtime: &'static str,
}

impl<'a> Rootless<'a> {
    /// The user's podman over this runtime, and this image as his; nothing where they are not installed and need not be.
    pub fn new(host: &'a Host, image: &Image, runtime: &'static str) -> Option<Self> {
        on_path("podman", "podman (cargo xtask setup)")?;
        on_path(runtime, "OCI runtime (cargo xtask setup)")?;
        let home = host.folder().join("nobody");
        for folder in ["bin", "xdg"] {
            fs::create_dir_all(home.join(folder)).expect("a folder");
        }
        let settings = "[containers]\ndefault_ulimits=[\"nofile=1024:4096\",\"nproc=1024:2048\"]\n\
                        [engine]\ncgroup_manager=\"cgroupfs\"\nevents_logger=\"file\"\n";
        fs::write(home.join("containers.conf"), settings).expect("written");
        wrapper_of(
            &home.join("bin/divvy"),
            host,
            &home,
            &[
                ("DIVVY_CONTAINER_REQUESTS", "variables"),
                // As for a user who has set nothing: it is found by who he is. No system agent is there.
                ("DIVVY_RUN_DIR", ""),
                ("DIVVY_SYSTEM_RUN_DIR", NO_SYSTEM),
            ],
            runtime,
        );
        // The files that the scenario made so far are the user's, who may enter the folder where they lie.
        let mut own = Command::new("chown");
        own.args(["-R", "nobody:nogroup"]).arg(host.folder());
        succeeded(&finish(own.arg(image.root())));
        Some(Self { host, home, runtime })
    }

    /// This, called by the user.
    pub fn command(&self, program: &[&str]) -> Command {
        // The programs may lie where only root may enter: he has them in a folder of his own.
        let script = "mount --bind \"$BINARIES\" \"$HOME/bin\"";
        let mut command = in_namespace(self.host, self.runtime, script);
        command
            .args([
                "setpriv",
                "--reuid=nobody",
                "--regid=nogroup",
                "--clear-groups",
                "--",
            ])
            .args(program)
            .env("HOME", &self.home)
            .env("DIVVY_RUN_DIR", "")
            .env("DIVVY_SYSTEM_RUN_DIR", NO_SYSTEM)
            .env("XDG_RUNTIME_DIR", self.home.join("xdg"))
            .env("CONTAINERS_CONF", self.home.join("containers.conf"))
            .env("BINARIES", binaries());
        command
    }

    /// `divvy`, called by the user.
    pub fn divvy(&self, words: &[&str]) -> Command {
        let divvy = self.home.join("bin/divvy");
        self.command(&[&[divvy.to_str().expect("UTF-8")], words].concat())
    }

    /// podman's own flags, over the wrapper or without it.
    pub fn flags(&self, over_wrapper: bool) -> Vec<String> {
        let runtime = match over_wrapper {
            true => self.home.join("divvy-oci-runtime").display().to_string(),
            false => self.runtime.to_owned(),
        };
        let place = |name: &str| self.home.join(name).display().to_string();
        let pairs = [
            ("--root", place("storage")),
            ("--runroot", place("runroot")),
            ("--tmpdir", place("tmp")),
            ("--runtime", runtime),
            ("--cgroup-manager", "cgroupfs".into()),
        ];
        pairs
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect()
    }

    /// `podman run` of a program on this image, over the wrapper.
    pub fn run(&self, flags: &[&str], image: &Image, program: &[&str]) -> Command {
        let own = self.flags(true);
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        let mut command = self.command(&["podman"]);
        command
            .args(own)
            .args(["run", "--rm", "--network=none"])
            .args(flags);
        command.arg("--rootfs").arg(image.root()).args(program);
        command
    }
}
