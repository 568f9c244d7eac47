//! A machine that systemd runs, on this one: namespaces of processes, mounts, cgroups and network of their own, Debian's
//! programs, and an /etc that is a copy. Units, users and files that a scenario makes there are gone with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::build::binaries;
use crate::clients::{on_path, require};
use crate::host::{finish, succeeded};
use crate::processes;
use crate::wait::until;

/// See the module. Dropping it ends all that runs there.
pub struct Booted {
    outer: Child,
    /// systemd's process, as this machine numbers it.
    init: u32,
    cgroups: Vec<PathBuf>,
    _files: tempfile::TempDir,
}

/// Where each kind of hierarchy is that systemd can have a part of.
const HIERARCHIES: [&str; 3] = [
    "/sys/fs/cgroup/systemd",
    "/sys/fs/cgroup/unified",
    "/sys/fs/cgroup",
];

impl Booted {
    /// Boots it, with `divvy` and what it loads in /opt/divvy; nothing where this process is not root, or there is no
    /// systemd, and need not be.
    pub fn new() -> Option<Self> {
        let is_root = rustix::process::getuid().is_root();
        if !require(is_root, "root, who can make namespaces") {
            return None;
        }
        on_path("systemctl", "systemd (cargo xtask setup)")?;
        on_path("nsenter", "nsenter (util-linux)")?;
        let files = tempfile::tempdir().expect("a folder");
        let programs = files.path().join("divvy");
        fs::create_dir(&programs).expect("a folder");
        for entry in fs::read_dir(binaries()).expect("what was built").flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|kind| kind == "so")
                || path.ends_with("divvy")
                || path.ends_with("probe")
            {
                fs::copy(&path, programs.join(entry.file_name())).expect("copied");
            }
        }
        let name = format!("{PREFIX}{}", std::process::id());
        let hierarchies = HIERARCHIES.iter().map(PathBuf::from);
        let hierarchies = hierarchies.filter(|hierarchy| hierarchy.join("cgroup.procs").exists());
        let cgroups: Vec<PathBuf> = hierarchies
            .inspect(|hierarchy| remove_stale(hierarchy))
            .map(|hierarchy| hierarchy.join(&name))
            .collect();
        let log = fs::File::create(files.path().join("log")).expect("a log");
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", ENTER, "sh", &name])
            .arg(&programs)
            .arg(BOOT)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log);
        let mut outer = command.spawn().expect("it starts");
        let said = || fs::read_to_string(files.path().join("log")).unwrap_or_default();
        let init = until("systemd runs", || {
            if let Some(status) = outer.try_wait().expect("a child") {
                panic!("the machine did not start, {status}: {}", said());
            }
            let all = processes::tree(outer.id());
            let is_systemd = |pid: &u32| {
                processes::arguments(*pid)
                    .first()
                    .is_some_and(|program| program.ends_with("/systemd"))
            };
            all.into_iter().find(is_systemd)
        });
        let booted = Self {
            outer,
            init,
            cgroups,
            _files: files,
        };
        until("it has booted", || {
            let mut ask = booted.command("systemctl");
            let output = finish(ask.args(["is-active", "booted.target"]));
            output.status.success().then_some(())
        });
        Some(booted)
    }

    /// A command there, as root.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--target={}", self.init))
            .args(["--pid", "--mount", "--cgroup", "--uts", "--ipc", "--net", "--"])
            .args(["env", "-i", PATH, "HOME=/root"])
            .arg(program)
            .stdin(Stdio::null());
        command
    }

    /// A line of a shell's there, as a user who has logged in.
    pub fn shell_as(&self, user: &str, line: &str) -> Command {
        let mut command = self.command("setpriv");
        command
            .args([
                &format!("--reuid={user}"),
                &format!("--regid={user}"),
                "--init-groups",
                "env",
                "-i",
            ])
            .arg(format!("--chdir=/home/{user}"))
            .arg(PATH)
            .arg(format!("HOME=/home/{user}"))
            .args(["/bin/sh", "-c", line]);
        command
    }

    /// A line of root's shell there, which succeeds; what it says.
    pub fn root(&self, line: &str) -> String {
        succeeded(&finish(self.command("/bin/sh").args(["-c", line])))
    }

    /// Where a file of it is for this machine's root.
    pub fn file(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.init))
    }

    /// Its processes, with their user and their arguments.
    pub fn processes(&self) -> Vec<(u32, Vec<String>)> {
        processes::tree(self.init)
            .into_iter()
            .filter_map(|pid| Some((processes::user(pid)?, processes::arguments(pid))))
            .collect()
    }
}

const PATH: &str = "PATH=/opt/divvy:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// `$1` names its cgroup, `$2` is the folder of programs. systemd, the first process of the namespace, dies with the process
/// that made that, and everything there dies with systemd.
const ENTER: &str = concat!(
    "for at in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified /sys/fs/cgroup; do\n",
    "  [ -e $at/cgroup.procs ] && mkdir $at/$1 && echo $$ >$at/$1/cgroup.procs\n",
    "done\n",
    "exec setpriv --pdeathsig KILL unshare --pid --fork --kill-child=KILL --mount --cgroup --uts --ipc --net \\\n",
    "  /bin/sh -c \"$3\" sh \"$2\"\n"
);
const BOOT: &str = include_str!("booted.sh");

impl Drop for Booted {
    fn drop(&mut self) {
        let ours = processes::tree(self.outer.id());
        let _ended = self.outer.kill();
        let _reaped = self.outer.wait();
        until("the machine is gone", || {
            ours.iter().all(|&pid| !processes::is_alive(pid)).then_some(())
        });
        for cgroup in &self.cgroups {
            remove_cgroup(cgroup);
        }
    }
}

/// What a cgroup's name begins with; the test's process follows.
const PREFIX: &str = "divvy-booted-";

/// Removes what tests left that were killed.
fn remove_stale(hierarchy: &Path) {
    for entry in fs::read_dir(hierarchy).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let maker = name.strip_prefix(PREFIX).and_then(|maker| maker.parse().ok());
        if maker.is_some_and(|maker| !processes::is_alive(maker)) {
            remove_cgroup(&entry.path());
        }
    }
}

/// Removes a cgroup without processes, with those below it.
fn remove_cgroup(cgroup: &Path) {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    let _stays = fs::remove_dir(cgroup);
}
