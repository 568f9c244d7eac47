//! Programs in supervised slices that set out to have more than their slice. Each is judged by the device's own figures.
//!
//! Most attackers reach the emulated device by its driver's library, without the limiter. The agent cannot tell how a
//! program does that, because it asks the device and not the program.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use divvy_device::usage_in;
use divvy_tests::MIB;
use divvy_tests::build::binaries;
use divvy_tests::clients::{compiler, probe, python_tenant, spinner, system_python};
use divvy_tests::containers::{Podman, goes_below, static_tenant};
use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::system::System;
use divvy_tests::tenant::Tenant;
use divvy_tests::wait::until;
use rustix::process::Signal;
use serde_json::json;

use crate::compute::{DEVICE, MS, busy, engine, had, spinning};
use crate::containers::image;

/// The slice's memory.
const LIMIT: u64 = 1024 * MIB;
/// What its driver may hold beside that.
const ALLOWED: u64 = LIMIT / 8;

/// A slice of 1 GiB that is supervised, with more words, and a program that nothing else ends.
fn supervised(host: &Host, name: &str, words: &[&str]) -> Command {
    let mut command = host.divvy([
        "run",
        "--name",
        name,
        "--memory",
        "1GiB",
        "--isolation",
        "supervised",
    ]);
    command.args(["--policy", "best-effort"]).args(words).arg("--");
    command
}

/// The folder of the emulated driver under the name of NVIDIA's, with no limiter before it.
fn driver(host: &Host) -> PathBuf {
    let folder = host.folder().join("driver");
    if !folder.exists() {
        std::fs::create_dir(&folder).expect("made");
        let driver = binaries().join("libdivvy_emulated_cuda.so");
        std::os::unix::fs::symlink(driver, folder.join("libcuda.so.1")).expect("linked");
    }
    folder
}

/// As a static program is: neither preloaded nor linked with the limiter.
fn bare(command: &mut Command, host: &Host) {
    let path = format!("LD_LIBRARY_PATH={}", driver(host).display());
    command.args(["env", "-u", "LD_PRELOAD", "-u", "DIVVY_SLICE", &path]);
}

/// The memory of all processes on the host's device but `others`, by the device's own account.
fn held(host: &Host, others: &[u32]) -> u64 {
    let directory = host.run_directory();
    let device = divvy_device::devices("h100", &directory).expect("a device")[0].uuid;
    let usage = usage_in(&directory, &device.to_string()).expect("the device's page");
    let processes = usage.processes.iter();
    processes
        .filter(|process| !others.contains(&process.pid))
        .map(|process| process.used_bytes)
        .sum()
}

/// How long it is from one look at the device to the next at most, unless the machine stands still or is busy with others.
const PAUSE: Duration = Duration::from_millis(8);

/// Looks at the device for so long. Returns the longest time on end for which more than the slice's memory was held, and
/// the most that was. A machine that others share stands still or is slow at times, for the supervisor as for this: that does
/// not count, so on a busy machine this is an estimate from below. The second by the clock is shown by the supervisor's own tests.
fn longest_beyond(host: &Host, others: &[u32], seconds: u64) -> (Duration, u64) {
    let begin = Instant::now();
    let (mut longest, mut beyond, mut most) = (Duration::ZERO, Duration::ZERO, 0);
    let mut before = begin;
    while begin.elapsed() < Duration::from_secs(seconds) {
        let held = held(host, others);
        most = most.max(held);
        let now = Instant::now();
        if held > LIMIT + ALLOWED {
            beyond += (now - before).min(PAUSE);
            longest = longest.max(beyond);
        } else {
            beyond = Duration::ZERO;
        }
        before = now;
        std::thread::sleep(Duration::from_millis(5));
    }
    (longest, most)
}

/// Runs the attacker beside an honest program for some seconds. Neither is it beyond its memory for long, nor does the
/// other notice anything.
fn holds_no_more(host: &Host, mut attacker: Command, seconds: u64) {
    let mut honest = host.probe("honest", "1GiB");
    assert_eq!(honest.allocate(600 * MIB), Ok(()));
    let mut child = attacker
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("started");
    let input = child.stdin.take();
    let (longest, most) = longest_beyond(host, &[honest.pid()], seconds);
    assert!(most > LIMIT + ALLOWED, "it took what it wanted at first: {most}");
    assert!(
        longest < Duration::from_millis(1500),
        "beyond its limit for {longest:?}"
    );
    let left = held(host, &[honest.pid()]);
    assert!(left <= LIMIT + ALLOWED, "{left} bytes are still held");
    let events = succeeded(&finish(&mut host.divvy(["events"])));
    assert!(events.contains("overuse_ended"), "{events}");
    assert!(
        honest.copies() && honest.allocate(300 * MIB).is_ok(),
        "the other goes on"
    );
    assert!(honest.end().success());
    drop(input);
    let _ended = child.kill();
    let _reaped = child.wait();
}

/// The driver under a name of its own.
fn renamed(host: &Host) -> PathBuf {
    let driver = host.folder().join("mathlib.so");
    std::fs::copy(binaries().join("libdivvy_emulated_cuda.so"), &driver).expect("copied");
    driver
}

#[test]
fn a_driver_that_is_opened_by_its_path_holds_no_more_than_the_slice_for_long_and_the_run_says_why_it_ended() {
    let host = Host::new();
    let Some(python) = system_python() else { return };
    let mut command = supervised(&host, "path", &[]);
    command
        .arg(&python)
        .arg(python_tenant())
        .args(["past", "3000"])
        .arg(renamed(&host));
    let mut child = command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("started");
    let input = child.stdin.take();
    let begin = Instant::now();
    let output = child.wait_with_output().expect("ended");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(128 + 9), "{said}");
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    assert!(
        said.contains("error[D0064]: process ")
            && said.contains("beyond its limit of 1 GiB for more than a second"),
        "{said}"
    );
    assert!(said.contains("hint: ask for more with --memory"), "{said}");
    drop(input);

    let mut again = supervised(&host, "again", &[]);
    again
        .arg(&python)
        .arg(python_tenant())
        .args(["past", "3000"])
        .arg(renamed(&host));
    holds_no_more(&host, again, 5);
}

/// It is linked statically: no loader runs, so nothing of ours can be loaded into it, and no driver's library either. It
/// does by itself what that library does in the emulated device's figures.
#[test]
fn a_static_program_holds_no_more_than_its_slice_for_long() {
    let host = Host::new();
    let Some(compiler) = compiler() else { return };
    let program = static_tenant(&host, &compiler);
    let directory = host.run_directory();
    let device = divvy_device::devices("h100", &directory).expect("a device")[0].uuid;
    let mut command = supervised(&host, "static", &[]);
    command.arg(program).arg(directory.join("pages.sock"));
    command.args([&device.to_string(), "3000"]);
    holds_no_more(&host, command, 4);
}

/// Its child has its open files, and so its memory behind its end: the driver names a process that there is no more.
#[test]
fn a_program_that_leaves_its_memory_to_a_child_holds_no_more_than_its_slice_for_long() {
    let host = Host::new();
    let Some(compiler) = compiler() else { return };
    let program = static_tenant(&host, &compiler);
    let directory = host.run_directory();
    let device = divvy_device::devices("h100", &directory).expect("a device")[0].uuid;
    // A shell waits for it: the slice does not end with it.
    let mut command = supervised(&host, "left", &[]);
    command.args(["sh", "-c", "\"$@\"; sleep 60", "sh"]);
    command.arg(program).arg(directory.join("pages.sock"));
    command.args([&device.to_string(), "3000", "leave"]);
    holds_no_more(&host, command, 4);
}

/// Dynamic, and without anything of ours: the driver's library is the first that it loads.
#[test]
fn a_program_without_the_limiter_holds_no_more_than_its_slice_for_long() {
    let host = Host::new();
    let Some(python) = system_python() else { return };
    let mut command = supervised(&host, "bare", &[]);
    bare(&mut command, &host);
    command
        .arg(python)
        .arg(python_tenant())
        .args(["hold", "1000", "1000", "1000"]);
    holds_no_more(&host, command, 5);
}

#[test]
fn a_program_that_replaces_the_drop_in_holds_no_more_than_its_slice_for_long() {
    let host = Host::new();
    let Some(python) = system_python() else { return };
    let mut command = supervised(&host, "replaced", &[]);
    // Its own library in the drop-in's place, which opens the driver by its path.
    let path = format!("LD_PRELOAD={}", driver(&host).join("libcuda.so.1").display());
    command.args(["env", "-u", "LD_LIBRARY_PATH", &path]);
    command
        .arg(python)
        .arg(python_tenant())
        .args(["hold", "1000", "1000", "1000"]);
    holds_no_more(&host, command, 5);
}

#[test]
fn a_program_that_forges_its_ledger_holds_no_more_than_its_slice_for_long() {
    let host = Host::new();
    let Some(python) = system_python() else { return };
    let mut command = supervised(&host, "forged", &[]);
    command.arg(python).arg(python_tenant()).args(["forge", "3000"]);
    holds_no_more(&host, command, 5);
}

#[test]
fn a_program_that_forks_as_it_is_killed_holds_no_more_than_its_slice_for_long() {
    let host = Host::new();
    let Some(python) = system_python() else { return };
    let mut command = supervised(&host, "bred", &[]);
    command
        .arg(python)
        .arg(python_tenant())
        .args(["breed", "3000"])
        .arg(renamed(&host));
    holds_no_more(&host, command, 8);
}

/// The kernel shows it as a process that has ended, because its main thread has.
#[test]
fn a_program_without_its_main_thread_holds_no_more_than_its_slice_for_long() {
    let host = Host::new();
    let Some(python) = system_python() else { return };
    let mut command = supervised(&host, "headless", &[]);
    command
        .arg(python)
        .arg(python_tenant())
        .args(["headless", "3000"])
        .arg(renamed(&host));
    holds_no_more(&host, command, 5);
}

/// Its tracer, in the same slice, never lets it end: it holds its memory until that one is ended too.
#[test]
fn a_program_that_a_tracer_keeps_from_its_end_holds_no_more_than_its_slice_for_long() {
    let host = Host::new();
    let Some(python) = system_python() else { return };
    let mut command = supervised(&host, "traced", &[]);
    command
        .arg(python)
        .arg(python_tenant())
        .args(["traced", "3000"])
        .arg(renamed(&host));
    holds_no_more(&host, command, 5);
    let events = succeeded(&finish(&mut host.divvy(["events"])));
    assert!(events.contains("as a tracer it keeps process"), "{events}");
}

/// Containers are supervised by default. Here the policy lets the program be that goes past the limiter.
#[test]
fn a_container_that_goes_past_the_limiter_holds_no_more_than_its_slice_for_long() {
    let host = Host::new();
    let Some(compiler) = compiler() else { return };
    let Some(podman) = Podman::new(&host) else { return };
    let image = image(&host);
    image.program(&goes_below(&host, &compiler), "/bin/below");
    let words = ["--memory", "1GiB", "--policy", "best-effort"];
    holds_no_more(&host, podman.run_by_divvy(&words, &image, &["/bin/below"]), 6);
    let _gone = finish(&mut podman.command(&["rm", "--all", "--force", "--time", "0"]));
}

/// A user with subordinate numbers (`/etc/subuid`) may have processes of users that are not its own. They are in a user
/// namespace of its own, so it may signal them, and so may the agent's helper in its name.
#[test]
fn a_program_that_becomes_a_subordinate_user_holds_no_more_than_its_slice_for_long() {
    const SUBORDINATE: u32 = 3_000_000;
    let Some(system) = System::new() else { return };
    let Some(python) = system_python() else { return };
    let alice = &system.users.alice;
    let script = system.folder().join("tenant.py");
    std::fs::copy(python_tenant(), &script).expect("copied");
    let mut command = system.divvy_as(alice, ["run", "--name", "subordinate", "--memory", "1GiB"]);
    // The level is the default of the system's agent.
    command.args(["--policy", "best-effort", "--"]);
    command.arg(python).arg(script).args(["subordinate", "3000"]);
    command.arg(system.program("libdivvy_emulated_cuda.so"));
    let (mut tenant, said) = Tenant::start_with_line(command);
    if said["error"] != json!(0) {
        eprintln!("skipped: a user may make no namespace of users here");
        return;
    }
    // As `newuidmap` does for what /etc/subuid has: a subordinate user, and its own.
    for (map, own) in [("uid_map", alice.uid), ("gid_map", alice.gid)] {
        let map = format!("/proc/{}/{map}", tenant.pid());
        std::fs::write(map, format!("0 {SUBORDINATE} 1\n{own} {own} 1\n")).expect("mapped");
    }
    assert_eq!(tenant.ask("")["error"], json!(0), "it takes what it wants");
    let status = std::fs::read_to_string(format!("/proc/{}/status", tenant.pid())).expect("it lives");
    assert!(status.contains(&format!("Uid:\t{SUBORDINATE}\t")), "{status}");
    let (longest, most) = longest_beyond(&system, &[], 3);
    assert!(most > LIMIT + ALLOWED, "it took what it wanted at first: {most}");
    assert!(
        longest < Duration::from_millis(1500),
        "beyond its limit for {longest:?}"
    );
    assert_eq!(tenant.wait().code(), Some(128 + 9));
    system.holds();
}

/// A program that is root's and set-user-id, started by a user: its real user stays the caller, as the kernel has it, so the
/// caller may signal it, and so may the agent's helper in the caller's name.
#[test]
fn a_set_user_id_program_holds_no_more_than_its_callers_slice_for_long() {
    let Some(system) = System::new() else { return };
    let Some(compiler) = compiler() else { return };
    let program = static_tenant(&system, &compiler);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    std::fs::set_permissions(&program, mode).expect("a mode");
    let directory = system.run_directory();
    let device = divvy_device::devices("h100", &directory).expect("a device")[0].uuid;
    let alice = &system.users.alice;
    let mut command = system.divvy_as(alice, ["run", "--name", "raised", "--memory", "1GiB"]);
    // The level is the default of the system's agent.
    command.args(["--policy", "best-effort", "--"]).arg(&program);
    command
        .arg(directory.join("pages.sock"))
        .args([&device.to_string(), "3000"]);
    let mut tenant = Tenant::start(command);
    let status = std::fs::read_to_string(format!("/proc/{}/status", tenant.pid())).expect("it lives");
    if !status.contains(&format!("Uid:\t{}\t0\t0\t", alice.uid)) {
        eprintln!("skipped: set-user-id files count for nothing here (a mount with nosuid)");
        return;
    }
    let (longest, most) = longest_beyond(&system, &[], 3);
    assert!(most > LIMIT + ALLOWED, "it took what it wanted at first: {most}");
    assert!(
        longest < Duration::from_millis(1500),
        "beyond its limit for {longest:?}"
    );
    assert_eq!(tenant.wait().code(), Some(128 + 9));
    system.holds();
}

/// A slice with 30 % of the device and a hard cap, for an attacker that passes the gate.
fn of_thirty(host: &Host) -> Command {
    supervised(host, "thief", &["--compute", "30%", "--cap", "hard"])
}

/// It reaches the device by its driver's library.
#[test]
fn a_program_that_passes_the_gate_has_no_more_than_its_share() {
    let host = Host::with_devices(DEVICE);
    let mut command = of_thirty(&host);
    bare(&mut command, &host);
    command.arg(spinner()).arg("1000");
    has_no_more_than_its_share(&host, || Tenant::start(command));
}

/// It has no library to load: its kernel is in the device's own pages, and never ends.
#[test]
fn a_static_program_has_no_more_than_its_share() {
    let host = Host::with_devices(DEVICE);
    let Some(compiler) = compiler() else { return };
    let program = static_tenant(&host, &compiler);
    let directory = host.run_directory();
    let mut command = of_thirty(&host);
    command.arg(program).arg(directory.join("pages.sock"));
    has_no_more_than_its_share(&host, || {
        let device = divvy_device::devices("h100", &directory).expect("a device")[0].uuid;
        command.args([&device.to_string(), "0", "spin"]);
        Tenant::start(command)
    });
}

/// The attacker on the whole device, beside an honest program of 70 %.
fn has_no_more_than_its_share(host: &Host, start: impl FnOnce() -> Tenant) {
    // Kernels that need a processor seldom: on a busy machine the device has work of both all the same.
    let mut command = host.divvy(["run", "--name", "honest", "--memory", "1GiB", "--compute", "70%"]);
    command.arg("--").arg(spinner()).arg("20000");
    let honest = Tenant::start(command);
    let thief = start();
    let begin = engine(host);
    let mut looks = vec![begin];
    let mut frozen = false;
    while looks.last().expect("one").now_ns - looks[0].now_ns < 12_000 * MS {
        std::thread::sleep(Duration::from_millis(100));
        // A look takes no lock: on a busy machine it may find a process's figures half written.
        let before = busy(looks.last().expect("one"), &thief);
        looks.push(until("its figure is whole", || {
            Some(engine(host)).filter(|look| busy(look, &thief) >= before)
        }));
        if looks.len() % 10 == 0 {
            let list = host.json(["ps"]);
            let items = list["items"].as_array().expect("items");
            let of_thief = items
                .iter()
                .find(|item| item["name"] == "thief")
                .expect("it is there");
            let conditions = of_thief["conditions"].as_array();
            frozen |= conditions.is_some_and(|all| all.contains(&json!("frozen")));
        }
    }
    assert!(frozen, "`divvy ps` says so");
    let mut worst: f64 = 0.0;
    for (at, from) in looks.iter().enumerate() {
        let Some(to) = looks[at..].iter().find(|to| to.now_ns - from.now_ns >= 5000 * MS) else {
            break;
        };
        let part = (busy(to, &thief) - busy(from, &thief)) as f64 / (to.now_ns - from.now_ns) as f64;
        worst = worst.max(part);
    }
    eprintln!("the thief's most in 5 s: {:.1} %", worst * 100.0);
    assert!(worst < 0.32, "{:.1} % of 5 s", worst * 100.0);
    let (first, last) = (&looks[0], looks.last().expect("one"));
    let each = had(first, last, &[&honest, &thief]);
    // Of what was used: for how long the device has work at all depends on the machine.
    let used: u64 = each.iter().sum();
    assert!(each[0] * 100 > used * 60, "the other has its own: {each:?}");
    assert!(each[1] * 100 > used * 10, "and it is not starved: {each:?}");
    let events = succeeded(&finish(&mut host.divvy(["events"])));
    assert!(
        events.contains("frozen") && events.contains("past the gate"),
        "{events}"
    );
    // Nothing of the other's was touched.
    let of_honest = |line: &str| line.contains("honest") && line.contains("frozen");
    assert!(!events.lines().any(of_honest), "{events}");
    thief.signal(Signal::KILL);
    assert!(honest.end().success());
}

/// What it used in all. One that has two of the driver's libraries loaded stands there twice.
fn all_of(look: &divvy_device::EngineUsage, thief: &Tenant) -> u64 {
    let own = look.processes.iter().filter(|one| one.pid == thief.device_pid());
    own.map(|one| one.busy_ns).sum()
}

/// Programs that pass the gate in other ways, all at once, with 15 % of the device each. What they have before the first
/// freeze is not looked at: on a busy machine that comes after seconds, and each has a fifth until then.
#[test]
fn whichever_way_a_program_passes_the_gate_it_has_no_more_than_its_share() {
    let host = Host::with_devices(DEVICE);
    let Some(python) = system_python() else { return };
    // A copy that is written again would end those that have it mapped.
    let library = renamed(&host);
    let ways = ["path", "replaced", "forge", "inflate", "fork", "headless"];
    let thieves: Vec<Tenant> = ways
        .iter()
        .map(|way| {
            let mut command = supervised(&host, way, &["--compute", "15%", "--cap", "hard"]);
            if *way == "replaced" {
                let own = format!("LD_PRELOAD={}", driver(&host).join("libcuda.so.1").display());
                command.args(["env", "-u", "LD_LIBRARY_PATH", &own]);
            }
            command.arg(&python).arg(python_tenant()).arg("spin");
            match *way {
                "replaced" => command.arg("libcuda.so.1"),
                _ => command.arg(&library),
            };
            let (tenant, said) = Tenant::start_with_line({
                command.arg(way);
                command
            });
            assert_eq!(said["error"], json!(0), "{way}");
            tenant
        })
        .collect();
    let mut looks = vec![engine(&host)];
    while looks.last().expect("one").now_ns - looks[0].now_ns < 10_000 * MS {
        std::thread::sleep(Duration::from_millis(100));
        let last = looks.last().expect("one").clone();
        let look = engine(&host);
        // A look takes no lock, and may find a process's figures half written.
        if thieves
            .iter()
            .all(|thief| all_of(&look, thief) >= all_of(&last, thief))
        {
            looks.push(look);
        }
        let left = |thief: &Tenant| PathBuf::from(format!("/proc/{}", thief.pid())).exists();
        if !thieves.iter().all(left) {
            let events = succeeded(&finish(&mut host.divvy(["events"])));
            panic!("each lives on: {events}");
        }
    }
    let events = succeeded(&finish(&mut host.divvy(["events"])));
    for (way, thief) in ways.iter().zip(&thieves) {
        let mut worst: f64 = 0.0;
        let began = looks[0].now_ns;
        let frozen = looks
            .iter()
            .enumerate()
            .filter(|(_, look)| look.now_ns - began >= 4000 * MS);
        for (at, from) in frozen {
            let Some(to) = looks[at..].iter().find(|to| to.now_ns - from.now_ns >= 5000 * MS) else {
                break;
            };
            let part = (all_of(to, thief) - all_of(from, thief)) as f64 / (to.now_ns - from.now_ns) as f64;
            worst = worst.max(part);
        }
        eprintln!("{way}: at most {:.1} % of 5 s", worst * 100.0);
        assert!(worst > 0.01, "{way}: it has something");
        assert!(worst < 0.19, "{way}: {:.1} % of 5 s: {events}", worst * 100.0);
        let is_of_it = |line: &str| line.contains("frozen") && line.contains(way);
        assert!(events.lines().any(is_of_it), "{way}: {events}");
    }
    thieves.iter().for_each(|thief| thief.signal(Signal::KILL));
}

/// It says that it wants the device and that its launches never end, so it never gives a lease back. An honest launch of an
/// hour does the same, and is excused for that. This one stands still when it is stopped.
#[test]
fn a_program_that_says_that_its_launches_never_end_has_no_more_than_its_share() {
    let host = Host::with_devices(DEVICE);
    let Some(python) = system_python() else { return };
    let terms = ["--isolation", "supervised", "--compute", "20%", "--cap", "hard"];
    let honest = spinning(&host, "honest", &terms);
    let mut command = supervised(&host, "endless", &["--compute", "20%", "--cap", "hard"]);
    command.arg(&python).arg(python_tenant()).arg("spin");
    command.arg(renamed(&host)).arg("endless");
    let (mut thief, said) = Tenant::start_with_line(command);
    assert_eq!(said["error"], json!(0));
    let from = engine(&host);
    let events = || succeeded(&finish(&mut host.divvy(["events"])));
    let told = "reports launches in flight: none was";
    until("its word is found to be untrue", || {
        events().contains(told).then_some(())
    });
    // The longest that it may be excused, and then it pays all of that back.
    let frozen = engine(&host);
    let before = all_of(&frozen, &thief) - all_of(&from, &thief);
    let share = (frozen.now_ns - from.now_ns) / 5;
    eprintln!("before: {} ms, where {} are its share", before / MS, share / MS);
    assert!(before > share + 2000 * MS, "it passes the gate");
    let later = until("eight seconds are over", || {
        Some(engine(&host)).filter(|now| now.now_ns - frozen.now_ns > 8000 * MS)
    });
    let of_honest = busy(&later, &honest) - busy(&frozen, &honest);
    let each = [of_honest, all_of(&later, &thief) - all_of(&frozen, &thief)];
    let time = later.now_ns - frozen.now_ns;
    eprintln!("behind that: {each:?} of {time} ns");
    assert!(each[1] * 100 < time * 22, "{each:?} of {time} ns: {}", events());
    assert!(each[0] > 0, "the other goes on");
    let of_honest = |line: &str| line.contains("honest") && line.contains("frozen");
    let events = events();
    assert!(!events.lines().any(of_honest), "{events}");
    assert!(!events.contains("overuse_ended"), "{events}");
    thief.signal(Signal::KILL);
    thief.wait();
    assert!(honest.end().success());
}

/// Another process of the user's, in no slice, undoes each stop at once. That ends the program, though the slice is only to
/// be frozen.
#[test]
fn a_program_that_does_not_stand_still_is_ended_under_freeze_too() {
    let host = Host::with_devices(DEVICE);
    let words = ["--compute", "30%", "--cap", "hard", "--on-overuse", "freeze"];
    let mut command = supervised(&host, "restless", &words);
    bare(&mut command, &host);
    command.arg(spinner()).arg("1000");
    let mut thief = Tenant::start(command);
    let pid = thief.device_pid();
    let begin = Instant::now();
    while divvy_tests::processes::is_alive(pid) {
        assert!(begin.elapsed() < Duration::from_secs(60), "it is never ended");
        divvy_tests::processes::signal(pid, Signal::CONT);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(thief.wait().code(), Some(128 + 9));
    let events = succeeded(&finish(&mut host.divvy(["events"])));
    assert!(
        events.contains("frozen") && events.contains("though its slice is frozen"),
        "{events}"
    );
}

/// Its children use the driver by themselves and end, each within a fraction of a look: the slice pays for its dead.
#[test]
fn a_program_of_many_short_processes_past_the_gate_has_no_more_than_its_share() {
    let host = Host::with_devices(DEVICE);
    let Some(python) = system_python() else { return };
    let honest = spinning(&host, "honest", &["--compute", "70%"]);
    let mut command = supervised(&host, "thief", &["--compute", "30%", "--cap", "hard"]);
    bare(&mut command, &host);
    command.arg(python).arg(python_tenant()).arg("churn");
    command.arg(renamed(&host)).args(["10", "3"]);
    let thief = Tenant::start(command);
    let begin = engine(&host);
    let mut looks = vec![begin];
    while looks.last().expect("one").now_ns - looks[0].now_ns < 9000 * MS {
        std::thread::sleep(Duration::from_millis(100));
        looks.push(engine(&host));
    }
    // All that is not the other's is the thief's.
    let of_thief = |look: &divvy_device::EngineUsage| look.busy_ns.saturating_sub(busy(look, &honest));
    let mut worst: f64 = 0.0;
    for (at, from) in looks.iter().enumerate() {
        let Some(to) = looks[at..].iter().find(|to| to.now_ns - from.now_ns >= 5000 * MS) else {
            break;
        };
        let part = of_thief(to).saturating_sub(of_thief(from)) as f64 / (to.now_ns - from.now_ns) as f64;
        worst = worst.max(part);
    }
    eprintln!("the thief's most in 5 s: {:.1} %", worst * 100.0);
    let events = succeeded(&finish(&mut host.divvy(["events"])));
    assert!(worst < 0.40, "{:.1} % of 5 s: {events}", worst * 100.0);
    let of_honest = |line: &str| line.contains("honest") && line.contains("frozen");
    assert!(!events.lines().any(of_honest), "{events}");
    thief.signal(Signal::KILL);
    assert!(honest.end().success());
}

/// Its `divvy run` has ended, and its slice with that: it has nothing any more.
#[test]
fn a_process_that_outlives_its_slice_holds_nothing_for_long() {
    let host = Host::new();
    let Some(python) = system_python() else { return };
    let mut command = supervised(&host, "outlived", &[]);
    command
        .arg(python)
        .arg(python_tenant())
        .args(["outlive", "3000"])
        .arg(renamed(&host));
    let tenant = Tenant::start(command);
    let child = tenant.pid();
    // All processes are noted each second.
    std::thread::sleep(Duration::from_millis(2500));
    assert!(tenant.end().success(), "its own program ends");
    until("it took what it wanted", || {
        (held(&host, &[]) > LIMIT).then_some(())
    });
    until("it holds nothing", || (held(&host, &[]) == 0).then_some(()));
    until("it is ended", || {
        (!divvy_tests::processes::is_alive(child)).then_some(())
    });
}

/// A weaker level inside would be a way out, and so would less than the administrator's minimum.
#[test]
fn a_weaker_level_than_the_slice_around_or_the_administrator_has_is_refused() {
    let host = Host::new();
    let divvy = binaries().join("divvy");
    let mut command = supervised(&host, "around", &[]);
    command.arg(&divvy).args(["run", "--memory", "512MiB"]);
    command.args(["--isolation", "cooperative", "--", "true"]);
    let refused = finish(&mut command);
    assert!(!refused.status.success(), "{refused:?}");
    assert!(stderr(&refused).contains("inside a supervised one cannot be `cooperative`"));

    let host = Host::new();
    let mut command = host.divvy(["run", "--memory", "1GiB", "--", "true"]);
    let least = |command: &mut Command| {
        command.env("DIVVY_LEAST_ISOLATION", "supervised");
        command.env("DIVVY_LEAST_ON_OVERUSE", "freeze");
    };
    least(&mut command);
    succeeded(&finish(&mut command));
    for words in [["--isolation", "cooperative"], ["--on-overuse", "report"]] {
        let mut command = host.divvy(["run", "--memory", "1GiB"]);
        command.args(words).args(["--", "true"]);
        let refused = finish(&mut command);
        let said = stderr(&refused);
        assert!(
            said.contains("error[D0066]") && said.contains("minimum"),
            "{said}"
        );
    }
    // A slice that was made before the minimum is no way around it.
    let older = Host::new();
    succeeded(&finish(
        &mut older.divvy(["slice", "create", "old", "--memory", "1GiB"]),
    ));
    older.kill_agent();
    for words in [
        &["run", "--slice", "old", "--", "true"][..],
        &["resize", "old", "--memory", "2GiB"],
    ] {
        let mut command = older.divvy(words.iter().copied());
        least(&mut command);
        let said = stderr(&finish(&mut command));
        assert!(said.contains("error[D0066]") && said.contains("hint: "), "{said}");
    }
    let mut explained = host.divvy(["explain", "supervised"]);
    least(&mut explained);
    let explained = succeeded(&finish(&mut explained));
    assert!(
        explained.contains("The minimum for the level is `supervised` here"),
        "{explained}"
    );
}

/// An honest program is neither stopped nor ended, with a hard cap or beside others.
#[test]
fn honest_programs_of_supervised_slices_are_let_be() {
    let host = Host::with_devices(DEVICE);
    let terms = ["--isolation", "supervised", "--compute", "30%", "--cap", "hard"];
    let capped = spinning(&host, "capped", &terms);
    let soft = spinning(&host, "soft", &["--isolation", "supervised", "--compute", "40%"]);
    let from = engine(&host);
    let to = until("six seconds are over", || {
        let now = engine(&host);
        (now.now_ns - from.now_ns > 6000 * MS).then_some(now)
    });
    let each = had(&from, &to, &[&capped, &soft]);
    assert!(each.iter().all(|ns| *ns > 100 * MS), "{each:?}");
    let events = succeeded(&finish(&mut host.divvy(["events"])));
    for word in ["frozen", "overuse_ended", "overuse_reported"] {
        assert!(!events.contains(word), "{word}: {events}");
    }
    assert!(capped.end().success() && soft.end().success());
}

#[test]
fn what_is_only_to_be_reported_or_frozen_is_not_ended() {
    let host = Host::new();
    let Some(python) = system_python() else { return };
    for (what, word) in [("report", "overuse_reported"), ("freeze", "frozen")] {
        let mut command = supervised(&host, what, &["--on-overuse", what]);
        command
            .arg(&python)
            .arg(python_tenant())
            .args(["past", "3000"])
            .arg(renamed(&host));
        let mut tenant = Tenant::start(command);
        until("it is told", || {
            let events = succeeded(&finish(&mut host.divvy(["events"])));
            events.contains(word).then_some(())
        });
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", tenant.pid())).expect("it lives");
            stat.rsplit(") ").next().expect("a state").chars().next()
        };
        if what == "freeze" {
            until("it is stopped", || (state() == Some('T')).then_some(()));
            // The watchdog lets it go on. The next agent freezes it again for what it holds.
            host.kill_agent();
            until("it goes on", || (state() != Some('T')).then_some(()));
            assert!(host.agents().is_empty(), "without another agent");
            host.json(["ps"]);
            until("it is stopped again", || (state() == Some('T')).then_some(()));
            // What the driver says is shown, where no ledger has it.
            let listed = host.json(["ps"]);
            assert_eq!(
                listed["items"][0]["memory_used_bytes"],
                json!(3000 * MIB),
                "{listed}"
            );
            // A stopped program notices that it is to end: no KILL has to follow.
            succeeded(&finish(&mut host.divvy(["kill", what, "--yes"])));
            assert_eq!(tenant.wait().code(), Some(128 + 15));
        } else {
            assert_eq!(tenant.ask("")["ended"], json!(true), "it is let be");
            assert!(tenant.end().success());
        }
    }
}

/// What a slice held before it was made smaller is its own.
#[test]
fn supervision_lets_the_honest_resize_below_what_they_hold() {
    let host = Host::new();
    let mut command = host.divvy([
        "run",
        "--name",
        "shrunk",
        "--memory",
        "4GiB",
        "--isolation",
        "supervised",
        "--",
    ]);
    command.arg(probe());
    let mut tenant = Tenant::start(command);
    assert_eq!(tenant.allocate(3000 * MIB), Ok(()));
    succeeded(&finish(&mut host.divvy(["resize", "shrunk", "--memory", "1GiB"])));
    std::thread::sleep(Duration::from_secs(4));
    // It lives and answers.
    let (_free, total) = tenant.memory();
    assert_eq!(total, LIMIT, "it keeps what it has");
    let events = succeeded(&finish(&mut host.divvy(["events"])));
    assert!(!events.contains("overuse"), "{events}");
    assert!(tenant.end().success());
}

/// The user presses Ctrl-Z, and the agent is replaced: the new one cannot ask the stopped `divvy run` what is in use.
#[test]
fn what_a_stopped_run_held_before_a_resize_is_its_own_under_the_next_agent_too() {
    let host = Host::new();
    let mut command = supervised(&host, "shrunk", &[]);
    command.arg(probe());
    let mut tenant = Tenant::start(command);
    assert_eq!(tenant.allocate(900 * MIB), Ok(()));
    succeeded(&finish(
        &mut host.divvy(["resize", "shrunk", "--memory", "512MiB"]),
    ));
    let run = host.json(["ps"])["items"][0]["page_server_pid"]
        .as_u64()
        .expect("its run");
    let run = u32::try_from(run).expect("a number");
    divvy_tests::processes::signal(run, Signal::STOP);
    host.kill_agent();
    host.json(["ps"]);
    std::thread::sleep(Duration::from_secs(4));
    let events = succeeded(&finish(&mut host.divvy(["events"])));
    assert!(!events.contains("overuse"), "{events}");
    divvy_tests::processes::signal(run, Signal::CONT);
    std::thread::sleep(Duration::from_secs(3));
    let events = succeeded(&finish(&mut host.divvy(["events"])));
    assert!(!events.contains("overuse"), "{events}");
    let (_free, total) = tenant.memory();
    assert_eq!(total, 512 * MIB, "it lives and answers");
    assert!(tenant.end().success());
}
