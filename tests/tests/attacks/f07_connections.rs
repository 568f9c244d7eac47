//! F7. Seen on the old code: a user who is not even admitted opened 1,100 connections and said half a request on each.
//! The agent had no descriptor left: it answered no request, and took every process that it could no longer look at for
//! dead. So slices were deleted whose lifetime anchors lived.
//!
//! F16. Seen on the old code, with more descriptors: silent connections were kept for ever, 150 MB of them.

use std::time::Duration;

use divvy_tests::host::{finish, stderr};
use divvy_tests::hostile::Hostile;
use divvy_tests::processes;
use divvy_tests::system::System;
use divvy_tests::wait::until;

const HALF: &str = "GET /v1/status HTTP/1.1\r\nHost: ";

#[test]
fn f07_half_open_connections_silence_no_other_user_and_end_no_slice() {
    let Some(system) = System::new() else { return };
    let attended = |user: Option<&divvy_tests::users::User>, name: &str| {
        let mut command = match user {
            Some(user) => system.attacker_as(user, ["attend", name]),
            None => system.command(system.program("attacker")),
        };
        if user.is_none() {
            command.args(["attend", name]);
        }
        let anchor = Hostile::start(&mut command);
        assert_eq!(anchor.line().as_deref(), Some("attends"));
        anchor
    };
    let kept = [attended(None, "roots"), attended(Some(&system.users.bob), "bobs")];
    let mut flood = system.attacker_as(&system.users.mallory, ["connections", "1100"]);
    let flood = Hostile::start(flood.arg(HALF));
    println!("{}", flood.line().unwrap_or_default());
    std::thread::sleep(Duration::from_secs(2));
    let (root, bob) = (
        system.answers_root(Duration::from_secs(5)),
        system.answers(&system.users.bob, Duration::from_secs(5)),
    );
    drop(flood);
    until("it answers again", || {
        system.answers_root(Duration::from_secs(5)).then_some(())
    });
    let names: Vec<String> = system.slices().into_iter().map(|slice| slice.name).collect();
    for name in ["roots", "bobs"] {
        assert!(
            names.iter().any(|there| there == name),
            "slice {name} was deleted, and its lifetime anchor lives: {names:?}"
        );
    }
    assert!(root && bob, "the agent answered root: {root}, bob: {bob}");
    drop(kept);
    system.holds();
}

/// The same at the sockets beside the API's: where a `divvy run` fetches its own, and where programs join a slice. Seen while
/// these had no bound for each user: every new `divvy run` ended after two seconds, and so did each program of a slice.
#[test]
fn f07_silent_connections_at_the_other_sockets_keep_no_program_from_its_slice() {
    let Some(system) = System::new() else { return };
    let id = system.slice_of(&system.users.bob, "own", "1GiB");
    let sockets = [
        system.run_directory().join("keep.sock"),
        system.slice_folder(&id).join("attach.sock"),
    ];
    let floods = sockets.map(|socket| {
        let mut flood = system.attacker_as(&system.users.mallory, ["silent"]);
        let flood = Hostile::start(flood.arg(socket).arg("400"));
        assert_eq!(flood.line().as_deref(), Some("400 silent"));
        flood
    });
    let bob = &system.users.bob;
    let ran = finish(&mut system.divvy_as(bob, ["run", "--memory", "64MiB", "--", "true"]));
    assert!(ran.status.success(), "a new run: {}", stderr(&ran));
    let limit = system.limit_seen_by(bob, &id);
    assert_eq!(limit, 1 << 30, "a program that joins");
    drop(floods);
    system.holds();
}

#[test]
fn f16_silent_connections_are_not_kept() {
    const MANY: usize = 3000;
    let Some(system) = System::new() else { return };
    // As a service with a higher limit would have it.
    let mut raise = std::process::Command::new("prlimit");
    raise
        .arg(format!("--pid={}", system.agent_pid()))
        .arg("--nofile=20000:20000");
    let _raised = raise.status();
    let before = processes::descriptors(system.agent_pid());
    let mut flood = system.attacker_as(&system.users.mallory, ["connections", &MANY.to_string()]);
    let flood = Hostile::start(flood.arg(""));
    println!("{}", flood.line().unwrap_or_default());
    std::thread::sleep(Duration::from_secs(2));
    let open: usize = system.agent_tree().into_iter().map(processes::descriptors).sum();
    println!("{before} descriptors before, {open} then");
    assert!(
        open < 600,
        "the agent keeps {open} descriptors for one silent user"
    );
    assert!(system.answers(&system.users.bob, Duration::from_secs(5)));
    drop(flood);
    system.holds();
}
