//! One device between processes: its memory is one pool, and the dead return theirs.

mod common;

use common::{alone, code, cu, get, memory_info, process, role, start};
use divvy_abi::*;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use tempfile::TempDir;

const GIB: usize = 1 << 30;

/// A process and what it says; its stdout stays open, because it writes more before it ends.
struct Holder {
    process: Child,
    _said: std::io::Lines<BufReader<ChildStdout>>,
}

impl Holder {
    /// Reads lines until one starts with `prefix`; the rest of that line.
    fn says(process: &mut Child, prefix: &str) -> (String, std::io::Lines<BufReader<ChildStdout>>) {
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        for line in lines.by_ref().map_while(Result::ok) {
            // The harness writes the test's name on the same line, before.
            if let Some(at) = line.find(prefix) {
                return (line[at + prefix.len()..].to_owned(), lines);
            }
        }
        let _ = process.kill();
        panic!("the process ended early: {:?}", process.wait());
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Starts a process that takes 3 GiB, and returns when it has.
fn holder(test: &str, run_directory: &str) -> Holder {
    let mut child = process(test, "holder", run_directory)
        .stdout(Stdio::piped())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let (_, said) = Holder::says(&mut child, "holding");
    Holder {
        process: child,
        _said: said,
    }
}

/// The holder's part: takes memory and waits for its stdin to close.
fn hold() {
    start(0);
    let _pointer: CUdeviceptr = get!(cuMemAlloc_v2(3 * GIB));
    println!("holding");
    let _ = std::io::stdin().lines().next();
}

fn used(run_directory: &str) -> divvy_device::Usage {
    // `usage` looks where this process's environment says.
    assert_eq!(std::env::var("DIVVY_RUN_DIR").as_deref(), Ok(run_directory));
    divvy_device::usage(&divvy_device::devices("h100", run_directory.as_ref()).unwrap()[0].id()).unwrap()
}

#[test]
fn memory_is_shared_and_a_killed_holder_returns_it() {
    let test = "memory_is_shared_and_a_killed_holder_returns_it";
    match role().as_deref() {
        Some("holder") => return hold(),
        Some(_) => {}
        None => return alone(test, &[], || {}),
    }
    let directory = std::env::var("DIVVY_RUN_DIR").unwrap();
    start(0);
    let (free, total) = memory_info();
    assert_eq!(free, total);
    let mut first = holder(test, &directory);
    let mut second = holder(test, &directory);
    assert_eq!(
        memory_info().0,
        total - 6 * GIB,
        "what others took is gone from here"
    );
    assert_eq!(
        code!(cuMemAlloc_v2(&mut 0, total - 5 * GIB)),
        CUDA_ERROR_OUT_OF_MEMORY
    );
    let usage = used(&directory);
    assert_eq!(usage.used_bytes, 6 * GIB as u64);
    let mut expected = vec![
        (std::process::id(), 0),
        (first.process.id(), 3 * GIB as u64),
        (second.process.id(), 3 * GIB as u64),
    ];
    expected.sort_unstable();
    let seen: Vec<_> = usage
        .processes
        .iter()
        .map(|process| (process.pid, process.used_bytes))
        .collect();
    assert_eq!(seen, expected);

    first.kill();
    assert_eq!(memory_info().0, total - 3 * GIB, "SIGKILL returned it");
    second.kill();
    // The allocation itself finds what the dead processes left.
    let whole: CUdeviceptr = get!(cuMemAlloc_v2(total - 2 * GIB));
    cu!(cuMemFree_v2(whole));
    assert_eq!(used(&directory).processes.len(), 1);
}

#[test]
fn a_process_that_ends_leaves_nothing() {
    let test = "a_process_that_ends_leaves_nothing";
    match role().as_deref() {
        Some("holder") => return hold(),
        Some(_) => {}
        None => return alone(test, &[], || {}),
    }
    let directory = std::env::var("DIVVY_RUN_DIR").unwrap();
    start(0);
    let (_, total) = memory_info();
    let mut child = holder(test, &directory);
    assert_eq!(memory_info().0, total - 3 * GIB);
    drop(child.process.stdin.take());
    assert!(child.process.wait().unwrap().success());
    assert_eq!(memory_info().0, total);
}

#[test]
fn a_forked_child_has_no_device() {
    alone("a_forked_child_has_no_device", &[], || {
        start(0);
        // SAFETY: the child only calls the driver, whose functions answer before they take any lock there.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut pointer = 0;
            let refused = code!(cuMemAlloc_v2(&raw mut pointer, 1)) == CUDA_ERROR_NOT_INITIALIZED
                && code!(cuInit(0)) == CUDA_ERROR_NOT_INITIALIZED;
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(if refused { 42 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child just made.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(libc::WEXITSTATUS(status), 42);
        let _still_here: CUdeviceptr = get!(cuMemAlloc_v2(1));
    });
}

#[test]
fn processes_that_race_never_take_more_than_there_is() {
    let test = "processes_that_race_never_take_more_than_there_is";
    if role().as_deref() == Some("racer") {
        start(0);
        let mut taken = 0;
        loop {
            let mut pointer = 0;
            match code!(cuMemAlloc_v2(&raw mut pointer, GIB)) {
                CUDA_SUCCESS => taken += 1,
                refusal => {
                    assert_eq!(refusal, CUDA_ERROR_OUT_OF_MEMORY);
                    break;
                }
            }
        }
        println!("took {taken}");
        let _ = std::io::stdin().lines().next();
        return;
    }
    let directory = TempDir::new().unwrap();
    let start = || {
        let mut command = process(test, "racer", directory.path().to_str().unwrap());
        command
            .env("DIVVY_EMULATED", "t4")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut racers: Vec<Child> = (0..4).map(|_| start()).collect();
    let said: Vec<_> = racers
        .iter_mut()
        .map(|racer| Holder::says(racer, "took "))
        .collect();
    let sum: u32 = said.iter().map(|(count, _)| count.parse::<u32>().unwrap()).sum();
    assert_eq!(sum, 15, "a T4 has 15 GiB: all of it was handed out, once");
    for mut racer in racers {
        drop(racer.stdin.take());
        assert!(racer.wait().unwrap().success());
    }
}
