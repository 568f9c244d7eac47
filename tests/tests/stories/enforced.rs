//! The level `enforced`: a tenant has no device, and what holds it to its share is out of its reach. The machine is one
//! with several users and the system's agent.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use divvy_tests::clients::system_python;
use divvy_tests::host::{finish, stderr, succeeded};
use divvy_tests::system::System;
use divvy_tests::tenant::Tenant;
use divvy_tests::users::User;
use divvy_tests::{MIB, processes, wait};
use rustix::process::Signal;
use serde_json::Value;

/// A slice's process for its workers, and the workers.
struct Workers {
    listener: u32,
    uid: u32,
    socket: PathBuf,
}

impl Workers {
    fn of(system: &System, name: &str) -> Self {
        let shown = system.json(["inspect", name]);
        assert_eq!(shown["isolation"], "enforced", "{shown}");
        let number = |field: &str| {
            let number = shown["worker"][field].as_u64().expect("a number");
            u32::try_from(number).expect("a number")
        };
        let id = shown["id"].as_str().expect("an id");
        Self {
            listener: number("pid"),
            uid: number("uid"),
            socket: system.slice_folder(id).join("worker.sock"),
        }
    }

    /// The processes that serve programs.
    fn serving(&self) -> Vec<u32> {
        let serving = processes::tree(self.listener).split_off(1);
        assert!(serving.iter().all(|pid| processes::user(*pid) == Some(self.uid)));
        serving
    }

    fn are_gone(&self, serving: &[u32]) {
        wait::until("the workers are gone", || {
            let mut all = serving.iter().chain([&self.listener]);
            all.all(|pid| !processes::is_alive(*pid)).then_some(())
        });
    }
}

fn enforced(system: &System, user: &User, name: &str, memory: &str) -> Command {
    let words = [
        "run",
        "--isolation",
        "enforced",
        "--name",
        name,
        "--memory",
        memory,
        "--",
    ];
    system.divvy_as(user, words)
}

fn probe(system: &System, user: &User, name: &str, memory: &str) -> Tenant {
    let mut command = enforced(system, user, name, memory);
    command.arg(system.program("probe"));
    Tenant::start(command)
}

fn gone(system: &System, name: &str) {
    wait::until("the slice is gone", || {
        let slices = system.slices();
        slices.iter().all(|slice| slice.name != name).then_some(())
    });
}

/// What a user's Python says, run with these arguments.
fn python_as(system: &System, user: &User, script: &str, words: &[&str]) -> Option<String> {
    let python = system_python()?;
    let mut command = system.command_as(user, python);
    Some(succeeded(&finish(command.args(["-c", script]).args(words))))
}

/// Connects, and waits for the greeting of a worker.
const CONNECT: &str = r"
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    s.connect(sys.argv[1])
    s.send(b'!')
    print('served' if s.recv(64) else 'refused')
except OSError as error:
    print('refused', error)
";

/// What a tracer and a killer may do to a process.
const ATTACK: &str = r"
import ctypes, os, sys
pid, libc, done = int(sys.argv[1]), ctypes.CDLL(None, use_errno=True), []
for name in ('mem', 'maps', 'environ', 'root', 'cwd', 'exe', 'fd/0'):
    try:
        path = f'/proc/{pid}/{name}'
        os.readlink(path) if name in ('root', 'cwd', 'exe', 'fd/0') else open(path, 'rb').close()
        done.append(name)
    except OSError: pass
for request in (16, 0x4206):
    if libc.ptrace(request, pid, 0, 0) == 0: done.append('ptrace')
for signal in (0, 9, 15, 19):
    try:
        os.kill(pid, signal)
        done.append('kill')
    except OSError: pass
buffer = ctypes.create_string_buffer(8)
vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
if libc.process_vm_readv(pid, vector, 1, vector, 1, 0) > 0: done.append('process_vm_readv')
print('did', done)
";

#[test]
fn a_tenant_without_a_device_computes_within_its_limit_and_leaves_nothing() {
    let Some(system) = System::new() else { return };
    let alice = &system.users.alice;
    let mut tenant = probe(&system, alice, "one", "1GiB");
    let workers = Workers::of(&system, "one");
    let free = tenant.memory();
    assert_eq!(free.1, 1024 * MIB);
    assert_eq!(tenant.allocate(900 * MIB), Ok(()));
    assert_eq!(
        tenant.allocate(200 * MIB),
        Err("CUDA_ERROR_OUT_OF_MEMORY".to_owned())
    );
    assert!(tenant.copies());
    let maps = fs::read_to_string(format!("/proc/{}/maps", tenant.pid())).expect("its maps");
    assert!(maps.contains("/stages/"), "the drop-in: {maps}");
    for what in ["emulated", "limit_cuda", "divvy-ledger", "divvy-engine"] {
        assert!(!maps.contains(what), "{what}: {maps}");
    }
    // What the copies freed in stream order comes back when the tenant looks.
    wait::until("what it holds is shown", || {
        let _looked = tenant.memory();
        (system.slice("one").memory_used_bytes == 900 * MIB).then_some(())
    });
    let serving = workers.serving();
    assert_eq!(serving.len(), 1, "{serving:?}");
    // The driver and the device were opened, and then the worker was locked up.
    let status = fs::read_to_string(format!("/proc/{}/status", serving[0])).expect("its status");
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    assert!(tenant.end().success());
    gone(&system, "one");
    workers.are_gone(&serving);
    system.holds();
}

#[test]
fn a_tenant_reaches_neither_its_worker_nor_anothers_nor_the_pages() {
    let Some(system) = System::new() else { return };
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    let mut first = probe(&system, alice, "first", "1GiB");
    let mut second = probe(&system, bob, "second", "1GiB");
    assert_eq!(first.allocate(MIB), Ok(()));
    assert_eq!(second.allocate(MIB), Ok(()));
    let (of_alice, of_bob) = (Workers::of(&system, "first"), Workers::of(&system, "second"));
    assert_ne!(of_alice.uid, of_bob.uid);
    let tenants = [alice.uid, bob.uid, system.users.agent.uid, 0];
    assert!(!tenants.contains(&of_alice.uid) && !tenants.contains(&of_bob.uid));
    // Not as its user, and not as root of a user namespace of its own.
    for pid in [of_alice.listener, of_alice.serving()[0], of_bob.serving()[0]] {
        let Some(said) = python_as(&system, alice, ATTACK, &[&pid.to_string()]) else {
            return;
        };
        assert_eq!(said.trim(), "did []", "of {pid}");
        let mut root = system.command_as(alice, "unshare");
        root.args(["-Ur", "python3", "-c", ATTACK, &pid.to_string()]);
        assert_eq!(succeeded(&finish(&mut root)).trim(), "did []", "of {pid} as root");
    }
    // A program of alice's outside her slice, and one of bob's.
    let connect = |user: &User, socket: &Path| {
        let socket = socket.to_string_lossy().into_owned();
        python_as(&system, user, CONNECT, &[&socket]).unwrap_or_default()
    };
    assert!(connect(alice, &of_alice.socket).starts_with("refused"));
    assert!(connect(bob, &of_alice.socket).starts_with("refused"));
    // Inside it she is served: the refusals above were for who she is.
    let mut inside = enforced(&system, alice, "inside", "64MiB");
    let own = "import os, sys; sys.argv = ['', os.environ['DIVVY_REMOTE']]\n";
    inside.args(["python3", "-c", &format!("{own}{CONNECT}")]);
    assert_eq!(succeeded(&finish(&mut inside)).trim(), "served");
    // Neither the pages of the slice nor those of the device are given to her.
    for socket in [
        of_alice.socket.with_file_name("attach.sock"),
        of_bob.socket.with_file_name("attach.sock"),
    ] {
        let refused = finish(system.attacker_as(alice, ["limit"]).arg(&socket));
        assert!(!refused.status.success(), "{refused:?}");
    }
    let emulated = system.program("libdivvy_emulated_cuda.so");
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::os::unix::fs::symlink(&emulated, alice.home.join(name)).expect("a link");
    }
    let mut past = enforced(&system, alice, "past", "64MiB");
    past.args(["env", "LD_PRELOAD=", "DIVVY_EMULATED=h100"])
        .arg(format!("LD_LIBRARY_PATH={}", alice.home.display()))
        .arg(system.program("probe"));
    let said = finish(&mut past);
    assert!(!said.status.success(), "a device of its own: {said:?}");
    assert_eq!(first.allocate(MIB), Ok(()), "all that did no harm");
    assert_eq!(second.allocate(MIB), Ok(()));
    system.holds();
}

#[test]
fn a_client_that_forges_its_messages_gets_no_more_memory_and_harms_no_other_tenant() {
    let Some(system) = System::new() else { return };
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    let mut second = probe(&system, bob, "second", "1GiB");
    assert_eq!(second.allocate(600 * MIB), Ok(()));
    let of_second = Workers::of(&system, "second");
    let before = of_second.serving();
    // The device's own figure, whatever any ledger says.
    let on_device = || {
        let devices = system.json(["devices"]);
        devices["items"][0]["memory_used_bytes"]
            .as_u64()
            .expect("a number")
    };
    let others = on_device();
    let mut forger = enforced(&system, alice, "forger", "256MiB");
    forger
        .arg(system.program("attacker"))
        .args(["forge-calls", "4000"]);
    let mut forger = forger.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut most = 0;
    while forger.try_wait().expect("a child").is_none() {
        most = most.max(on_device().saturating_sub(others));
        std::thread::sleep(Duration::from_millis(10));
    }
    let said: Value =
        serde_json::from_str(&succeeded(&forger.wait_with_output().expect("it ended"))).expect("what it did");
    println!("{said}, {most} bytes at most");
    let number = |name: &str| said[name].as_u64().expect("a number");
    assert!(number("sent") >= 4000 && number("succeeded") > 400, "{said}");
    assert!(number("allocated") > 5, "it got memory at all: {said}");
    assert!((MIB..=256 * MIB).contains(&most), "{most} bytes, {said}");
    assert_eq!(of_second.serving(), before, "another tenant's worker");
    assert!(second.copies());
    assert!(second.allocate(600 * MIB).is_err(), "its limit holds as before");
    gone(&system, "forger");
    wait::until("its memory is free", || (on_device() <= others).then_some(()));
    drop(second);
    system.holds();
}

#[test]
fn a_dead_worker_is_its_programs_alone_and_programs_outlive_the_agent() {
    let Some(system) = System::new() else { return };
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    let mut first = probe(&system, alice, "first", "1GiB");
    let mut second = probe(&system, bob, "second", "1GiB");
    assert_eq!(first.allocate(600 * MIB), Ok(()));
    assert_eq!(second.allocate(600 * MIB), Ok(()));
    let (of_first, of_second) = (Workers::of(&system, "first"), Workers::of(&system, "second"));
    let before = of_second.serving();
    let dead = of_first.serving();
    for pid in &dead {
        processes::signal(*pid, Signal::KILL);
    }
    assert_eq!(
        first.allocate(MIB),
        Err("CUDA_ERROR_DEVICE_UNAVAILABLE".to_owned())
    );
    assert_eq!(of_second.serving(), before);
    assert!(second.copies());
    // The agent and its helper end. Workers go on, and the next agent takes over.
    system.stop_agent();
    assert_eq!(second.allocate(100 * MIB), Ok(()));
    assert!(second.allocate(600 * MIB).is_err(), "the limit holds meanwhile");
    system.start_agent();
    assert_eq!(of_second.serving(), before);
    assert_eq!(Workers::of(&system, "second").listener, of_second.listener);
    succeeded(&finish(
        &mut system.divvy_as(bob, ["resize", "second", "--memory", "2GiB"]),
    ));
    assert_eq!(second.allocate(600 * MIB), Ok(()));
    // The process that starts workers is replaced when it dies, and its workers with it.
    processes::signal(of_second.listener, Signal::KILL);
    let next = wait::until("another listens", || {
        let next = Workers::of(&system, "second");
        (next.listener != of_second.listener).then_some(next)
    });
    assert_eq!(next.uid, of_second.uid);
    assert_eq!(
        second.allocate(MIB),
        Err("CUDA_ERROR_DEVICE_UNAVAILABLE".to_owned())
    );
    drop(first);
    succeeded(&finish(
        &mut system.divvy_as(bob, ["kill", "second", "--yes", "--signal", "KILL"]),
    ));
    second.wait();
    for (name, workers, serving) in [("first", of_first, dead), ("second", next, before)] {
        gone(&system, name);
        workers.are_gone(&serving);
    }
    system.holds();
}

/// Looks by NVML's own library, and then forges queries: many, of all kinds, on many connections.
const QUERIES: &str = r"
import ctypes, json, os, random, socket, struct
nvml = ctypes.CDLL('libnvidia-ml.so.1')
def memory():
    assert nvml.nvmlInit_v2() == 0
    device, three = ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(device, three) == 0
    return three[0]
path = os.path.join(os.path.dirname(os.environ['DIVVY_REMOTE']), 'nvml.sock')
def connect():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Without a time limit a full queue of connections is waited for.
    s.connect(path)
    s.settimeout(60)
    s.send(b'!')
    return s
said = {'total': memory(), 'answered': 0, 'closed': 0}
random.seed(7)

for word in open('/proc/self/maps').read().split():
    if word.endswith('libnvidia-ml.so.1'):
        said['library'] = word
s = connect(); s.recv(64)
for at in range(400):
    message = random.randbytes(random.choice((0, 8, 16, 17, 40, 4000, 70000)))
    try:
        s.send(struct.pack('<QQ', random.getrandbits(64), at) + message)
        said['answered' if s.recv(70000) else 'closed'] += 1
    except OSError:
        said['closed'] += 1
        s.close(); s = connect(); s.recv(64)
s.close()
many = [connect() for _ in range(80)]
heard = [s.recv(64) for s in many]
said['greeted'] = sum(word.startswith(b'divvynvm') for word in heard)
said['refused'] = heard.count(b'full')
said['beside'] = memory()
print(json.dumps(said))
";

#[test]
fn queries_are_answered_for_the_slice_and_a_forger_of_queries_does_no_harm() {
    let Some(system) = System::new() else { return };
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    let mut second = probe(&system, bob, "second", "1GiB");
    assert_eq!(second.allocate(600 * MIB), Ok(()));
    let before = Workers::of(&system, "second").serving();
    let mut asks = enforced(&system, alice, "asks", "256MiB");
    asks.args(["python3", "-c", QUERIES]);
    let said: Value = serde_json::from_str(&succeeded(&finish(&mut asks))).expect("what it saw");
    println!("{said}");
    let number = |name: &str| said[name].as_u64().expect("a number");
    assert_eq!(number("total"), 256 * MIB);
    assert_eq!(
        number("beside"),
        256 * MIB,
        "its own connection is served as before"
    );
    assert!(
        said["library"]
            .as_str()
            .is_some_and(|path| path.contains("/stages/")),
        "{said}"
    );
    // What no version of ours could have sent ends a connection, and an unknown query is answered.
    assert!(number("answered") > 100, "{said}");
    assert!((40..=64).contains(&number("greeted")), "{said}");
    assert_eq!(number("greeted") + number("refused"), 80, "{said}");
    gone(&system, "asks");
    assert_eq!(Workers::of(&system, "second").serving(), before);
    assert!(second.copies());
    // Who asks holds no place in the ledger, and is in the jail.
    let mut stays = enforced(&system, alice, "stays", "256MiB");
    let script = "import ctypes\nassert ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2() == 0\nprint('in', flush=True)\ninput()";
    stays
        .args(["python3", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut stays = stays.spawn().expect("it starts");
    let mut line = String::new();
    let output = stays.stdout.take().expect("its output");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).expect("a line");
    let workers = Workers::of(&system, "stays");
    let serving = workers.serving();
    assert_eq!(serving.len(), 1, "{serving:?}");
    assert_eq!(processes::arguments(serving[0])[1], "--query");
    assert!(system.slice("stays").processes.is_empty());
    let status = fs::read_to_string(format!("/proc/{}/status", serving[0])).expect("its status");
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    drop(stays.stdin.take());
    stays.wait().expect("it ends");
    gone(&system, "stays");
    workers.are_gone(&serving);
    system.holds();
}

/// Connects many times, to both sockets, and keeps all. A line says what they do next, as far as they are still open.
const IDLE: &str = r"
import json, os, socket, sys
paths = [os.environ['DIVVY_REMOTE'], os.path.join(os.path.dirname(os.environ['DIVVY_REMOTE']), 'nvml.sock')]
def say(**facts):
    print(json.dumps(facts), flush=True)
def connect(path):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Without a time limit a full queue of connections is waited for.
    s.connect(path)
    s.settimeout(60)
    return s
def hear(s):
    try: return s.recv(64)
    except OSError: return b''
say(pid=os.getpid())
kept = []
for line in sys.stdin:
    what, count = line.split()
    count = int(count)
    if what == 'connect':
        kept = [connect(path) for _ in range(count) for path in paths]
        say(connected=len(kept))
    elif what == 'shout':
        # What begins with another word is closed, whatever follows.
        for s in kept:
            try: s.send(b'G')
            except OSError: pass
        say(closed=sum(hear(s) == b'' for s in kept))
    elif what == 'begin':
        kept = [connect(paths[0]) for _ in range(count)]
        for s in kept: s.send(b'!')
        heard = [hear(s) for s in kept]
        say(greeted=sum(word.startswith(b'divvywrk') for word in heard), refused=heard.count(b'full'))
    elif what == 'trickle':
        for s in kept:
            try: s.send(b'G')
            except OSError: pass
        say(closed=sum(hear(s) == b'' for s in kept))
";

/// How many connections say nothing: the long form is asked for.
fn idle() -> u64 {
    let asked = std::env::var("DIVVY_TEST_IDLE").ok();
    asked.and_then(|count| count.parse().ok()).unwrap_or(120)
}

/// Connections that say nothing cost no process and keep no program of their own slice out. What says a wrong word has none either,
/// and what only begins has one for as long as it keeps to the protocol.
#[test]
fn connections_that_say_nothing_cost_no_worker() {
    let Some(system) = System::new() else { return };
    if system_python().is_none() {
        return;
    }
    let alice = &system.users.alice;
    let words = [
        "slice",
        "create",
        "--isolation",
        "enforced",
        "idle",
        "--memory",
        "1GiB",
    ];
    succeeded(&finish(&mut system.divvy_as(alice, words)));
    let inside = || system.divvy_as(alice, ["run", "--slice", "idle", "--"]);
    let mut command = inside();
    command.args([
        "sh",
        "-c",
        "ulimit -n $(ulimit -Hn); exec \"$@\"",
        "sh",
        "python3",
        "-c",
        IDLE,
    ]);
    let mut crowd = Tenant::start(command);
    let workers = Workers::of(&system, "idle");
    let before = processes::descriptors(workers.listener);

    let connected = crowd.ask(&format!("connect {}", idle()));
    assert_eq!(connected["connected"], 2 * idle());
    // It connected behind them, so they have been taken. They are fewer than came: the oldest are closed.
    let mut command = inside();
    command.arg(system.program("probe"));
    let mut honest = Tenant::start(command);
    assert_eq!(honest.allocate(MIB), Ok(()));
    let serving = workers.serving();
    assert_eq!(serving.len(), 1, "{serving:?}");
    let held = processes::descriptors(workers.listener);
    assert!(held <= before + 134, "{before}, then {held}");

    assert_eq!(crowd.ask("shout 0")["closed"], 2 * idle());
    assert_eq!(workers.serving(), serving);

    // So many begin. Each has a worker, up to what a slice may have; with a word that is none it has ended.
    let begin = idle() / 10;
    crowd.tell(&format!("begin {begin}"));
    let begun = crowd.answer_within(Duration::from_secs(120));
    let number = |of: &Value, name: &str| of[name].as_u64().expect("a number");
    assert_eq!(number(&begun, "greeted"), begin.min(255), "{begun}");
    assert_eq!(number(&begun, "refused"), begin - begin.min(255), "{begun}");
    assert_eq!(crowd.ask("trickle 0")["closed"], begin);
    wait::until("their workers are gone", || {
        (processes::tree(workers.listener).len() == 2).then_some(())
    });
    assert!(honest.copies());
    drop((crowd, honest));
    let delete = ["slice", "delete", "idle", "--yes"];
    succeeded(&finish(&mut system.divvy_as(alice, delete)));
    gone(&system, "idle");
    system.holds();
}

/// The folder of a process's group that limits memory; none where its slice's workers have no group.
fn group_of(pid: u32) -> Option<PathBuf> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("its groups");
    let mut lines = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        Some((parts.next()?, parts.next()?))
    });
    let (kind, path) = lines.find(|(_, path)| path.contains("/divvy-workers-"))?;
    let mount = match kind {
        "" => "/sys/fs/cgroup",
        _ => "/sys/fs/cgroup/memory",
    };
    Some(Path::new(mount).join(path.trim_start_matches('/')))
}

#[test]
fn a_worker_with_too_much_of_the_hosts_memory_is_ended_alone() {
    let Some(system) = System::with(&[("DIVVY_WORKER_MEMORY", "4GiB")]) else {
        return;
    };
    let (alice, bob) = (&system.users.alice, &system.users.bob);
    let mut second = probe(&system, bob, "second", "1GiB");
    assert_eq!(second.allocate(600 * MIB), Ok(()));
    let mut create = system.divvy_as(
        alice,
        [
            "slice",
            "create",
            "--isolation",
            "enforced",
            "first",
            "--memory",
            "2GiB",
        ],
    );
    succeeded(&finish(&mut create));
    let inside = |words: &[&str]| {
        let mut command = system.divvy_as(alice, ["run", "--slice", "first", "--"]);
        command.arg(system.program(words[0])).args(&words[1..]);
        command
    };
    let mut first = Tenant::start(inside(&["probe"]));
    assert_eq!(first.allocate(MIB), Ok(()));
    let workers = Workers::of(&system, "first");
    let Some(group) = group_of(workers.listener) else {
        // It said why.
        assert!(
            system.log_text().contains("no memory controller"),
            "{}",
            system.log_text()
        );
        return;
    };
    for worker in workers.serving() {
        assert_eq!(group_of(worker).as_ref(), Some(&group));
    }
    assert_ne!(
        group_of(Workers::of(&system, "second").listener).as_ref(),
        Some(&group)
    );
    let [limit, used] = match group.join("memory.max").exists() {
        true => ["memory.max", "memory.current"],
        false => ["memory.limit_in_bytes", "memory.usage_in_bytes"],
    };
    let number = |name: &str| -> u64 {
        let text = fs::read_to_string(group.join(name)).expect("the kernel's figure");
        text.trim().parse().expect("a number")
    };
    assert_eq!(
        number(limit),
        81_559 * MIB + 4096 * MIB,
        "the setting, and the device"
    );
    // As if the setting were so much lower: the program's copies make device memory, which is the host's here.
    fs::write(group.join(limit), (number(used) + 64 * MIB).to_string()).expect("root may");
    let ended = finish(&mut inside(&["transfers", "pageable", "201326592"]));
    assert!(!ended.status.success(), "{ended:?}");
    assert!(
        stderr(&ended).contains("DEVICE_UNAVAILABLE"),
        "{}",
        stderr(&ended)
    );
    wait::until("its end is named", || {
        system
            .log_text()
            .contains("`worker_memory` says how much")
            .then_some(())
    });
    assert_eq!(Workers::of(&system, "first").listener, workers.listener);
    assert_eq!(first.allocate(MIB), Ok(()), "the slice's other program");
    assert!(second.copies(), "another tenant");
    drop(first);
    succeeded(&finish(
        &mut system.divvy_as(alice, ["slice", "delete", "first", "--yes"]),
    ));
    gone(&system, "first");
    wait::until("its group is gone", || (!group.exists()).then_some(()));
    system.holds();
}

#[test]
fn the_level_is_refused_where_it_would_be_none() {
    let Some(system) = System::new() else { return };
    let alice = &system.users.alice;
    let run = |words: &[&str]| {
        let mut command = system.divvy_as(alice, ["run", "--isolation", "enforced", "--memory", "64MiB"]);
        finish(command.args(words))
    };
    for (words, why) in [
        (["--share", "mps", "--", "true"], "by leases, not by mps"),
        (["--driver", "/etc/passwd", "--", "true"], "driver"),
    ] {
        let refused = run(&words);
        assert_eq!(refused.status.code(), Some(125), "{refused:?}");
        assert!(stderr(&refused).contains(why), "{}", stderr(&refused));
    }
    // An agent of her own.
    let own = alice.home.join("run");
    let mut alone = system.divvy_as(alice, ["run", "--isolation", "enforced", "--memory", "64MiB"]);
    alone.env("DIVVY_RUN_DIR", &own).env("DIVVY_EMULATED", "h100");
    let refused = finish(alone.args(["--", "true"]));
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(
        stderr(&refused).contains("runs as your own user"),
        "{}",
        stderr(&refused)
    );
    let shown: Value = system.json(["explain", "isolation"]);
    let levels = shown["items"].as_array().expect("levels");
    let offered = |level: &str| {
        let mut found = levels.iter().filter(|entry| entry["level"] == level);
        found.next().expect("a level")["offered"].clone()
    };
    assert_eq!(offered("enforced"), Value::Bool(true));
}
