//! Which connections are taken: by what the kernel says of the process at the other end.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use divvy_ledger::peer_pidfd;
use divvy_privileged::start_ticks;
use divvy_privileged::workers::Door;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// As many processes stand between a program and its `divvy run` at most.
const DEEPEST: usize = 256;

/// /proc does not show a process that lives. So nothing can be said of it, and it has no worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotShown(u32);

impl std::fmt::Display for NotShown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "/proc does not show process {} to user {}. Mount /proc without `hidepid`, or take a level that needs no \
             workers: `--isolation supervised`",
            self.0,
            rustix::process::getuid().as_raw()
        )
    }
}

impl std::error::Error for NotShown {}

/// Whether the process at the other end may have a worker.
///
/// # Errors
/// [`NotShown`].
pub fn admits(door: &Door, connection: BorrowedFd<'_>) -> Result<bool, NotShown> {
    let Door::Host { uid, below } = door else {
        // The slice's containers alone have this socket mounted.
        return Ok(true);
    };
    let Ok(peer) = socket_peercred(connection) else {
        return Ok(false);
    };
    if peer.uid.as_raw() != *uid {
        return Ok(false);
    }
    let Some((root, since)) = *below else {
        return Ok(true);
    };
    let Ok(pinned) = pinned(connection, peer.pid) else {
        return Ok(false);
    };
    let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
    shown(pid, &pinned, start_ticks)?;
    // Both live after the walk between them, so no number in it meant another process.
    let is_below = is_below(pid, root) && start_ticks(root).is_ok_and(|began| began == since);
    Ok(is_below && lives(&pinned))
}

/// The start of a process; none where it has ended. `start` reads it from /proc.
fn shown<E>(
    pid: u32,
    pinned: &OwnedFd,
    start: impl FnOnce(u32) -> Result<u64, E>,
) -> Result<Option<u64>, NotShown> {
    let since = start(pid);
    // It lives after its start was read, so the start is its own.
    match (since, lives(pinned)) {
        (Ok(since), true) => Ok(Some(since)),
        (_, false) => Ok(None),
        (Err(_), true) => Err(NotShown(pid)),
    }
}

/// The process that connected. Before Linux 6.5 it is the one that has its number now.
fn pinned(connection: BorrowedFd<'_>, pid: Pid) -> Result<OwnedFd, Errno> {
    match peer_pidfd(connection) {
        Err(Errno::NOPROTOOPT) => pidfd_open(pid, PidfdFlags::empty()),
        pinned => pinned,
    }
}

/// The process that connected: its number, and its start in the kernel's ticks since boot. None where it has ended: the
/// number may be another process's by now.
///
/// # Errors
/// [`NotShown`].
pub fn identify(connection: BorrowedFd<'_>) -> Result<Option<(u32, u64)>, NotShown> {
    let Ok(peer) = socket_peercred(connection) else {
        return Ok(None);
    };
    let Ok(pinned) = pinned(connection, peer.pid) else {
        return Ok(None);
    };
    let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
    Ok(shown(pid, &pinned, start_ticks)?.map(|since| (pid, since)))
}

/// A process that loses its parents becomes a child of its `divvy run`, so no program of it leaves the tree.
fn is_below(pid: u32, root: u32) -> bool {
    let mut at = pid;
    for _ in 0..DEEPEST {
        match parent(at) {
            Some(above) if above == root => return true,
            Some(above) if above > 1 && above != at => at = above,
            _ => return false,
        }
    }
    false
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold any character.
    let rest = stat.rsplit_once(')')?.1;
    rest.split_whitespace().nth(1)?.parse().ok()
}

/// A process's descriptor is readable once the process has ended.
fn lives(process: &OwnedFd) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut look = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
    poll(&mut look, Some(&now)) == Ok(0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn own() -> (u32, u64) {
        let pid = std::process::id();
        (pid, start_ticks(pid).expect("we live"))
    }

    #[test]
    fn a_program_is_known_while_it_lives_and_its_number_is_no_ones_after_that() {
        use std::os::unix::net::UnixListener;
        use std::process::{Command, Stdio};
        let (ours, _its) = UnixStream::pair().expect("a pair");
        assert_eq!(identify(ours.as_fd()), Ok(Some(own())));
        // A child connects by itself, and the connection outlives it.
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let script =
            "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\nsys.stdin.read()";
        let started = Command::new("python3")
            .args(["-c", script])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn();
        let mut child = match started {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            child => child.expect("it starts"),
        };
        let (connection, _) = listener.accept().expect("it connects");
        let known = identify(connection.as_fd()).expect("/proc").expect("it lives");
        assert_eq!(known.0, child.id());
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert_eq!(identify(connection.as_fd()), Ok(None));
    }

    #[test]
    fn a_process_that_lives_and_is_not_shown_is_said_to_be_so() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("it starts");
        let number = Pid::from_raw(child.id().cast_signed()).expect("a number");
        let pinned = pidfd_open(number, PidfdFlags::empty()).expect("it lives");
        let hidden = |_| Err(std::io::ErrorKind::NotFound);
        assert_eq!(shown(child.id(), &pinned, hidden), Err(NotShown(child.id())));
        let said = NotShown(child.id()).to_string();
        assert!(
            said.contains("hidepid") && said.contains(&child.id().to_string()),
            "{said}"
        );
        assert_eq!(shown::<()>(child.id(), &pinned, |_| Ok(7)), Ok(Some(7)));
        child.kill().expect("ours");
        child.wait().expect("ended");
        assert_eq!(shown(child.id(), &pinned, hidden), Ok(None), "it has ended");
        assert_eq!(
            shown::<()>(child.id(), &pinned, |_| Ok(7)),
            Ok(None),
            "the number is another's"
        );
    }

    #[test]
    fn a_process_of_the_slice_is_let_in_and_no_other() {
        let (ours, _its) = UnixStream::pair().expect("a pair");
        let uid = rustix::process::getuid().as_raw();
        let above = parent(std::process::id()).expect("a parent");
        let since = start_ticks(above).expect("it lives");
        let host = |uid, below| Door::Host { uid, below };
        let admits = |door: Door| admits(&door, ours.as_fd()).expect("/proc shows us");
        assert!(admits(Door::Container));
        assert!(admits(host(uid, None)));
        assert!(!admits(host(uid + 1, None)), "another user");
        assert!(admits(host(uid, Some((above, since)))), "its parent's");
        assert!(
            !admits(host(uid, Some((above, since + 1)))),
            "another process had that number"
        );
        assert!(!admits(host(uid, Some(own()))), "not below itself");
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("it starts");
        let below = (child.id(), start_ticks(child.id()).expect("it lives"));
        assert!(!admits(host(uid, Some(below))), "not its child's");
        child.kill().expect("ours");
        child.wait().expect("ended");
    }
}
