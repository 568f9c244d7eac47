//! Debian's containerd, 1.6, which knows no CDI: with directories, a socket and a runtime of the scenario's own.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};

use crate::clients::on_path;
use crate::containers::{Image, wrapper};
use crate::host::{Host, finish};
use crate::wait::until;

/// A containerd of a scenario's own, over `divvy container oci-runtime`.
pub struct Containerd<'a> {
    host: &'a Host,
    home: PathBuf,
    daemon: Child,
}

/// Plugins that this machine's kernel may not have, or that no scenario wants.
pub(crate) const OFF: [&str; 6] = [
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.tracing.processor.v1.otlp",
    "io.containerd.internal.v1.tracing",
];

impl<'a> Containerd<'a> {
    /// Starts it; nothing where it is not installed and need not be.
    pub fn new(host: &'a Host) -> Option<Self> {
        on_path("containerd", "containerd (cargo xtask setup)")?;
        let home = host.folder().join("containerd");
        fs::create_dir_all(&home).expect("a folder");
        wrapper(host, &home, &[], "runc");
        let home_text = home.display();
        // The wrapper's containerd is 1.6's: no scenario speaks CRI to it.
        let off = [&OFF[..], &["io.containerd.grpc.v1.cri"]].concat();
        let settings = format!(
            "version = 2\nroot = \"{home_text}/root\"\nstate = \"{home_text}/state\"\ndisabled_plugins = {off:?}\n\
             [grpc]\naddress = \"{home_text}/sock\"\n[debug]\naddress = \"{home_text}/debug\"\n"
        );
        fs::write(home.join("config.toml"), settings).expect("written");
        let log = fs::File::create(home.join("log")).expect("a log");
        let daemon = host
            .command("containerd")
            .arg("--config")
            .arg(home.join("config.toml"))
            .stdout(log.try_clone().expect("a second one"))
            .stderr(log)
            .spawn()
            .expect("containerd starts");
        let started = Self { host, home, daemon };
        until("containerd answers", || {
            let answer = finish(started.ctr().arg("version"));
            answer.status.success().then_some(())
        });
        Some(started)
    }

    fn ctr(&self) -> Command {
        let mut command = self.host.command("ctr");
        command.arg("--address").arg(self.home.join("sock"));
        command
    }

    /// `ctr run` of a program on this image.
    pub fn run(&self, flags: &[&str], image: &Image, name: &str, program: &[&str]) -> Command {
        let mut command = self.ctr();
        command
            .args(["run", "--rm", "--runc-binary"])
            .arg(self.home.join("divvy-oci-runtime"))
            .args(flags)
            .arg("--rootfs")
            .arg(image.root())
            .arg(name)
            .args(program);
        command
    }
}

impl Drop for Containerd<'_> {
    fn drop(&mut self) {
        // Its shims are found by their environment, with all that the host has started.
        let _ended = self.daemon.kill();
        let _reaped = self.daemon.wait();
    }
}
