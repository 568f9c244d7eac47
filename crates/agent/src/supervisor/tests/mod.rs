//! The register and the freezer over real processes.
//!
//! - [`devices`]: a slice of several devices;
//! - [`innocents`]: random runs of the whole supervisor, whose processes' numbers are used again and again;
//! - [`opens`]: what has the device open, and what has not;
//! - [`silence`]: a driver that hangs;
//! - [`whole`]: the whole supervisor over a driver that says what a test has it say.

mod devices;
mod innocents;
mod opens;
mod silence;
mod whole;
mod word;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use divvy_model::SliceRecord;
use rustix::process::Signal;

use super::freezer::Freezer;
use super::register::Register;
use super::slices::Slices;
use super::watchdog::Watchdog;
use crate::decide::supervise::ProcessId;
use crate::decide::supervise::memory::{Held, Look};
use crate::life::members::{Members, Roster};
use crate::start::rundir::RunDir;
use crate::system::procs::{Stat, start_ticks};

/// What stands for a GPU's node: no other process of these tests has it open.
const NODE: &str = "/dev/full";

/// A shell in the place of a `divvy run`: it starts programs, ends them and waits for them when told to.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    spawned: Vec<u32>,
}

impl Shell {
    fn start() -> Self {
        Self::of(&mut Command::new("sh"))
    }

    /// The kernel drops TSTP in a group without a parent in its session, as a test run in the background may be.
    fn start_in_a_group() -> Self {
        Self::of(Command::new("sh").process_group(0))
    }

    fn of(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self {
            child,
            input,
            output,
            spawned: Vec::new(),
        }
    }

    fn told(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").expect("it reads");
        let mut answer = String::new();
        self.output.read_line(&mut answer).expect("it answers");
        answer.trim().to_owned()
    }

    fn spawn(&mut self) -> u32 {
        self.spawn_with("")
    }

    /// One that has [`NODE`] open.
    fn spawn_on_device(&mut self) -> u32 {
        self.spawn_with(&format!("9<{NODE}"))
    }

    fn spawn_with(&mut self, redirection: &str) -> u32 {
        let pid = self.told(&format!("sleep 600 {redirection} >/dev/null & echo $!"));
        let pid = pid.parse().expect("a number");
        self.spawned.push(pid);
        pid
    }

    fn end(&mut self, pid: u32) {
        self.spawned.retain(|spawned| *spawned != pid);
        self.told(&format!(
            "kill -9 {pid} 2>/dev/null; wait {pid} 2>/dev/null; echo gone"
        ));
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // The shell waited for none of them, so each number is still its child's.
        let pids: Vec<String> = self.spawned.iter().map(u32::to_string).collect();
        let _asked = writeln!(self.input, "kill -9 {} 2>/dev/null; echo gone", pids.join(" "));
        let _ended = self.output.read_line(&mut String::new());
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn slice(id: &str, run: u32) -> SliceRecord {
    let mut slice: SliceRecord = serde_json::from_value(serde_json::json!({
        "id": id, "name": id, "uid": rustix::process::getuid().as_raw(), "device_uuid": "GPU-0",
        "memory_limit_bytes": 1, "memory_used_bytes": 0, "isolation": "supervised", "policy": "strict",
        "created_at": "", "page_server_pid": run, "processes": [],
    }))
    .expect("a record");
    slice.page_server_start_ticks = start_ticks(run).expect("it lives");
    slice
}

fn members(folder: &std::path::Path) -> Members {
    Members {
        run: RunDir::open(&folder.join("run")).expect("a run directory"),
        roster: Roster::default(),
    }
}

/// The freezers of these tests are never killed.
fn no_watchdog() -> Watchdog {
    Watchdog::new(|_, _| Command::new("true"))
}

fn is_stopped(pid: u32) -> bool {
    Stat::of(pid).is_ok_and(|stat| stat.state == 'T')
}

fn until(what: impl Fn() -> bool) {
    let begin = std::time::Instant::now();
    while !what() {
        assert!(begin.elapsed().as_secs() < 20, "it never comes");
        std::thread::yield_now();
    }
}

#[test]
fn what_its_user_has_stopped_is_not_let_go_on_and_what_an_agent_left_stopped_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let members = members(folder.path());
    let mut shell = Shell::start();
    let records = [slice("0123abcd", shell.child.id())];
    let slices = Slices::of(&records, &members);
    let (by_user, by_us) = (shell.spawn(), shell.spawn());
    let mut register = Register::default();
    let stop = register.find(by_user, &slices).expect("it is the slice's");
    assert!(register.get(stop).expect("known").signal(stop, Signal::STOP));
    until(|| is_stopped(by_user));
    let mut freezer = Freezer::open(members.run.clone(), no_watchdog());
    assert_eq!(freezer.stop(&records[0], &mut register, &slices, &[]), 1);
    until(|| is_stopped(by_us));
    assert!(!is_stopped(shell.child.id()));
    // The agent dies, and another comes.
    drop(freezer);
    let next = Freezer::open(members.run.clone(), no_watchdog());
    until(|| !is_stopped(by_us));
    assert!(is_stopped(by_user) && next.ids().is_empty());
    // A process whose `divvy run` is gone stays the slice's.
    shell.child.kill().expect("ours");
    shell.child.wait().expect("reaped");
    assert!(register.find(by_us, &slices).is_some());
    for pid in [by_us, by_user] {
        let id = register.find(pid, &slices).expect("known");
        assert!(register.get(id).expect("known").signal(id, Signal::KILL));
    }
}

#[test]
fn another_users_process_below_a_divvy_run_is_not_signalled() {
    assert!(super::register::may_signal(
        std::process::id(),
        rustix::process::getuid().as_raw(),
        false
    ));
    assert!(!super::register::may_signal(std::process::id(), 4_000_000, false));
    assert!(
        !super::register::may_signal(std::process::id(), 4_000_000, true),
        "it is in no container"
    );
    assert!(!super::register::may_signal(u32::MAX, 0, true));
}

/// A process below its `divvy run` that is root's wholly: the slice's user may not stop it, nor let it go on.
#[test]
fn what_the_slices_user_may_not_stop_is_not_noted_as_stopped() {
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: only root has processes of another user");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let members = members(folder.path());
    let mut shell = Shell::start();
    let mut record = slice("0123abcd", shell.child.id());
    record.uid = 54_321;
    let records = [record];
    let slices = Slices::of(&records, &members);
    let pid = shell.spawn();
    let mut register = Register::default();
    let mut freezer = Freezer::open(members.run.clone(), no_watchdog());
    assert!(register.find(pid, &slices).is_some(), "it is the slice's");
    assert_eq!(freezer.stop(&records[0], &mut register, &slices, &[]), 0);
    let noted = crate::life::records::stored_frozen::<super::stopped::Stopped>(&members.run);
    assert_eq!(noted, [], "and the next agent lets nothing go on");
    assert!(!is_stopped(pid));
}

/// Its file cannot be written: what is stopped then would stay so for ever, should the agent be killed.
#[test]
fn what_cannot_be_noted_is_not_stopped_and_is_as_soon_as_it_can() {
    let folder = tempfile::tempdir().expect("a folder");
    let members = members(folder.path());
    let mut shell = Shell::start();
    let records = [slice("0123abcd", shell.child.id())];
    let slices = Slices::of(&records, &members);
    let pid = shell.spawn();
    let mut register = Register::default();
    let mut freezer = Freezer::open(members.run.clone(), no_watchdog());
    // A folder that is not empty, in the file's place.
    let in_the_way = members.run.path().join("frozen.json");
    std::fs::create_dir_all(in_the_way.join("full")).expect("made");
    assert_eq!(freezer.stop(&records[0], &mut register, &slices, &[]), 0);
    assert!(!is_stopped(pid), "it runs on, and the next look tries again");
    std::fs::remove_dir_all(&in_the_way).expect("removed");
    assert_eq!(freezer.stop(&records[0], &mut register, &slices, &[]), 1);
    until(|| is_stopped(pid));
    freezer.release("0123abcd");
    until(|| !is_stopped(pid));
}

#[test]
fn a_stop_that_the_user_asked_for_meanwhile_outlives_the_freeze() {
    let folder = tempfile::tempdir().expect("a folder");
    let members = members(folder.path());
    let mut shell = Shell::start_in_a_group();
    let records = [slice("0123abcd", shell.child.id())];
    let slices = Slices::of(&records, &members);
    let pids = [shell.spawn(), shell.spawn()];
    let mut register = Register::default();
    let mut freezer = Freezer::open(members.run.clone(), no_watchdog());
    freezer.stop(&records[0], &mut register, &slices, &[]);
    until(|| pids.iter().all(|pid| is_stopped(*pid)));
    let ids = pids.map(|pid| register.find(pid, &slices).expect("it is the slice's"));
    let signal = |register: &Register, id, signal| {
        assert!(register.get(id).expect("known").signal(id, signal));
    };
    // As the terminal does at Ctrl-Z.
    signal(&register, ids[0], Signal::TSTP);
    freezer.release("0123abcd");
    until(|| !is_stopped(pids[1]));
    until(|| is_stopped(pids[0]));
    for id in ids {
        signal(&register, id, Signal::KILL);
    }
}

/// A service of the host has mounts of its own as well. That it attached to another user's slice makes it no container's.
#[test]
fn another_users_process_with_mounts_of_its_own_is_no_containers() {
    let folder = tempfile::tempdir().expect("a folder");
    let members = members(folder.path());
    let apart = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.arg("--mount").args(words).stdin(Stdio::piped());
        command
    };
    if !apart(&["true"]).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: no namespace of mounts may be made here");
        return;
    }
    let mut service = apart(&["cat"]).spawn().expect("it starts");
    let pid = service.id();
    until(|| crate::system::procs::command(pid) == "cat");
    let mut own = slice("0123abcd", 1);
    own.lasting = true;
    let mut of_another = own.clone();
    of_another.id = "4567cdef".into();
    of_another.uid = 4_000_000;
    for (record, is_found) in [(of_another, false), (own, true)] {
        members.roster.attach(&record.id, pid);
        let records = [record];
        let slices = Slices::of(&records, &members);
        let mut register = Register::default();
        let found = register.find(pid, &slices);
        assert_eq!(found.is_some(), is_found, "{}", records[0].uid);
        if let Some(id) = found {
            let (_, in_container) = register.get(id).expect("known").owner();
            assert!(!in_container, "its user's own process is one of the host");
        }
    }
    service.kill().expect("ours");
    service.wait().expect("reaped");
}

/// A process goes on without its main thread, which the kernel's letter of the process is of.
#[test]
fn a_process_whose_main_thread_has_exited_is_found_stopped_and_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let members = members(folder.path());
    let program = folder.path().join("headless.py");
    std::fs::write(&program, crate::system::procs::tests::WITHOUT_MAIN_THREAD).expect("written");
    let mut shell = Shell::start();
    let records = [slice("0123abcd", shell.child.id())];
    let slices = Slices::of(&records, &members);
    // Its input is a pipe without an end.
    let started = shell.told(&format!(
        "mkfifo {0}/pipe; exec 9<>{0}/pipe; python3 {0}/headless.py <&9 9<&- >/dev/null & echo $!",
        folder.path().display()
    ));
    let pid: u32 = started.parse().expect("a number");
    shell.spawned.push(pid);
    if !Command::new("python3")
        .arg("-V")
        .status()
        .is_ok_and(|status| status.success())
    {
        eprintln!("skipped: there is no python3");
        return;
    }
    let letter = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is there");
        stat.rsplit(") ").next().and_then(|rest| rest.chars().next())
    };
    until(|| letter() == Some('Z'));
    let mut register = Register::default();
    let id = register.find(pid, &slices).expect("it is the slice's");
    assert!(register.members(&records[0], &slices).contains(&id));
    let mut freezer = Freezer::open(members.run.clone(), no_watchdog());
    freezer.stop(&records[0], &mut register, &slices, &[]);
    until(|| is_stopped(pid));
    freezer.release("0123abcd");
    until(|| !is_stopped(pid));
    assert!(register.get(id).expect("known").signal(id, Signal::KILL));
    until(|| Stat::of(pid).map_or(true, Stat::has_ended));
    assert!(register.find(pid, &slices).is_none());
}

/// A walk over all processes takes long where a tenant has thousands: orphans of a slice cost no walk each.
#[test]
fn one_walk_over_all_processes_serves_a_whole_look() {
    let folder = tempfile::tempdir().expect("a folder");
    let members = members(folder.path());
    let mut shell = Shell::start();
    let records = [slice("0123abcd", shell.child.id())];
    let slices = Slices::of(&records, &members);
    let pids: Vec<u32> = (0..20).map(|_| shell.spawn()).collect();
    let mut register = Register::default();
    assert_eq!(register.members(&records[0], &slices).len(), pids.len());
    // They lose their `divvy run`.
    let spawned = std::mem::take(&mut shell.spawned);
    shell.child.kill().expect("ours");
    shell.child.wait().expect("reaped");
    let own_child = Command::new("sleep").arg("600").spawn();
    let mut own_child = own_child.expect("it starts");
    slices.renew();
    let table = slices.table();
    assert_eq!(register.members(&records[0], &slices).len(), pids.len());
    assert!(std::rc::Rc::ptr_eq(&table, &slices.table()), "one walk");
    assert!(slices.took() > std::time::Duration::ZERO);
    own_child.kill().expect("ours");
    own_child.wait().expect("reaped");
    for pid in spawned {
        let id = register.find(pid, &slices).expect("known");
        assert!(register.get(id).expect("known").signal(id, Signal::KILL));
    }
}

/// A device, and slices of users on it.
fn on_device(id: &str, uid: u32) -> SliceRecord {
    let mut record = slice(id, std::process::id());
    record.uid = uid;
    record
}

#[test]
fn the_largest_limit_outlives_the_agent_and_an_adopted_slice_is_known_as_such() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = members(folder.path()).run;
    let mut record = on_device("aaaaaaaa", 5);
    let of = ("aaaaaaaa".to_owned(), "GPU-0".to_owned());
    let bytes = divvy_model::Bytes;
    let limited = |record: &mut SliceRecord, limit: u64| {
        record.shares.first.memory_limit_bytes = bytes(limit);
    };
    let mut accounts = super::account::Accounts::default();
    accounts.keep(&[], 1, &run);
    for limit in [100, 400, 50] {
        limited(&mut record, limit);
        accounts.keep(&[&record], 2, &run);
    }
    let account = &accounts.all[&of];
    assert_eq!((account.largest, account.is_adopted), (Some(bytes(400)), false));
    // Another agent comes.
    let mut next = super::account::Accounts::default();
    next.keep(&[&record], 3, &run);
    assert_eq!(
        (next.all[&of].largest, next.all[&of].is_adopted),
        (Some(bytes(400)), true)
    );
    // An agent that wrote nothing down was there before.
    let mut unknown = super::account::Accounts::default();
    let elsewhere = tempfile::tempdir().expect("a folder");
    unknown.keep(&[&record], 3, &members(elsewhere.path()).run);
    unknown.keep(&[&record], 4, &members(elsewhere.path()).run);
    assert_eq!(
        (unknown.all[&of].largest, unknown.all[&of].is_adopted),
        (None, true)
    );
}

#[test]
fn a_slice_that_is_resized_before_the_first_look_keeps_what_it_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = members(folder.path()).run;
    let mib = |mib: u64| divvy_model::Bytes(mib << 20);
    let of = ("aaaaaaaa".to_owned(), "GPU-0".to_owned());
    let held = [Held {
        id: ProcessId {
            pid: 1,
            start_ticks: 1,
        },
        memory: mib(900),
        accounted: mib(900),
        leaves: false,
        has_ended: false,
        returns: false,
    }];
    let beyond = |is_noted: bool| {
        let mut record = on_device("aaaaaaaa", 5);
        let mut accounts = super::account::Accounts::default();
        accounts.keep(&[], 1, &run);
        record.shares.first.memory_limit_bytes = mib(1024);
        if is_noted {
            accounts.note_limits(&record, 2, &run);
        }
        record.shares.first.memory_limit_bytes = mib(512);
        accounts.keep(&[&record], 3, &run);
        let account = accounts.all.get_mut(&of).expect("an account");
        let look = Look {
            at: 3,
            limit: mib(512),
            accounted: mib(900),
            context: mib(0),
            processes: &held,
        };
        (account.largest, account.memory.look(&look).beyond)
    };
    assert_eq!(beyond(true), (Some(mib(1024)), mib(0)));
    let (largest, beyond) = beyond(false);
    assert!(largest == Some(mib(512)) && beyond > mib(300), "{beyond}");
}

#[test]
fn a_slice_that_begins_before_the_first_look_is_not_an_earlier_agents() {
    let whole = whole::Whole::start();
    let supervisor = &whole.daemon.supervisor;
    let record = on_device("aaaaaaaa", 5);
    supervisor.judge(std::slice::from_ref(&record), Vec::new());
    let accounts = &supervisor.lock().accounts.all;
    let of = ("aaaaaaaa".to_owned(), "GPU-0".to_owned());
    assert!(!accounts.get(&of).expect("an account").is_adopted);
}

#[test]
fn a_device_that_gives_no_figure_keeps_none_frozen() {
    const SECOND: u64 = 1_000_000_000;
    let folder = tempfile::tempdir().expect("a folder");
    let run = members(folder.path()).run;
    let record = on_device("aaaaaaaa", 5);
    let of = ("aaaaaaaa".to_owned(), "GPU-0".to_owned());
    let mut accounts = super::account::Accounts::default();
    accounts.keep(&[&record], SECOND, &run);
    let account = accounts.all.get_mut(&of).expect("kept");
    account.is_frozen = [false, true];
    account.seen_at = 2 * SECOND;
    assert!(accounts.let_silent_go(7 * SECOND).is_empty());
    assert_eq!(accounts.let_silent_go(8 * SECOND), std::slice::from_ref(&of));
    assert_eq!(accounts.all[&of].is_frozen, [false, false]);
    assert!(accounts.let_silent_go(9 * SECOND).is_empty(), "it is told once");
}
