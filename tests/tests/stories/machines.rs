//! Programs in virtual machines that have no device: QEMU plays a machine with Debian's kernel, and its programs use the
//! host's emulated device through memory that both share.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use divvy_tests::machine::Machines;
use divvy_tests::system::System;
use divvy_tests::tenant::Tenant;
use divvy_tests::{MIB, processes, wait};
use rustix::process::Signal;
use serde_json::Value;

use crate::compute::standing;

/// The memory that each machine shares with its host, and into how many parts it is divided.
const SHARED: [&str; 4] = ["--shared-memory", "64MiB", "--programs", "4"];

/// A machine as user alice starts it: a slice with these terms, and the story's programs.
fn start(
    system: &System,
    machines: &Machines,
    name: &str,
    terms: &[&str],
    programs: &[&str],
    story: &str,
) -> Command {
    let folder = system.folder().join(format!("machine-{name}"));
    let words = machines.make(&folder, programs, story);
    let mut command = system.divvy_as(&system.users.alice, ["guest", "run", name, "--memory", "1GiB"]);
    command.args(terms).args(SHARED).arg("--").args(words);
    command
}

/// What a child says on its standard error, line by line.
fn remarks(child: &mut Child) -> Receiver<String> {
    let output = child.stderr.take().expect("it is piped");
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            eprintln!("{line}");
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// The process of the machine of this name.
fn qemu(system: &System, name: &str) -> Option<u32> {
    let ours = processes::with_environment("DIVVY_RUN_DIR", &system.run_directory());
    let folder = format!("machine-{name}/");
    ours.into_iter().find(|pid| {
        let words = processes::arguments(*pid);
        let is_qemu = words
            .first()
            .is_some_and(|word| word.ends_with("qemu-system-x86_64"));
        is_qemu && words.iter().any(|word| word.contains(&folder))
    })
}

/// Nothing is left of machines on this host: no process, no slice, no worker, no socket.
fn nothing_is_left(system: &System) {
    wait::until("slices and workers are gone", || {
        system.slices().is_empty().then_some(())
    });
    wait::until("no process serves", || {
        let ours = processes::with_environment("DIVVY_RUN_DIR", &system.run_directory());
        let serves = |pid: &u32| {
            let words = processes::arguments(*pid);
            words
                .first()
                .is_some_and(|word| word.contains("divvy-worker") || word.contains("qemu"))
                || words.get(1).is_some_and(|word| word == "guest")
        };
        (!ours.iter().any(serves)).then_some(())
    });
    let sockets = std::fs::read_to_string("/proc/net/unix").expect("the kernel's sockets");
    assert!(!sockets.contains("divvy-guest-"), "{sockets}");
}

/// An unmodified program of a user's who is not root, in a machine without a device, by the three paths of copies.
#[test]
fn a_program_in_a_machine_computes_by_each_path() {
    let (Some(machines), Some(system)) = (Machines::new(), System::new()) else {
        return;
    };
    let story = "
transfers pageable 3000000
transfers pinned 3000000 2000
transfers pinned 6000000
rust-client --json --allocate 2GiB --job saxpy
";
    let terms = ["--pinned-memory", "4MiB"];
    let programs = ["transfers", "rust-client"];
    let mut command = start(&system, &machines, "one", &terms, &programs, story);
    let mut machine = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let remarks = remarks(&mut machine);
    let output = machine.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).expect("text");
    let said: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {said}")))
        .collect();
    assert_eq!(said.len(), 4, "{said:?}");
    for transfer in &said[..3] {
        assert_eq!(transfer["right"], true, "{transfer}");
    }
    eprintln!("a round trip under TCG: {} ns", said[1]["call_ns"]);
    // The slice's memory is the machine's device.
    assert_eq!(
        said[3]["memory_total_bytes"].as_u64(),
        Some(1024 * MIB),
        "{}",
        said[3]
    );
    assert_eq!(
        said[3]["allocation"]["error"], "CUDA_ERROR_OUT_OF_MEMORY",
        "{}",
        said[3]
    );
    assert_eq!(said[3]["jobs"][0]["correct"], true, "{}", said[3]);
    // What the workers counted: there and back, twice, none, and once.
    let ended: Vec<String> = remarks.iter().filter(|line| line.contains("has ended")).collect();
    for (line, copied) in ended.iter().zip([
        "6000000 bytes copied, 2.00 copies of each",
        "6000000 bytes copied, 0.00 copies of each",
        "12000000 bytes copied, 1.00 copies of each",
    ]) {
        assert!(line.ends_with(copied), "{line}: {copied}");
    }
    assert_eq!(ended.len(), 4, "{ended:?}");
    nothing_is_left(&system);
    system.holds();
}

/// Two machines at once on one device, each with its share; while one is suspended the other has all.
#[test]
fn two_machines_share_a_device_and_a_suspended_one_holds_nothing_up() {
    let (Some(machines), Some(system)) = (
        Machines::new(),
        System::with(&[("DIVVY_EMULATED", "h100,timing=model")]),
    ) else {
        return;
    };
    let spinning = |name: &str, share: &str| {
        let terms = ["--compute", share];
        let story = "exec spinner 20000";
        Tenant::start_in_container(start(&system, &machines, name, &terms, &["spinner"], story))
    };
    let _tenants = [spinning("small", "30%"), spinning("large", "70%")];
    let uses = |name: &str| standing(&system, name)["used_1s_ratio"].as_f64();
    wait::until("each has had its share for a second", || {
        let [small, large] = [uses("small")?, uses("large")?];
        ((small - 0.3).abs() < 0.06 && (large - 0.7).abs() < 0.06).then_some(())
    });
    let suspended = qemu(&system, "small").expect("it runs");
    processes::signal(suspended, Signal::STOP);
    wait::until("the other has nearly all", || {
        (uses("large")? > 0.85).then_some(())
    });
    processes::signal(suspended, Signal::CONT);
    wait::until("it goes on", || (uses("small")? > 0.24).then_some(()));
}

/// A machine is killed at a moment of no one's choice, a few times: `DIVVY_TEST_KILLS` says how often.
#[test]
fn a_killed_machine_leaves_nothing() {
    let (Some(machines), Some(system)) = (Machines::new(), System::new()) else {
        return;
    };
    let kills = std::env::var("DIVVY_TEST_KILLS").map_or(2, |count| count.parse().expect("a number"));
    let story = "while true; do transfers pageable 3000000; done";
    let mut moments = Vec::new();
    for number in 0..kills {
        let mut command = start(&system, &machines, "killed", &[], &["transfers"], story);
        let mut machine = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let remarks = remarks(&mut machine);
        let pid = wait::until("it runs", || qemu(&system, "killed"));
        // It is in the boot, at the greeting, in a copy, or at the end of a program.
        let random = u64::from(std::process::id()) * 2_654_435_761 + number * 7_919;
        let moment = [
            None,
            Some("broker is there"),
            Some("is served"),
            Some("has ended"),
        ][((random >> 8) % 4) as usize];
        if let Some(moment) = moment {
            let mut said = remarks.iter();
            assert!(said.any(|line| line.contains(moment)), "it ended before {moment}");
        }
        std::thread::sleep(Duration::from_millis(random % 400));
        processes::signal(pid, Signal::KILL);
        let status = wait::until("divvy ends", || machine.try_wait().expect("a child"));
        assert_eq!(status.code(), Some(137));
        moments.push((moment, random % 400));
        nothing_is_left(&system);
    }
    eprintln!("killed at {moments:?}");
    system.holds();
}
