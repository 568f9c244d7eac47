//! The whole supervisor over real processes, and over a driver that says what a test has it say. Its clock is the test's.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use divvy_host::Nvidia;
use divvy_model::{Bytes, DeviceRecord, OnOveruse, SliceRecord};

use super::{Shell, is_stopped, slice, until};
use crate::api::events::{EventKind, EventRecord};
use crate::daemon::Daemon;
use crate::decide::supervise::time::Used;
use crate::leasing::Charge;
use crate::start::rundir::RunDir;
use crate::start::settings::Settings;
use crate::supervisor::opens::Opens;
use crate::supervisor::register::Register;
use crate::supervisor::sight::{Sight, Told, Whose, since_boot};
use crate::supervisor::slices::Slices;
use crate::supervisor::{Seen, Supervisor};
use crate::system::procs::Stat;

pub const MIB: u64 = 1 << 20;
pub const MS: u64 = 1_000_000;
pub const DEVICE: &str = "GPU-0";
/// A user that no account of this machine has.
pub const USER: u32 = 54_321;

/// Moves the clock of this thread's supervisors.
pub fn pass(time: u64) {
    NOW.set(NOW.get() + time);
}

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(1_000_000 * MS) };
    /// The numbers of the machine's GPUs' nodes. Without any it is not known which process has one open.
    pub static NODES: RefCell<HashSet<u64>> = RefCell::default();
}

/// What the driver says at a look, and what the leases do.
#[derive(Clone, Debug)]
pub struct Says {
    /// The memory of each process, in bytes.
    pub memory: Vec<(u32, u64)>,
    pub used: Vec<(u32, Used)>,
    /// The use by all that have ended.
    pub dead: Option<u64>,
    /// What each slice was charged, by its id.
    pub charged: Vec<(String, u64)>,
    /// How long each one's leases had expired.
    pub outlasted: u64,
    /// When the driver was asked, in nanoseconds since boot.
    pub asked: u64,
    /// How long it is since the look before, in nanoseconds.
    pub since: u64,
}

impl Says {
    /// Nothing, at 100 ms behind the last look.
    pub fn nothing() -> Self {
        Self {
            memory: Vec::new(),
            used: Vec::new(),
            dead: None,
            charged: Vec::new(),
            outlasted: 0,
            // Processes that a test has just started were there: their starts are told in hundredths of a second.
            asked: since_boot() + 20 * MS,
            since: 100 * MS,
        }
    }

    pub fn memory(memory: &[(u32, u64)]) -> Self {
        Self {
            memory: memory.to_vec(),
            ..Self::nothing()
        }
    }
}

/// A supervisor of one device.
pub struct Whole {
    pub daemon: Daemon,
    pub supervisor: Supervisor,
    pub device: DeviceRecord,
    _folder: tempfile::TempDir,
}

impl Whole {
    pub fn start() -> Self {
        Self::over(Nvidia::absent())
    }

    pub fn over(nvidia: Nvidia) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let run = RunDir::open(&folder.path().join("run")).expect("a run directory");
        let nothing = |_: &RunDir, _: &str| std::process::Command::new("true");
        let daemon = Daemon::start_over(run, Settings::default(), nothing, nvidia).expect("it starts");
        let device = serde_json::json!({
            "index": 0, "uuid": DEVICE, "name": "NVIDIA H100", "kind": "gpu", "pci_address": "0000:65:00.0", "memory_total_bytes": 80_u64 << 30,
            "memory_reserved_bytes": 0, "memory_used_bytes": 0, "sm_count": 132, "compute_capability": "9.0",
        });
        let supervisor = Supervisor {
            run: daemon.run.clone(),
            keep: nothing,
            nvidia: daemon.nvidia.clone(),
            settings: daemon.settings.clone(),
            state: daemon.state.clone(),
            leasing: daemon.leasing.clone(),
            members: daemon.members.clone(),
            journal: daemon.journal.clone(),
            known: Mutex::default(),
            clock: || NOW.get(),
            nodes: || NODES.with_borrow(Clone::clone),
            frozen: Mutex::default(),
            ended: AtomicU64::new(0),
            freezes: AtomicU64::new(0),
            ends: AtomicBool::new(false),
        };
        let whole = Self {
            daemon,
            supervisor,
            device: serde_json::from_value(device).expect("a device"),
            _folder: folder,
        };
        // The slices of the tests are new ones: an agent that looks first has others'.
        whole.look(&[], Says::nothing());
        whole
    }

    /// One look.
    pub fn look(&self, records: &[SliceRecord], says: Says) -> Duration {
        pass(says.since);
        let memory = says.memory.iter().map(|(pid, held)| (*pid, Some(Bytes(*held))));
        let sight = Sight {
            holders: memory.collect(),
            used: says.used,
            dead: says.dead,
            asked: says.asked,
        };
        let charge = |record: &SliceRecord| {
            let mut charged = says.charged.iter();
            let charged = charged.find(|(slice, _)| *slice == record.id)?.1;
            Some(Charge {
                slice_id: record.id.clone(),
                device_uuid: DEVICE.into(),
                charged,
                outlasted: says.outlasted,
                share: 3000,
                counts: true,
                is_open: false,
            })
        };
        let seen = Seen {
            device: &self.device,
            sight: Some(sight),
            charges: records.iter().filter_map(charge).collect(),
            at: NOW.get(),
        };
        self.supervisor.judge(records, vec![seen])
    }

    /// Looks again and again with the same figures, until a condition holds.
    pub fn until(&self, records: &[SliceRecord], says: impl Fn() -> Says, what: impl Fn() -> bool) {
        until(|| {
            self.look(records, says());
            // The kernel does what it was told.
            std::thread::sleep(Duration::from_millis(3));
            what()
        });
    }

    /// What was told of slices.
    pub fn events(&self) -> Vec<EventRecord> {
        let mut events = self.daemon.journal.after(0);
        events.retain(|event| event.slice_id.is_some());
        events
    }

    pub fn has(&self, kind: EventKind) -> bool {
        self.events().iter().any(|event| event.kind == kind)
    }
}

/// A supervised slice of 1 GiB below a shell.
pub fn supervised(id: &str, shell: &Shell) -> SliceRecord {
    let mut record = slice(id, shell.child.id());
    record.shares.first.memory_limit_bytes = Bytes(1024 * MIB);
    record.terms.on_overuse = OnOveruse::End;
    record
}

/// Whether it is there, and neither ended nor on its way.
pub fn lives(pid: u32) -> bool {
    Stat::of(pid).is_ok_and(|stat| !stat.has_ended())
}

fn is_root() -> bool {
    let is_root = rustix::process::getuid().is_root();
    if !is_root {
        eprintln!("skipped: only root has processes of another user");
    }
    is_root
}

/// It was root's when its slice held too much, and becomes the slice's user's later. By then its slice holds little.
#[test]
fn a_process_whose_end_was_refused_is_not_ended_for_that_later() {
    if !is_root() {
        return;
    }
    let whole = Whole::start();
    let mut shell = Shell::start();
    let pipe = whole.supervisor.run.path().join("pipe");
    let pid = shell.told(&format!(
        "mkfifo {0}; (read x < {0}; exec setpriv --reuid {USER} --regid {USER} --clear-groups sleep 600) >/dev/null & echo $!",
        pipe.display()
    ));
    let pid: u32 = pid.parse().expect("a number");
    shell.spawned.push(pid);
    let mut record = supervised("0123abcd", &shell);
    record.uid = USER;
    let records = [record];
    let much = || Says::memory(&[(pid, 3000 * MIB)]);
    let little = || Says::memory(&[(pid, 10 * MIB)]);
    for _ in 0..80 {
        whole.look(&records, much());
    }
    assert!(lives(pid), "it is root's");
    assert!(whole.has(EventKind::OveruseReported), "{:?}", whole.events());
    whole.look(&records, little());
    std::fs::write(&pipe, "go\n").expect("it reads");
    until(|| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        status.contains(&format!("Uid:\t{USER}\t")) && status.contains("Name:\tsleep")
    });
    for _ in 0..60 {
        whole.look(&records, little());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(lives(pid), "its slice holds little");
    assert!(!whole.has(EventKind::OveruseEnded), "{:?}", whole.events());
    // And if the slice holds too much now, it is ended.
    whole.until(&records, much, || !lives(pid));
}

/// The driver takes seconds to answer. Meanwhile a process ends, and one of another slice gets its number.
#[test]
fn a_figure_is_not_that_of_a_process_which_began_after_the_question() {
    let whole = Whole::start();
    let mut shell = Shell::start();
    let records = [supervised("0123abcd", &shell)];
    let charged = || vec![("0123abcd".to_owned(), 0)];
    whole.look(
        &records,
        Says {
            charged: charged(),
            ..Says::nothing()
        },
    );
    let asked = since_boot();
    let pid = shell.spawn();
    let late = |asked| Says {
        memory: vec![(pid, 3000 * MIB)],
        used: vec![(pid, Used::Total(3000 * MS))],
        charged: charged(),
        asked,
        since: 3000 * MS,
        ..Says::nothing()
    };
    whole.look(&records, late(asked));
    // From then on the driver tells of the new one.
    for _ in 0..20 {
        whole.look(
            &records,
            Says {
                memory: vec![(pid, MIB)],
                used: vec![(pid, Used::Total(MS))],
                charged: charged(),
                ..Says::nothing()
            },
        );
    }
    assert!(lives(pid) && !is_stopped(pid));
    assert!(whole.events().is_empty(), "{:?}", whole.events());
    // The same figures of a process that was there when the driver was asked.
    let there = || Says {
        since: 100 * MS,
        ..late(since_boot() + 20 * MS)
    };
    whole.until(&records, there, || !lives(pid));
}

/// The agent before wrote down nothing of what the slice had, and its `divvy run` never tells.
#[test]
fn an_adopted_slice_whose_largest_limit_is_unknown_keeps_what_it_held_and_no_more() {
    let whole = Whole::start();
    whole.supervisor.lock().accounts = Default::default();
    let mut shell = Shell::start();
    let pids = [shell.spawn(), shell.spawn()];
    let mut record = supervised("0123abcd", &shell);
    record.usage_unknown = true;
    let records = [record];
    let held = |second| move || Says::memory(&[(pids[0], 2000 * MIB), (pids[1], second)]);
    for _ in 0..40 {
        whole.look(&records, held(100 * MIB)());
    }
    assert!(
        pids.into_iter().all(lives),
        "it may have been resized: {:?}",
        whole.events()
    );
    whole.until(&records, held(1000 * MIB), || !pids.into_iter().all(lives));
    assert!(whole.has(EventKind::OveruseEnded));
    // The next agent knows it.
    let stored = std::fs::read_to_string(whole.supervisor.run.path().join("limits.json")).expect("written");
    assert!(stored.contains(&(2100 * MIB).to_string()), "{stored}");
}

/// Seizes its argument, and never lets it end.
const TRACER: &str = "
import ctypes, sys, time
trace = ctypes.CDLL(None, use_errno=True).ptrace
trace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
SEIZE, OF_ENDS = 0x4206, 1 << 6
error = trace(SEIZE, int(sys.argv[1]), None, OF_ENDS)
with open(sys.argv[2], 'w') as told:
    told.write(str(error))
time.sleep(600)
";

/// Processes that trace others.
struct Tracers {
    program: std::path::PathBuf,
    count: Cell<usize>,
}

impl Tracers {
    fn new(whole: &Whole) -> Option<Self> {
        let program = whole.supervisor.run.path().join("tracer.py");
        std::fs::write(&program, TRACER).expect("written");
        let python = std::process::Command::new("python3").arg("-V").output();
        if !python.is_ok_and(|python| python.status.success()) {
            eprintln!("skipped: there is no python3");
            return None;
        }
        let count = Cell::new(0);
        Some(Self { program, count })
    }

    /// One below this shell; none where this process may trace nothing.
    fn of(&self, traced: u32, shell: &mut Shell) -> Option<u32> {
        self.count.set(self.count.get() + 1);
        let told = self.program.with_extension(self.count.get().to_string());
        let pid = shell.told(&format!(
            "python3 {} {traced} {} >/dev/null & echo $!",
            self.program.display(),
            told.display()
        ));
        let pid = pid.parse().expect("a number");
        shell.spawned.push(pid);
        let text = || std::fs::read_to_string(&told).unwrap_or_default();
        until(|| !text().is_empty());
        if text() != "0" {
            eprintln!("skipped: no process may be traced here");
            return None;
        }
        Some(pid)
    }
}

/// A process that takes too much, and what traces it.
#[test]
fn a_chain_of_tracers_and_one_in_another_slice_of_the_user_keep_nothing() {
    let whole = Whole::start();
    let Some(tracers) = Tracers::new(&whole) else {
        return;
    };
    let (mut own, mut other) = (Shell::start(), Shell::start());
    let killed = own.spawn();
    let mut chain = vec![killed];
    // One in the slice, and above it some in another.
    for at in 0..4 {
        let shell = if at == 0 { &mut own } else { &mut other };
        let Some(tracer) = tracers.of(chain[at], shell) else {
            return;
        };
        chain.push(tracer);
    }
    let bystander = other.spawn();
    let mut records = [supervised("0123abcd", &own), supervised("4567cdef", &other)];
    records[1].terms.isolation = divvy_model::Isolation::Cooperative;
    let much = || Says::memory(&[(killed, 3000 * MIB)]);
    whole.until(&records, much, || !chain.iter().any(|pid| lives(*pid)));
    assert!(lives(bystander), "it keeps nothing");
    let of_other = |event: &EventRecord| {
        event.slice_id.as_deref() == Some("4567cdef") && event.message.contains("as a tracer it keeps")
    };
    assert_eq!(whole.events().iter().filter(|event| of_other(event)).count(), 3);
}

/// Root's, another user's, and those of no slice. That the process does not end is told.
#[test]
fn tracers_of_others_and_outside_of_all_slices_are_let_be() {
    if !is_root() {
        return;
    }
    let whole = Whole::start();
    let Some(tracers) = Tracers::new(&whole) else {
        return;
    };
    // The killed one is the user's, in its slice.
    let (mut own, mut anothers, mut outside) = (Shell::start(), Shell::start(), Shell::start());
    let mut of_user = || {
        let pid = own.told(&format!(
            "setpriv --reuid {USER} --regid {USER} --clear-groups sleep 600 >/dev/null & echo $!"
        ));
        let pid: u32 = pid.parse().expect("a number");
        own.spawned.push(pid);
        until(|| crate::system::procs::command(pid) == "sleep");
        pid
    };
    let killed = [of_user(), of_user(), of_user()];
    let shells = [&mut own, &mut anothers, &mut outside];
    let found = killed.iter().zip(shells);
    let Some(all): Option<Vec<u32>> = found.map(|(killed, shell)| tracers.of(*killed, shell)).collect()
    else {
        return;
    };
    let mut records = [supervised("0123abcd", &own), supervised("4567cdef", &anothers)];
    records[0].uid = USER;
    records[1].uid = USER + 1;
    let much = || Says::memory(&killed.map(|pid| (pid, 1000 * MIB)));
    let told = |pid: &u32| {
        let named = format!("process {pid} ");
        let events = whole.events();
        let mut reported = events
            .iter()
            .filter(|event| event.kind == EventKind::OveruseReported);
        reported.any(|event| event.message.contains(&named) && event.message.contains("is still there"))
    };
    whole.until(&records, much, || killed.iter().all(told));
    assert!(all.iter().all(|tracer| lives(*tracer)), "{:?}", whole.events());
    assert!(killed.iter().all(|pid| lives(*pid)), "each is held");
}

/// It has ended, and the driver tells of its memory still: a child has its open files. Then no process that gets the number
/// later is taken for it.
#[test]
fn memory_that_an_ended_process_left_to_another_counts_and_is_no_later_processes() {
    let whole = Whole::start();
    let (mut shell, mut other) = (Shell::start(), Shell::start());
    let records = [supervised("0123abcd", &shell), supervised("4567cdef", &other)];
    let (killed, holder) = (shell.spawn(), shell.spawn());
    let innocent = other.spawn();
    let held = || Says::memory(&[(killed, 3000 * MIB), (holder, MIB), (innocent, MIB)]);
    whole.look(&records, held());
    shell.end(killed);
    whole.until(&records, held, || !lives(holder));
    assert!(lives(innocent));
    let of_other = |event: &EventRecord| event.slice_id.as_deref() == Some("4567cdef");
    assert!(!whole.events().iter().any(of_other), "{:?}", whole.events());
    // The number is one of another user's slice from now on.
    let opens = Opens::of(whole.supervisor.run.path(), &whole.device, whole.supervisor.nodes);
    let mut register = std::mem::take(&mut whole.supervisor.lock().register);
    let mut records = records;
    records[1].uid += 1;
    let slices = Slices::of(&records, &whole.supervisor.members);
    register.settle();
    let now = || Told::at(since_boot() + 20 * MS, 0);
    assert!(
        matches!(register.whose(killed, now(), &slices, &opens), Whose::Slice(_, slice) if slice == "0123abcd")
    );
    let _chance = std::fs::write("/proc/sys/kernel/ns_last_pid", (killed - 1).to_string());
    if other.spawn() == killed {
        assert!(matches!(
            register.whose(killed, now(), &slices, &opens),
            Whose::Unknown
        ));
    }
}

/// NVML's samples are of the last second. A process whose number was another slice's within that has not used it.
#[test]
fn a_sample_of_the_last_second_is_of_the_process_that_had_the_number_then() {
    let whole = Whole::start();
    let (mut shell, mut other) = (Shell::start(), Shell::start());
    let records = [supervised("0123abcd", &shell), supervised("4567cdef", &other)];
    let slices = Slices::of(&records, &whole.supervisor.members);
    let opens = Opens::of(whole.supervisor.run.path(), &whole.device, whole.supervisor.nodes);
    let mut register = Register::default();
    let before = shell.spawn();
    assert!(register.find(before, &slices).is_some());
    shell.end(before);
    register.settle();
    let of = |register: &mut Register, sampled: u64| {
        let told = Told::at(since_boot() + 20 * MS, sampled);
        match register.whose(before, told, &slices, &opens) {
            Whose::Slice(_, slice) => slice,
            Whose::Other => "other".into(),
            Whose::Unknown => "unknown".into(),
        }
    };
    assert_eq!(of(&mut register, 1000 * MS), "0123abcd");
    let _chance = std::fs::write("/proc/sys/kernel/ns_last_pid", (before - 1).to_string());
    if other.spawn() != before {
        eprintln!("skipped: the number went to another process");
        return;
    }
    assert_eq!(of(&mut register, 1000 * MS), "0123abcd");
    assert_eq!(of(&mut register, 0), "4567cdef");
}
