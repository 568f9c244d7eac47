//! Programs without a device and their workers, killed at random moments; and programs that use their connection in
//! strange ways. Nothing of them stays.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use divvy_tests::clients::system_python;
use divvy_tests::host::{finish, succeeded};
use divvy_tests::system::System;
use divvy_tests::tenant::Tenant;
use divvy_tests::{MIB, processes, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

/// CUDA by ctypes.
const CUDA: &str = r"
import ctypes, json, os, random, signal, sys, threading, time
cuda = ctypes.CDLL('libcuda.so.1')
LOST = 46
context = ctypes.c_void_p()
def start():
    for code in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)):
        if code: return code
    return 0
def allocate(size=1 << 20):
    address = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)), address
def say(**facts):
    print(json.dumps(facts), flush=True)
";

/// Forks programs, and kills each after a random time. A program whose worker was killed ends by itself.
const STORM: &str = r"
def client():
    code = start()
    data = ctypes.create_string_buffer(1 << 20)
    while not code:
        pinned = ctypes.c_void_p()
        code, address = allocate()
        code = code or cuda.cuMemcpyHtoD_v2(address, data, ctypes.c_size_t(1 << 20))
        code = code or cuda.cuMemHostAlloc(ctypes.byref(pinned), ctypes.c_size_t(1 << 16), 0)
        code = code or cuda.cuMemsetD8_v2(address, 7, ctypes.c_size_t(1 << 20))
        code = code or cuda.cuMemFree_v2(address)
        code = code or cuda.cuMemFreeHost(pinned)
    os._exit(3 if code == LOST else 4)
dice, left, ends = random.Random(7), int(sys.argv[1]), {}
say(pid=os.getpid())
alive = {}
while left or alive:
    while left and len(alive) < 4:
        left -= 1
        pid = os.fork()
        if not pid: client()
        # A third lives until its worker is killed.
        alive[pid] = time.monotonic() + (dice.random() * 0.12 if dice.random() < 0.67 else 3600)
    for pid, until in list(alive.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended and time.monotonic() > until:
            # A quarter stops first, and reads no answer any more.
            if dice.random() < 0.25: os.kill(pid, signal.SIGSTOP)
            os.kill(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, 0)
        if ended:
            del alive[pid]
            how = 'killed' if os.WIFSIGNALED(status) else {3: 'lost'}.get(os.WEXITSTATUS(status), 'failed')
            ends[how] = ends.get(how, 0) + 1
    time.sleep(0.001)
say(**ends)
for line in sys.stdin:
    pid = os.fork()
    if not pid: os._exit(start() or allocate(900 << 20)[0])
    say(code=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

/// Takes all 64 channels, and one more; a thread ends by a raw system call; a child is forked.
const THREADS: &str = r"
say(pid=os.getpid())
for line in sys.stdin: break
assert start() == 0
go, codes, holds = threading.Event(), [], []
def taken():
    return cuda.cuCtxSetCurrent(context) or allocate()[0]
def hold():
    codes.append(taken())
    holds.append(1)
    go.wait()
def wait_for(count):
    while len(holds) < count: time.sleep(0.001)
threads = [threading.Thread(target=hold, daemon=True) for _ in range(63)]
for thread in threads: thread.start()
wait_for(63)
say(held=sum(code == 0 for code in codes))
def once():
    codes.append(taken())
def one():
    thread = threading.Thread(target=once)
    thread.start()
    thread.join()
    return codes[-1]
log = os.environ['DIVVY_LOG']
say(one_more=[one(), one()], first=allocate()[0], told=open(log).read())
os.unlink(log)
go.set()
for thread in threads: thread.join()
say(after=one())
libc = ctypes.CDLL(None)
def dies():
    holds.append(taken())
    libc.syscall(60, 0)
holds.clear()
for _ in range(70):
    count = len(holds)
    threading.Thread(target=dies, daemon=True).start()
    wait_for(count + 1)
    time.sleep(0.002)
say(died=len(holds), served=holds.count(0), then=one())
pid = os.fork()
if not pid: os._exit(cuda.cuInit(0) & 255)
say(again=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
pid = os.fork()
if not pid: os._exit(allocate()[0] & 255)
say(child=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), parent=allocate()[0])
os._exit(0)
";

/// Launches, or mixes all kinds of calls, as often as each line says.
const BUSY: &str = r"
say(pid=os.getpid())
assert start() == 0
text = b'.version 7.0\n.target sm_70\n.address_size 64\n.visible .entry empty(.param .u64 p)\n{\n ret;\n}\n'
# Longer than a part of a ring: it goes in several, and a stop may come between two.
large = b'//' + b'x' * 300000 + b'\n' + text
function, data = ctypes.c_void_p(), ctypes.create_string_buffer(1 << 20)
value = ctypes.c_uint64(0)
parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
def load(text):
    module = ctypes.c_void_p()
    code = cuda.cuModuleLoadData(ctypes.byref(module), text)
    return code or cuda.cuModuleGetFunction(ctypes.byref(function), module, b'empty'), module
def launch():
    return cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
assert load(text)[0] == 0
say(ready=True)
for line in sys.stdin:
    what, count = line.split()
    code = 0
    for _ in range(int(count)):
        code = code or launch()
        if what == 'mix':
            failed, address = allocate()
            code = code or failed or cuda.cuMemcpyHtoD_v2(address, data, ctypes.c_size_t(1 << 20))
            code = code or cuda.cuMemcpyDtoH_v2(data, address, ctypes.c_size_t(1 << 20))
            code = code or cuda.cuMemFree_v2(address)
            failed, module = load(large)
            code = code or failed or launch() or cuda.cuModuleUnload(module) or load(text)[0]
    say(code=code or cuda.cuCtxSynchronize())
";

fn program(system: &System, name: &str, script: &str, words: &[&str]) -> Option<Tenant> {
    let _python = system_python()?;
    let run = [
        "run",
        "--isolation",
        "enforced",
        "--name",
        name,
        "--memory",
        "1GiB",
        "--",
    ];
    let mut command: Command = system.divvy_as(&system.users.alice, run);
    // Read and removed by the program that has something to log.
    command.env(
        "DIVVY_LOG",
        format!("/tmp/divvy-{name}-{}.log", std::process::id()),
    );
    command
        .args(["python3", "-c", &format!("{CUDA}{script}")])
        .args(words);
    Some(Tenant::start(command))
}

/// Names in a folder, and in the folders below it.
fn names(folder: &Path, depth: usize, into: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names(&path, depth - 1, into);
        }
        into.insert(path.to_string_lossy().into_owned());
    }
}

/// What a connection could leave outside its processes: shared memory, and control groups of ours.
fn left() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    names(Path::new("/dev/shm"), 0, &mut found);
    let mut groups = BTreeSet::new();
    names(Path::new("/sys/fs/cgroup"), 3, &mut groups);
    found.extend(groups.into_iter().filter(|name| name.contains("divvy")));
    found
}

/// How many programs the storm has: the long form is asked for.
fn connections() -> u32 {
    let asked = std::env::var("DIVVY_TEST_CONNECTIONS").ok();
    asked.and_then(|count| count.parse().ok()).unwrap_or(60)
}

#[test]
fn programs_and_workers_killed_at_random_moments_leave_nothing() {
    let Some(system) = System::new() else { return };
    let count = connections();
    let Some(mut tenant) = program(&system, "storm", STORM, &[&count.to_string()]) else {
        return;
    };
    let shown = system.json(["inspect", "storm"]);
    let listener = u32::try_from(shown["worker"]["pid"].as_u64().expect("a number")).expect("a number");
    let before = (processes::descriptors(listener), left());
    // Until the storm is over we kill workers too, at times that nothing of theirs decides.
    let over = std::sync::atomic::AtomicBool::new(false);
    let (ends, killed) = std::thread::scope(|scope| {
        let kills = scope.spawn(|| {
            let (mut dice, mut killed) = (11_u64, 0_u32);
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                dice ^= dice << 13;
                dice ^= dice >> 7;
                dice ^= dice << 17;
                let serving = processes::tree(listener).split_off(1);
                let chosen = usize::try_from(dice % 64).expect("small") % serving.len().max(1);
                if let Some(pid) = serving.get(chosen) {
                    processes::signal(*pid, Signal::KILL);
                    killed += 1;
                }
                std::thread::sleep(std::time::Duration::from_millis(dice % 97));
            }
            killed
        });
        let ends = tenant.answer_within(std::time::Duration::from_secs(60 + u64::from(count)));
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        (ends, kills.join().expect("it ends"))
    });
    let of = |how: &str| ends[how].as_u64().unwrap_or(0);
    assert_eq!(of("failed"), 0, "{ends}");
    assert_eq!(of("killed") + of("lost"), u64::from(count), "{ends}");
    assert!(
        of("killed") > 0 && of("lost") > 0 && killed > 0,
        "{ends} {killed}"
    );
    wait::until("no worker serves", || {
        (processes::tree(listener).len() == 1).then_some(())
    });
    wait::until("nothing is held", || {
        let slice = system.slice("storm");
        (slice.memory_used_bytes == 0 && slice.processes.is_empty()).then_some(())
    });
    wait::until("no descriptor is left", || {
        (processes::descriptors(listener) <= before.0).then_some(())
    });
    assert_eq!(left(), before.1);
    // All of its memory can be had again.
    assert_eq!(tenant.ask("again")["code"], 0);
    assert!(tenant.end().success());
    wait::until("the workers' process is gone", || {
        (!processes::is_alive(listener)).then_some(())
    });
    system.holds();
}

#[test]
fn threads_that_die_and_forks_take_nothing_from_the_others() {
    let Some(system) = System::new() else { return };
    let Some(mut tenant) = program(&system, "threads", THREADS, &[]) else {
        return;
    };
    let held = tenant.ask("go");
    assert_eq!(
        held["held"], 63,
        "{held}: with the first thread, as many as there are channels"
    );
    let one_more: Value = tenant.answer();
    assert_eq!(
        one_more["one_more"],
        json!([2, 2]),
        "{one_more}: CUDA_ERROR_OUT_OF_MEMORY"
    );
    let told = one_more["told"].as_str().unwrap();
    assert_eq!(
        told.matches("64 threads of a program").count(),
        1,
        "{told}: one line"
    );
    assert_eq!(one_more["first"], 0, "{one_more}: the others go on");
    assert_eq!(tenant.answer()["after"], 0, "ended threads give theirs back");
    let died = tenant.answer();
    assert_eq!(
        died["served"], died["died"],
        "{died}: as do those that ended without a word"
    );
    assert_eq!(died["then"], 0, "{died}");
    assert_eq!(tenant.answer()["again"], 3, "cuInit in a fork says so too");
    let forked = tenant.answer();
    assert_eq!(
        forked["child"], 3,
        "{forked}: a fork has no device, as without us"
    );
    assert_eq!(forked["parent"], 0, "{forked}");
    tenant.wait();
    system.holds();
}

/// Asks for what no worker serves, twice.
const UNSERVED: &str = r"
say(pid=os.getpid())
assert start() == 0
code, address = allocate()
assert code == 0
handle = ctypes.create_string_buffer(64)
codes = [cuda.cuIpcGetMemHandle(handle, address) for _ in range(2)]
log = os.environ['DIVVY_LOG']
say(codes=codes, told=open(log).read())
os.unlink(log)
for line in sys.stdin: break
";

#[test]
fn a_call_that_is_not_served_is_named_once_in_the_log() {
    let Some(system) = System::new() else { return };
    let Some(mut tenant) = program(&system, "unserved", UNSERVED, &[]) else {
        return;
    };
    let said = tenant.answer();
    assert_eq!(said["codes"], json!([801, 801]), "CUDA_ERROR_NOT_SUPPORTED");
    let told = said["told"].as_str().unwrap();
    assert_eq!(
        told.matches("cuIpcGetMemHandle is not served").count(),
        1,
        "{told}"
    );
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(tenant.end().success());
    system.holds();
}

/// A program is shown by its own number, though its worker holds the memory.
#[test]
fn programs_go_by_their_own_numbers() {
    let Some(system) = System::new() else { return };
    let alice = &system.users.alice;
    let run = [
        "run",
        "--isolation",
        "enforced",
        "--name",
        "own",
        "--memory",
        "256MiB",
        "--",
    ];
    let mut command = system.divvy_as(alice, run);
    command.arg(system.program("probe"));
    let mut tenant = Tenant::start(command);
    assert_eq!(tenant.allocate(100 * MIB), Ok(()));
    let shown = system.slice("own");
    let pids: Vec<u32> = shown.processes.iter().map(|process| process.pid).collect();
    assert_eq!(pids, [tenant.pid()]);
    let listed = system.json(["inspect", "own"]);
    assert_eq!(listed["processes"][0]["command"], "probe", "{listed}");
    assert!(tenant.allocate(200 * MIB).is_err());
    let told = format!("was refused to process {}:", tenant.pid());
    wait::until("the refusal names it", || {
        let events = succeeded(&finish(&mut system.divvy(["events"])));
        events.contains(&told).then_some(())
    });
    assert!(tenant.end().success());
    system.holds();
}

/// Seconds that the worker stands still: in the long form, more than a ring that is full is waited for by itself.
fn stopped_for() -> std::time::Duration {
    let asked = std::env::var("DIVVY_TEST_STOPPED_SECONDS").ok();
    std::time::Duration::from_secs(asked.and_then(|text| text.parse().ok()).unwrap_or(1))
}

/// A program is stopped in the middle of what it does, and a worker while the program submits more than the ring holds, as it
/// stands still behind a long kernel. Both go on where they were, and no other tenant waits.
#[test]
fn a_stopped_side_holds_no_other_up_and_goes_on() {
    let Some(system) = System::new() else { return };
    let Some(mut busy) = program(&system, "busy", BUSY, &[]) else {
        return;
    };
    assert_eq!(busy.answer()["ready"], true);
    let run = ["run", "--isolation", "enforced", "--memory", "1GiB", "--"];
    let mut command = system.divvy_as(&system.users.bob, run);
    command.arg(system.program("probe"));
    let mut other = Tenant::start(command);
    assert_eq!(other.allocate(100 * MIB), Ok(()));
    let worker = processes::worker_of(busy.pid()).expect("it has one");

    busy.tell("mix 60");
    let mut dice = 5_u64;
    for _ in 0..25 {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        std::thread::sleep(std::time::Duration::from_micros(dice % 20_000));
        processes::signal(busy.pid(), Signal::STOP);
        assert!(other.copies(), "another tenant goes on");
        processes::signal(busy.pid(), Signal::CONT);
    }
    assert_eq!(busy.answer()["code"], 0);

    processes::signal(worker, Signal::STOP);
    busy.tell("launch 6000");
    std::thread::sleep(stopped_for());
    assert!(other.copies());
    processes::signal(worker, Signal::CONT);
    assert_eq!(busy.answer()["code"], 0);
    assert_eq!(processes::worker_of(busy.pid()), Some(worker), "the same one");
    assert!(busy.end().success());
    assert!(other.end().success());
    system.holds();
}
