//! Devices of other hosts: a server that is one user's, and programs of another user's, over the loopback interface.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use divvy_tests::host::{finish, stderr, succeeded};
use divvy_tests::system::System;
use divvy_tests::tenant::Tenant;
use divvy_tests::users::User;
use divvy_tests::{MIB, processes, wait};
use rustix::process::Signal;

/// `divvy remote serve` of a user's.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(system: &System, user: &User, memory: &str) -> Self {
        let words = [
            "remote",
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--memory",
            memory,
            "--compute",
            "70%",
        ];
        let mut child = system
            .divvy_as(user, words)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut said = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let address = loop {
            let line = said.next().expect("it says where it listens").expect("text");
            if let Some((_, address)) = line.split_once("serving at ") {
                break address.to_owned();
            }
        };
        std::thread::spawn(move || said.for_each(drop));
        Self { child, address }
    }

    /// A user of another host is invited, and joins.
    fn admit(&self, system: &System, server: &User, client: &User, name: &str) {
        self.admit_to(system, server, client, &[name]);
    }

    /// The same, with the words of `divvy remote invite`.
    fn admit_to(&self, system: &System, server: &User, client: &User, words: &[&str]) {
        let invited = succeeded(&finish(system.divvy_as(server, ["remote", "invite"]).args(words)));
        let file = client.home.join("invitation");
        fs::write(&file, invited).expect("a file");
        std::os::unix::fs::chown(&file, Some(client.uid), None).expect("root may");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("root may");
        let path = file.to_string_lossy();
        let join = ["remote", "join", &self.address, &path];
        succeeded(&finish(&mut system.divvy_as(client, join)));
    }

    fn run(&self, system: &System, user: &User, words: &[&str]) -> Command {
        let device = format!("tcp://{}/0", self.address);
        let mut command = system.divvy_as(user, ["run", "--device", &device]);
        // The program's host has no agent and no device that it could fall back on.
        command.args(words).arg("--").env_remove("DIVVY_EMULATED");
        command
    }

    fn probe(&self, system: &System, user: &User, words: &[&str]) -> Tenant {
        let mut command = self.run(system, user, words);
        command.arg(system.program("probe"));
        Tenant::start(command)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        processes::signal(self.child.id(), Signal::TERM);
        let _ended = self.child.wait();
    }
}

fn no_slices(system: &System) {
    wait::until("all slices are gone", || system.slices().is_empty().then_some(()));
}

#[test]
fn programs_use_parts_of_another_hosts_device_and_leave_nothing() {
    let Some(system) = System::new() else { return };
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    let server = Server::start(&system, alice, "2GiB");
    let refused = finish(server.run(&system, bob, &["--memory", "1GiB"]).arg("true"));
    assert!(!refused.status.success());
    assert!(stderr(&refused).contains("has no invitation"), "{refused:?}");
    server.admit(&system, alice, bob, "laptop");
    let list = ["remote", "list", &server.address];
    assert!(succeeded(&finish(&mut system.divvy_as(bob, list))).contains("GPU-"));

    let mut first = server.probe(&system, bob, &["--memory", "1GiB", "--compute", "30%"]);
    // More than the server gives.
    let mut second = server.probe(&system, bob, &["--memory", "40GiB", "--compute", "70%"]);
    assert_eq!(first.memory().1, 1024 * MIB);
    assert_eq!(second.memory().1, 2048 * MIB);
    assert_eq!(first.allocate(900 * MIB), Ok(()));
    assert_eq!(
        first.allocate(200 * MIB),
        Err("CUDA_ERROR_OUT_OF_MEMORY".to_owned())
    );
    assert!(first.copies() && second.copies());
    let slices = system.slices();
    assert_eq!(slices.len(), 2);
    assert!(
        slices
            .iter()
            .all(|slice| slice.name.starts_with("remote-laptop-")),
        "{slices:?}"
    );
    // A client that is killed leaves nothing, and the other one does not notice.
    processes::signal(first.page_server(), Signal::KILL);
    wait::until("its slice is gone", || (system.slices().len() == 1).then_some(()));
    assert!(second.copies());
    assert!(second.end().success());
    no_slices(&system);

    // A server that is killed ends the device of its clients.
    let mut third = server.probe(&system, bob, &["--memory", "1GiB"]);
    assert_eq!(third.allocate(MIB), Ok(()));
    processes::signal(server.child.id(), Signal::KILL);
    wait::until("the device is gone", || {
        (third.allocate(MIB) == Err("CUDA_ERROR_DEVICE_UNAVAILABLE".to_owned())).then_some(())
    });
    no_slices(&system);
    drop(first);
    drop(third);
    system.holds();
}

#[test]
fn all_runs_of_a_client_together_have_no_more_than_its_invitation() {
    let Some(system) = System::new() else { return };
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    let server = Server::start(&system, alice, "2GiB");
    server.admit_to(
        &system,
        alice,
        bob,
        &["laptop", "--memory", "3GiB", "--compute", "60%"],
    );
    let most = ["--memory", "2GiB", "--compute", "30%"];
    let first = server.probe(&system, bob, &most);
    let refused = finish(server.run(&system, bob, &most).arg("true"));
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(stderr(&refused).contains("D0096"), "{}", stderr(&refused));
    // What is left, for a run that names nothing.
    let mut rest = server.probe(&system, bob, &[]);
    assert_eq!(rest.memory().1, 1024 * MIB);
    assert!(first.end().success());
    let mut waits = server.probe(
        &system,
        bob,
        &["--memory", "2GiB", "--compute", "30%", "--wait=20s"],
    );
    assert_eq!(waits.memory().1, 2048 * MIB);
    assert!(waits.end().success() && rest.end().success());
    no_slices(&system);
    drop(server);
    system.holds();
}

/// A run that waits for what its invitation lacks begins when the invitation is changed, while the run before it goes on.
#[test]
fn a_run_that_waits_has_the_amounts_of_a_new_invitation() {
    let Some(system) = System::new() else { return };
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    let server = Server::start(&system, alice, "2GiB");
    server.admit_to(&system, alice, bob, &["laptop", "--memory", "2GiB"]);
    let words = ["--memory", "2GiB", "--compute", "30%"];
    let mut first = server.probe(&system, bob, &words);
    let mut waits = server.run(&system, bob, &[&["--wait"], &words[..]].concat());
    let mut waits = waits
        .arg(system.program("transfers"))
        .args(["pageable", "1048576"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut said = BufReader::new(waits.stderr.take().expect("it is piped")).lines();
    let line = said.next().expect("it says that it waits").expect("text");
    assert!(line.contains("waiting for a slice"), "{line}");
    assert_eq!(system.slices().len(), 1);
    // Not enough yet, and then enough.
    for (memory, is_enough) in [("3GiB", false), ("4GiB", true)] {
        server.admit_to(&system, alice, bob, &["laptop", "--memory", memory]);
        if !is_enough {
            assert!(waits.try_wait().expect("a child").is_none());
        }
    }
    let ended = waits.wait_with_output().expect("a child");
    assert!(ended.status.success(), "{ended:?} {:?}", said.collect::<Vec<_>>());
    assert!(
        String::from_utf8_lossy(&ended.stdout).contains("\"right\":true"),
        "{ended:?}"
    );
    assert!(first.copies(), "the one before it");
    assert!(first.end().success());
    no_slices(&system);
    drop(server);
    system.holds();
}

#[test]
fn a_client_waits_in_the_servers_queue_and_hears_why_there_is_no_room() {
    let Some(system) = System::new() else { return };
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    let server = Server::start(&system, alice, "60GiB");
    server.admit(&system, alice, bob, "laptop");
    let words = ["--memory", "60GiB"];
    let first = server.probe(&system, bob, &words);
    let full = finish(server.run(&system, bob, &words).arg("true"));
    assert_eq!(full.status.code(), Some(125), "{full:?}");
    assert!(
        stderr(&full).contains("error[D"),
        "the server's own reason: {full:?}"
    );
    let mut waits = server.run(&system, bob, &["--wait", "--memory", "60GiB"]);
    let mut waits = waits
        .arg("true")
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut said = BufReader::new(waits.stderr.take().expect("it is piped")).lines();
    let line = said.next().expect("it says that it waits").expect("text");
    assert!(line.contains("waiting for a slice"), "{line}");
    assert!(waits.try_wait().expect("a child").is_none());
    assert!(first.end().success());
    assert!(waits.wait().expect("a child").success());
    no_slices(&system);
    system.holds();
}
