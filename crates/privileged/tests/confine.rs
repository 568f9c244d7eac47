//! Filters of system calls: what is refused fails with EPERM and ends nothing, what is needed works. Each test runs itself
//! again as a process that is confined, and looks for an exit status that only the body gives.

use std::io;
use std::process::Command;

use divvy_privileged::{confine_agent, confine_helper, confine_page_server};

/// What a confined process ends with when all was as it should be.
const AS_IT_SHOULD_BE: i32 = 73;
const VARIABLE: &str = "DIVVY_TEST_CONFINED";

/// Runs the test of this name again with the variable set. Whether this is that process.
fn is_confined(name: &str) -> bool {
    if std::env::var_os(VARIABLE).is_some() {
        return true;
    }
    let output = divvy_own_process::command(name)
        .env(VARIABLE, "1")
        .output()
        .expect("it runs");
    assert_eq!(
        output.status.code(),
        Some(AS_IT_SHOULD_BE),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

fn is_refused(what: &str, outcome: nix::Result<()>) {
    assert_eq!(outcome, Err(nix::errno::Errno::EPERM), "{what}");
}

/// What no process of ours does. Without a filter each fails with another error here, or works: for root most of them do.
fn try_what_is_forbidden() {
    use nix::mount::{MsFlags, mount};
    let none: Option<&str> = None;
    is_refused("mount", mount(none, "/nowhere", none, MsFlags::empty(), none));
    is_refused(
        "ptrace",
        nix::sys::ptrace::attach(nix::unistd::Pid::from_raw(i32::MAX)),
    );
    is_refused("init_module", nix::kmod::init_module(b"", c""));
    is_refused(
        "unshare",
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER),
    );
    let socket = std::net::UdpSocket::bind("127.0.0.1:0");
    assert_eq!(
        socket.expect_err("no network").kind(),
        io::ErrorKind::PermissionDenied
    );
    assert!(rustix::thread::no_new_privs().expect("told"));
}

/// What each of them does.
fn try_what_is_needed() {
    let spawned = std::thread::spawn(|| std::fs::read("/proc/self/stat").map(|stat| stat.len()));
    assert!(spawned.join().expect("a thread").expect("read") > 0);
    let (one, other) = std::os::unix::net::UnixStream::pair().expect("sockets");
    one.set_nonblocking(true).expect("set");
    io::Write::write_all(&mut &one, b"x").expect("written");
    let mut byte = [0];
    io::Read::read_exact(&mut &other, &mut byte).expect("read");
    rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
    let own = rustix::process::getpid();
    rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty()).expect("a descriptor");
}

#[test]
fn a_page_server() {
    if !is_confined("a_page_server") {
        return;
    }
    // A thread that is there already is confined as well.
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        wait.recv().expect("told");
        Command::new("true")
            .spawn()
            .expect_err("a page server starts nothing")
            .kind()
    });
    let was_root = rustix::process::geteuid().is_root();
    confine_page_server(54_321, 54_322).expect("confined");
    if was_root {
        assert_eq!(rustix::process::geteuid().as_raw(), 54_321);
        assert_eq!(rustix::process::getegid().as_raw(), 54_322);
        let groups = rustix::process::getgroups().expect("told");
        assert!(groups.iter().all(|group| group.as_raw() == 54_322), "{groups:?}");
        is_refused("setuid", nix::unistd::setresuid(0.into(), 0.into(), 0.into()));
    }
    try_what_is_forbidden();
    try_what_is_needed();
    go.send(()).expect("it waits");
    assert_eq!(thread.join().expect("a thread"), io::ErrorKind::PermissionDenied);
    std::process::exit(AS_IT_SHOULD_BE);
}

#[test]
fn an_agent() {
    if !is_confined("an_agent") {
        return;
    }
    confine_agent().expect("confined");
    try_what_is_forbidden();
    try_what_is_needed();
    // It starts page servers, which narrow the filter for themselves.
    assert!(Command::new("true").status().expect("it runs").success());
    confine_page_server(rustix::process::getuid().as_raw(), 0).expect("narrower");
    Command::new("true").spawn().expect_err("no more");
    try_what_is_forbidden();
    try_what_is_needed();
    std::process::exit(AS_IT_SHOULD_BE);
}

#[test]
fn a_helper() {
    use std::os::unix::process::CommandExt;
    if !is_confined("a_helper") {
        return;
    }
    confine_helper().expect("confined");
    try_what_is_forbidden();
    try_what_is_needed();
    // It starts vendors' tools as users, and these start what they need: a shell is as good.
    let mut command = Command::new("sh");
    command.args(["-c", "ls / | sort | head -n 1 && echo $(id -u)"]);
    if rustix::process::geteuid().is_root() {
        command.uid(54_321).gid(54_321);
    }
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.lines().count() == 2, "{output:?}");
    std::process::exit(AS_IT_SHOULD_BE);
}

#[test]
fn a_worker() {
    use divvy_privileged::jail::{Asks, Below, Lack, forbid_tracing, lock_up};
    use nix::errno::Errno;
    use rustix::process::{DumpableBehavior, Signal, dumpable_behavior, kill_process};
    if !is_confined("a_worker") {
        return;
    }
    let readable = std::fs::File::open("/etc/passwd").expect("before");
    forbid_tracing().expect("for good");
    assert_eq!(dumpable_behavior(), Ok(DumpableBehavior::NotDumpable));
    let lack = lock_up(Below::Emulated, Asks::Calls).expect("locked up");
    try_what_is_forbidden();
    // It starts nothing and signals no other process, not even to ask whether it is there.
    let spawned = Command::new("true").spawn().expect_err("nothing is started");
    assert_eq!(spawned.kind(), io::ErrorKind::PermissionDenied);
    let first = rustix::process::Pid::from_raw(1).expect("a number");
    assert_eq!(kill_process(first, Signal::KILL), Err(rustix::io::Errno::PERM));
    assert_eq!(
        rustix::process::pidfd_open(first, rustix::process::PidfdFlags::empty()).expect_err("refused"),
        rustix::io::Errno::PERM
    );
    is_refused("setuid", nix::unistd::setresuid(0.into(), 0.into(), 0.into()));
    // A core file and a tracer of the same user stay forbidden.
    let again = rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable);
    assert_eq!(again, Err(rustix::io::Errno::PERM));
    let listens = std::os::unix::net::UnixListener::bind("/tmp/divvy-test-of-a-worker");
    assert_eq!(
        listens.expect_err("refused").kind(),
        io::ErrorKind::PermissionDenied
    );
    assert_eq!(
        std::fs::write("/tmp/divvy-test-of-a-worker", "x")
            .expect_err("refused")
            .kind(),
        io::ErrorKind::PermissionDenied
    );
    if lack != Some(Lack::Landlock) {
        let again = std::fs::File::open("/etc/passwd").expect_err("no file");
        assert_eq!(again.raw_os_error(), Some(Errno::EACCES as i32));
    }
    // What is open stays open, and computing goes on.
    assert!(readable.metadata().expect("told").len() > 0);
    let spawned = std::thread::spawn(|| std::thread::available_parallelism().is_ok());
    assert!(spawned.join().expect("a thread"));
    rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
    std::process::exit(AS_IT_SHOULD_BE);
}
