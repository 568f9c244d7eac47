//! F4. Seen on the old code: a container wrote numbers of the host's processes into its ledger. The agent sent a root
//! process that had a file `libcuda.so.1` mapped a SIGTERM within seconds. `divvy slice delete --yes` killed an
//! unrelated `sleep`. With the number of an ancestor of root's shell every request of root's counted as inside that
//! slice.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use divvy_tests::containers::Podman;
use divvy_tests::host::{Host, finish, stderr};
use divvy_tests::hostile::Hostile;
use divvy_tests::processes;

use super::containers::{HARDENED, image, slice};

/// A process of root's that has nothing to do with any slice; it ends with the scenario.
struct Bystander(Child);

impl Bystander {
    fn start(command: &mut Command) -> Self {
        Self(
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .expect("it starts"),
        )
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[test]
fn f04_processes_that_a_container_claims_are_neither_ended_nor_taken_for_its_own() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let (image, device) = (image(&host), slice(&host, &podman, "tenant", "1GiB"));
    // One of an X server's kind: it has the vendor's library open, outside any slice.
    let library = host.folder().join("libcuda.so.1");
    std::fs::copy("/lib/x86_64-linux-gnu/libm.so.6", &library).expect("copied");
    let graphics = Bystander::start(Command::new("sleep").arg("600").env("LD_PRELOAD", &library));
    let other = Bystander::start(Command::new("sleep").arg("600"));
    let own = std::process::id();
    let pids = [graphics.pid(), other.pid(), own].map(|pid| pid.to_string());
    let attack = format!(
        "exec /bin/attacker forge /run/divvy/slice/attach.sock 3 {} {}",
        pids[0], pids[1]
    );
    let flags = [&HARDENED[..], &["--name", "first", "--device", &device]].concat();
    let forger = Hostile::start(&mut podman.run(&flags, &image, &["/bin/sh", "-c", &attack]));
    assert_eq!(forger.line().as_deref(), Some("forged 3"));
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(7) {
        assert!(
            processes::is_alive(graphics.pid()),
            "the agent ended a process of root's that a container named, after {:?}",
            begin.elapsed()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    let _deleted = finish(&mut host.divvy(["slice", "delete", "tenant", "--yes", "--grace", "1s"]));
    assert!(
        processes::is_alive(other.pid()) && processes::is_alive(graphics.pid()),
        "deleting the slice ended processes of root's that a container named"
    );
    // The attacker's own are the slice's: they end.
    drop(forger);
    let _gone = finish(&mut podman.command(&["rm", "--all", "--force", "--time", "0"]));
}

#[test]
fn f04_a_container_that_claims_an_ancestor_of_roots_shell_stops_no_admission() {
    let host = Host::new();
    let Some(podman) = Podman::new(&host) else { return };
    let (image, device) = (image(&host), slice(&host, &podman, "tenant", "1GiB"));
    let own = std::process::id().to_string();
    let attack = format!("exec /bin/attacker forge /run/divvy/slice/attach.sock 1 {own}");
    let flags = [&HARDENED[..], &["--device", &device]].concat();
    let forger = Hostile::start(&mut podman.run(&flags, &image, &["/bin/sh", "-c", &attack]));
    assert_eq!(forger.line().as_deref(), Some("forged 1"));
    for words in [
        &["slice", "create", "other", "--memory", "5GiB"][..],
        &["resize", "other", "--memory", "6GiB"],
        &["run", "--memory", "2GiB", "--", "true"],
        &["run", "--slice", "other", "--", "true"],
    ] {
        let output = finish(&mut host.divvy(words.iter().copied()));
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
    }
    let parent = host.json(["inspect", "other"])["parent_id"].clone();
    assert!(
        parent.is_null(),
        "root's slice was put into the container's: {parent}"
    );
    drop(forger);
    let _gone = finish(&mut podman.command(&["rm", "--all", "--force", "--time", "0"]));
}
