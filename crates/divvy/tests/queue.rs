//! `divvy run --wait`: first come, first served, also when a waiting run dies.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use common::{Host, kill, until};

/// A run that waits, and what it says of its place.
struct Waiter {
    child: Child,
    said: Receiver<String>,
}

impl Waiter {
    fn start(host: &Host, name: &str, memory: &str) -> Self {
        let mut child = host
            .divvy(&[
                "run", "--wait", "--name", name, "--memory", memory, "--", "sleep", "600",
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("divvy starts");
        let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let (sender, said) = channel();
        // A thread, because a read from a pipe cannot be given up after a while.
        std::thread::spawn(move || {
            let _unheard = lines.map_while(Result::ok).try_for_each(|line| sender.send(line));
        });
        Self { child, said }
    }

    /// The next thing it says.
    fn line(&mut self) -> String {
        let timeout = Duration::from_secs(60);
        self.said.recv_timeout(timeout).expect("it says something more")
    }

    /// Reads on until it says this.
    fn hears(&mut self, what: &str) {
        while !self.line().contains(what) {}
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn names(host: &Host) -> Vec<String> {
    let slices = host.slices();
    let names = slices
        .iter()
        .map(|slice| slice["name"].as_str().expect("a name").to_owned());
    // Admitted within one second, their order in the list says nothing.
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn first_come_first_served_and_no_request_overtakes() {
    let host = Host::new();
    let holder = host.idle("holder", "60GiB");
    let mut first = Waiter::start(&host, "first", "50GiB");
    let line = first.line();
    assert!(line.contains("place 1 of 1: cannot reserve 50 GiB"), "{line}");
    assert!(line.contains("slice holder holds 60 GiB"), "{line}");
    let mut second = Waiter::start(&host, "second", "1GiB");
    second.hears("place 2 of 2");

    // There is space for it, and it is another run's turn.
    let (status, said) = host.refused(&["run", "--memory", "1GiB", "--", "true"]);
    assert_eq!(status, 125);
    assert!(
        said.contains("error[D0012]") && said.contains("2 runs wait"),
        "{said}"
    );

    drop(holder);
    until("both are served", || names(&host) == ["first", "second"]);
    host.text(&["run", "--memory", "1GiB", "--", "true"]);
}

#[test]
fn who_gives_up_or_dies_has_no_place() {
    let host = Host::new();
    let _holder = host.idle("holder", "60GiB");
    let mut first = Waiter::start(&host, "first", "50GiB");
    first.hears("place 1 of 1");
    let mut second = Waiter::start(&host, "second", "50GiB");
    second.hears("place 2 of 2");
    let mut third = Waiter::start(&host, "third", "1GiB");
    third.hears("place 3 of 3");
    // As Ctrl-C does.
    kill(first.child.id(), "INT");
    assert_eq!(
        first.child.wait().expect("ended").code(),
        None,
        "ended by the signal"
    );
    second.hears("place 1 of 2");
    kill(second.child.id(), "KILL");
    until("the third is served", || names(&host) == ["holder", "third"]);
}

#[test]
fn the_time_may_be_limited() {
    let host = Host::new();
    let _holder = host.idle("holder", "60GiB");
    let (status, said) = host.refused(&["run", "--wait=200ms", "--memory", "50GiB", "--", "true"]);
    assert_eq!(status, 125);
    assert!(
        said.contains("error[D0019]") && said.contains("slice holder holds 60 GiB"),
        "{said}"
    );
    // A request that waiting does not help is refused at once.
    let (_, said) = host.refused(&["run", "--wait", "--memory", "500GiB", "--", "true"]);
    assert!(said.contains("error[D0013]"), "{said}");
    // And who need not wait does not.
    let output = host.finish(&["run", "--wait", "--memory", "1GiB", "--", "true"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn the_next_agent_finds_everybody_in_place() {
    let host = Host::new();
    let holder = host.idle("holder", "60GiB");
    let mut first = Waiter::start(&host, "first", "50GiB");
    first.hears("place 1 of 1");
    let mut second = Waiter::start(&host, "second", "50GiB");
    second.hears("place 2 of 2");
    for _ in 0..2 {
        host.kill_agent();
        // The waiters start the next one.
        until("an agent", || host.finish(&["agent", "status"]).status.success());
    }
    let mut third = Waiter::start(&host, "third", "50GiB");
    third.hears("place 3 of 3");
    drop(holder);
    until("the first is served", || names(&host) == ["first"]);
    drop(first);
    until("the second is served", || names(&host) == ["second"]);
    drop(second);
    until("the third is served", || names(&host) == ["third"]);
}

/// How a run that can never be admitted is refused, though it would wait. The bound is for when it waits all the same.
fn never(host: &Host, words: &[&str]) -> String {
    let (status, said) = host.refused(&[&["run", "--wait=20s"][..], words, &["--", "true"]].concat());
    assert_eq!(status, 125, "{said}");
    assert!(!said.contains("D0019") && !said.contains("place 1"), "{said}");
    said
}

/// Settings that the agent takes over from the command that starts it.
fn start_agent(host: &Host, settings: &[(&str, &str)], specification: &str) {
    let mut command = host.divvy(&["slice", "create", "first", "--memory", "6GiB"]);
    command.envs(settings.iter().copied());
    command.env("DIVVY_EMULATED", specification);
    let output = command.output().expect("divvy starts");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn what_exceeds_the_quota_itself_never_waits() {
    let host = Host::new();
    start_agent(&host, &[("DIVVY_USER_MEMORY", "8GiB")], "h100");
    let said = never(&host, &["--memory", "9GiB"]);
    assert!(
        said.contains("error[D0035]: 9 GiB is more than all slices of"),
        "{said}"
    );
    assert!(
        said.contains("hint: ask for at most 8589934592 B (8 GiB)"),
        "{said}"
    );
    let said = never(&host, &["--whole"]);
    assert!(said.contains("error[D0035]"), "{said}");
    // Memory that others hold does not count, for a run itself and for those behind it.
    let mut waiter = Waiter::start(&host, "waiter", "8GiB");
    waiter.hears("place 1 of 1: cannot reserve 8 GiB");
    assert!(
        never(&host, &["--memory", "9GiB"]).contains("error[D0035]"),
        "not behind the waiter"
    );
    host.text(&["slice", "delete", "first"]);
    until("it is served", || names(&host) == ["waiter"]);
}

#[test]
fn a_quota_that_was_lowered_ends_the_wait() {
    let host = Host::new();
    start_agent(&host, &[("DIVVY_USER_MEMORY", "8GiB")], "h100");
    let mut waiter = Waiter::start(&host, "waiter", "7GiB");
    waiter.hears("place 1 of 1: cannot reserve 7 GiB");
    // The next one is started by the first command that asks: with the quota of the configuration.
    let folder = host.folder().join("config/divvy");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("config.toml"), "user_memory = \"7167MiB\"\n").expect("written");
    host.kill_agent();
    waiter.hears("error[D0035]");
}
