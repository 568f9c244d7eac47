//! F15. Seen on the old code: a ledger with 2,000 made-up numbers of processes cost the agent a quarter of a core, and each
//! `divvy ps` half a second, all under the lock that every request takes.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use divvy_tests::clients::strace;
use divvy_tests::hostile::Hostile;
use divvy_tests::processes;
use divvy_tests::system::System;
use divvy_tests::wait::until;

/// So many of the agent's ticks are counted.
const TICKS: usize = 30;
/// Looks at a slice in one tick, at most: the tick's own, and once a second the auditor's.
const LOOKS: usize = 6;
/// Questions about the locks of a ledger in one look: 128 for the dead, 128 for the living, the turn, and a few again.
const LOCKS: usize = 128 + 128 + 2 + 8;
/// Files of /proc that one look opens: two for each of 64 numbers, in two spans where a look meets two of them.
const FILES: usize = 2 * 64 * 2;

/// What the agent's ticks ask the system.
#[derive(Debug, Default)]
struct Work {
    ticks: usize,
    locks: usize,
    files: usize,
}

impl Work {
    fn of(trace: &Path) -> Self {
        let text = std::fs::read_to_string(trace).unwrap_or_default();
        let count = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
        Self {
            ticks: count("clock_nanosleep("),
            locks: count("fcntl("),
            files: count("openat("),
        }
    }
}

/// The thread of the agent that looks at all slices ten times a second.
fn ticker(agent: u32) -> u32 {
    let tasks = std::fs::read_dir(format!("/proc/{agent}/task")).expect("it lives");
    let named = tasks.flatten().find(|task| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "ticks")
    });
    let name = named.expect("it has one").file_name();
    name.to_string_lossy().parse().expect("a number")
}

#[test]
fn f15_a_crowd_that_is_not_there_costs_the_others_nothing() {
    let Some(strace) = strace() else { return };
    let Some(system) = System::new() else { return };
    let alice = &system.users.alice;
    let id = system.slice_of(alice, "own", "1GiB");
    let work = |name: &str| {
        let trace = system.folder().join(name);
        let mut watch = Command::new(&strace);
        watch
            .args(["-qq", "-e", "trace=clock_nanosleep,fcntl,openat", "-o"])
            .arg(&trace)
            .arg(format!("--attach={}", ticker(system.agent_pid())));
        let watch = Hostile::start(watch.stderr(Stdio::null()));
        let work = until("the agent has looked often enough", || {
            Some(Work::of(&trace)).filter(|work| work.ticks >= TICKS)
        });
        drop(watch);
        work
    };
    let used = || -> u64 { system.agent_tree().into_iter().map(processes::ticks).sum() };
    let honest = work("honest");
    let mut forge = system.attacker_as(alice, ["forge"]);
    let forger = Hostile::start(
        forge
            .arg(system.slice_folder(&id).join("attach.sock"))
            .arg("1000"),
    );
    assert_eq!(forger.line().as_deref(), Some("forged 1000"));
    let before = used();
    let hostile = work("hostile");
    println!(
        "{honest:?}, then {hostile:?}, {} ticks of the processor",
        used() - before
    );
    assert!(
        hostile.locks > honest.locks,
        "its crowd was looked at: {hostile:?}"
    );
    assert!(
        hostile.locks <= hostile.ticks * LOOKS * LOCKS / 2,
        "questions about the crowd: {hostile:?}"
    );
    assert!(
        hostile.files <= hostile.ticks * LOOKS * FILES / 2,
        "files of /proc: {hostile:?}"
    );
    assert!(system.answers(&system.users.bob, Duration::from_secs(20)));
    drop(forger);
    system.holds();
}
