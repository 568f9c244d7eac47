use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::*;

#[test]
fn a_containers_cgroup_is_the_one_with_its_id_and_not_the_hosts() {
    let id = "0123456789abcdef".repeat(4);
    let (scope, other) = (
        format!("/machine.slice/libpod-{id}.scope"),
        "/user.slice/session-1.scope",
    );
    let inner = format!("{scope}/system.slice/job");
    let hosts = |all: &[&str]| all.iter().map(|path| (*path).to_owned()).collect::<HashSet<_>>();
    let own = claims([(inner.as_str(), 3)].into_iter(), &hosts(&["/", "/init.scope"]));
    assert_eq!(own, HashMap::from([(scope.as_str(), 3)]));
    // The engine's monitor is in the container's cgroup, beside the container.
    let (monitor, box_of_it) = (format!("{scope}/conmon"), format!("{scope}/ctr"));
    let own = claims([(box_of_it.as_str(), 3)].into_iter(), &hosts(&[&monitor]));
    assert_eq!(own, HashMap::from([(box_of_it.as_str(), 3)]));
    // A container without a cgroup of its own is in its user's.
    let own = claims([(other, 3)].into_iter(), &hosts(&[other]));
    assert!(own.is_empty());
    assert!(above("/a/b").eq(["/a/b", "/a"]));
    assert_eq!(cgroup("1:name=systemd:/\n0::/\n"), None);
    let lines =
        format!("4:memory:/a/much/longer/path/than/that/of/the/container/{id:.60}\n3:pids:{scope}\n0::/\n");
    assert_eq!(cgroup(&lines).as_deref(), Some(scope.as_str()));
}

/// A container's processes, as `unshare` makes them. Each ends when its standard input does, which is this test's.
struct Inside(Child);

impl Inside {
    /// `script` runs with $BOX, the slice's folder, at its place in a mount namespace of its own, and says when it is
    /// ready.
    fn new(folder: &Path, script: &str) -> Self {
        let setup = "set -e; mount -t tmpfs none /run; mkdir -p /run/divvy/slice; exec 3<&0;\n\
            mount --bind \"$BOX\" /run/divvy/slice;\n";
        let mut child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c"])
            .arg(format!("{setup}{script}"))
            .env("BOX", folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare runs");
        let mut said = String::new();
        let out = child.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut said).expect("text");
        assert_eq!(said, "ready\n");
        Self(child)
    }

    fn pids(&self) -> Vec<u32> {
        procs::tree(self.0.id(), 0)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        // Closes the standard input.
        let _reaped = self.0.wait();
    }
}

/// Whether a mount namespace can be made here.
fn may_unshare() -> bool {
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "true"]).stderr(Stdio::null());
    rustix::process::geteuid().is_root() && unshare.status().is_ok_and(|status| status.success())
}

/// Only root may make namespaces so; elsewhere there is nothing to show.
#[test]
fn changed_roots_and_namespaces_in_namespaces_hide_no_process() {
    if !may_unshare() {
        return;
    }
    let base = tempfile::tempdir().expect("a folder");
    let run = RunDir::open(&base.path().join("run")).expect("a run directory");
    let folder = run.slice_box("0000000a");
    fs::create_dir_all(&folder).expect("a box");
    let boxes = [SliceBox::of(&run, "0000000a")];
    let deep = "0/1/2/3/4/5/6/7/8/9/0/1/2/3/4/5/6/7/8/9";
    // The shell itself changes its root too: not one process shows the mount by its own mountinfo.
    let script = format!(
        "mkdir -p /run/{deep}; exec perl -e 'for (1..24) {{ if (!fork) {{ chroot \"/run/{deep}\"; <STDIN>; exit }} }} \
         chroot \"/run/{deep}\"; $| = 1; select(undef, undef, undef, 0.3); print \"ready\\n\"; <STDIN>'"
    );
    let inside = Inside::new(&folder, &script);
    let pids = inside.pids();
    let in_root = |pid: &&u32| in_mountinfo(&pid.to_string(), &boxes).is_some();
    assert!(
        pids.iter().filter(|pid| !in_root(pid)).count() == 25,
        "they have changed their roots"
    );
    let found: HashSet<u32> = Evidence::default()
        .inside(&boxes)
        .into_iter()
        .map(|(_, pid)| pid)
        .collect();
    for pid in &pids {
        assert!(found.contains(pid), "{pid} of {pids:?} is hidden: {found:?}");
    }
    assert!(!found.contains(&std::process::id()) && !found.contains(&1));
    // Results are kept: a second round finds the same.
    let mut evidence = Evidence::default();
    let first = evidence.inside(&boxes);
    assert_eq!(evidence.inside(&boxes), first);
}

/// A cgroup of the test's own, as an engine makes one for a container.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Option<Self> {
        let id = format!("{:064x}", std::process::id());
        let hierarchies = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids"];
        hierarchies.iter().find_map(|hierarchy| {
            let folder = Path::new(hierarchy).join(format!("divvy-{id}"));
            fs::create_dir(&folder).ok()?;
            let made = Self(folder);
            made.0.join("cgroup.procs").exists().then_some(made)
        })
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its processes take a moment to go.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

#[test]
fn who_left_the_mounts_behind_is_in_the_containers_cgroup() {
    let (true, Some(cgroup)) = (may_unshare(), Cgroup::new()) else {
        return;
    };
    let base = tempfile::tempdir().expect("a folder");
    let run = RunDir::open(&base.path().join("run")).expect("a run directory");
    let folder = run.slice_box("0000000b");
    fs::create_dir_all(&folder).expect("a box");
    let boxes = [SliceBox::of(&run, "0000000b")];
    // One that shows what it has, and one in a namespace of its own from which the mount is gone.
    let script = format!(
        "echo 0 > {}/cgroup.procs; unshare --mount --propagation private sh -c \
         'umount /run/divvy/slice; umount -l /run; exec cat <&3' & sleep 0.5; echo ready; exec cat",
        cgroup.0.display()
    );
    let inside = Inside::new(&folder, &script);
    let found: HashSet<u32> = Evidence::default()
        .inside(&boxes)
        .into_iter()
        .map(|(_, pid)| pid)
        .collect();
    let hidden: Vec<u32> = inside
        .pids()
        .into_iter()
        .filter(|pid| mounted(*pid, &boxes).is_none())
        .collect();
    assert!(!hidden.is_empty(), "the second namespace shows the mount");
    assert!(
        hidden.iter().all(|pid| found.contains(pid)),
        "{hidden:?} of {found:?}"
    );
    assert!(!found.contains(&std::process::id()));
}
