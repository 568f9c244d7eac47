//! Starting an agent on demand: of any number of callers that race, one starts it and all get it.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use divvy_model::{Code, Fault};
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::files::kernel;
use crate::start::rundir::RunDir;
use crate::start::rundir::{AGENT_LOCK, LOG, START_LOCK};

/// The time limit for an agent to begin to listen. It is generous: a cold start on a loaded machine takes a second.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The time limit for an agent that no longer listens to end. It is less than the other, because its successor is
/// waited for meanwhile.
const WAY_OUT: Duration = Duration::from_secs(10);

/// Whether an agent listens there.
#[must_use]
pub fn is_listening(run: &RunDir) -> bool {
    UnixStream::connect(run.socket()).is_ok()
}

/// Makes sure that an agent listens. `serve` is the command that serves in the foreground; it is started in the
/// background, with the run directory's log as its output. If a child was started, the caller must reap it.
///
/// # Errors
/// [`Code::AgentStart`] when it does not begin to listen, with the end of its log.
pub fn ensure_agent(run: &RunDir, serve: impl FnOnce() -> Command) -> Result<Option<Child>, Fault> {
    if is_listening(run) {
        return Ok(None);
    }
    own_or_root(run)?;
    let lock = lock_file(run, START_LOCK)?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|error| {
        Fault::new(Code::AgentStart, "cannot wait for another start of the agent")
            .because(&std::io::Error::from(error))
    })?;
    // Another caller may have started one while we waited.
    if is_listening(run) {
        return Ok(None);
    }
    let mut child = spawn(run, serve())?;
    let begin = Instant::now();
    while begin.elapsed() < TIMEOUT {
        if is_listening(run) {
            return Ok(Some(child));
        }
        if let Ok(Some(status)) = child.try_wait() {
            return Err(did_not_start(run, &format!("the agent ended with {status}")));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ = child.kill();
    let _ = child.wait();
    Err(did_not_start(run, "the agent did not listen in time"))
}

/// Only a run directory's owner can start its agent.
fn own_or_root(run: &RunDir) -> Result<(), Fault> {
    let user = rustix::process::getuid();
    let owner = std::fs::symlink_metadata(run.path()).map_or(user.as_raw(), |meta| meta.uid());
    if user.is_root() || owner == user.as_raw() {
        return Ok(());
    }
    Err(Fault::new(
        Code::AgentUnreachable,
        format!(
            "no agent answers on `{}`, and only user {owner} can start one there",
            run.socket().display()
        ),
    )
    .hint("`systemctl start divvy-agent` starts the system's; DIVVY_RUN_DIR names a directory of your own"))
}

fn spawn(run: &RunDir, mut serve: Command) -> Result<Child, Fault> {
    crate::start::log::begin(run);
    let log = crate::start::log::open_log(run)?;
    let second = log.try_clone();
    let cannot =
        |error: &std::io::Error| Fault::new(Code::AgentStart, "cannot start the agent").because(error);
    serve
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(second.map_err(|error| cannot(&error))?)
        .current_dir("/")
        // The terminal's signals are for the program, not for the agent.
        .process_group(0)
        .spawn()
        .map_err(|error| cannot(&error))
}

/// Closes all inherited descriptors except the standard streams: a daemon must not hold its starter's files, pipes and
/// locks. To be called first, before this process opens anything.
pub fn close_inherited() {
    let numbers = kernel::numbers("self", "fd").unwrap_or_default();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        // One of them was the list's own descriptor, and is closed already.
        let _closed = nix::unistd::close(number);
    }
}

fn lock_file(run: &RunDir, name: &str) -> Result<File, Fault> {
    run.folder()
        .and_then(|folder| folder.open_to_write(name, OFlags::empty(), 0o600))
        .map_err(|error| {
            Fault::new(Code::RunDir, format!("cannot open the lock `{name}`"))
                .because(&error)
                .hint("set DIVVY_RUN_DIR to a directory you may write in")
        })
}

fn did_not_start(run: &RunDir, why: &str) -> Fault {
    let log = run
        .folder()
        .and_then(|folder| folder.read_text(LOG))
        .unwrap_or_default();
    let mut fault = Fault::new(Code::AgentStart, why);
    let lines: Vec<&str> = log.lines().collect();
    let tail = lines.len().saturating_sub(3);
    fault
        .causes
        .extend(lines[tail..].iter().map(|line| (*line).to_owned()));
    fault.hint(format!("its log is {}", run.log().display()))
}

/// The lock that an agent holds for life: a second agent of the same run directory ends at once. An agent that is about
/// to end no longer listens and still holds it, so this waits for that one.
///
/// # Errors
/// [`Code::AgentStart`] when another agent holds it.
pub(crate) fn hold_agent_lock(run: &RunDir) -> Result<File, Fault> {
    const PAUSE: Duration = Duration::from_millis(5);
    let lock = lock_file(run, AGENT_LOCK)?;
    let begin = Instant::now();
    loop {
        let error = match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(error) => std::io::Error::from(error),
        };
        if error.kind() != ErrorKind::WouldBlock {
            return Err(Fault::new(Code::AgentStart, "cannot lock the run directory").because(&error));
        }
        if is_listening(run) || begin.elapsed() >= WAY_OUT {
            return Err(Fault::new(
                Code::AgentStart,
                format!("another agent serves `{}`", run.path().display()),
            )
            .hint("`divvy agent status` shows it"));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Waits for a while until an agent that was told to stop no longer listens.
pub fn wait_for_end(run: &RunDir) {
    let begin = Instant::now();
    while is_listening(run) && begin.elapsed() < WAY_OUT {
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_of_an_agent_on_its_way_out_is_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = RunDir::open(&folder.path().join("run")).expect("a run directory");
        let first = hold_agent_lock(&run).expect("free");
        std::thread::scope(|scope| {
            let second = scope.spawn(|| hold_agent_lock(&run).map(drop));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!second.is_finished(), "the first holds it");
            drop(first);
            second.join().expect("no panic").expect("its turn");
        });
        // An agent that listens is not about to end.
        let _first = hold_agent_lock(&run).expect("free");
        let _listener = std::os::unix::net::UnixListener::bind(run.socket()).expect("a socket");
        let refused = hold_agent_lock(&run).expect_err("it serves");
        assert_eq!(refused.code, Code::AgentStart);
    }
}
