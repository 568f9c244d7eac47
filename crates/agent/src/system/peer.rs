//! The caller of a request, by what the kernel says: a user, and a process that its start time tells apart from all
//! others.
//!
//! A process may leave its connection to another: to a child, or to its parent when it ends. The kernel still reports
//! the process that connected. So a caller that has ended decides nothing: its number has no parents any more, and may
//! mean another.

use std::os::fd::AsFd;

use divvy_model::{Code, Fault};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::system::procs::{Lost, Stat, ancestors};

/// Whether this kernel pins the process of a caller. Before Linux 6.5 a caller is known by its number and start time.
///
/// # Errors
/// The system's reason.
pub fn callers_are_pinned() -> std::io::Result<()> {
    let (one, _other) = std::os::unix::net::UnixStream::pair()?;
    divvy_ledger::peer_pidfd(one.as_fd())?;
    Ok(())
}

/// The caller of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The caller's user.
    pub uid: u32,
    /// The caller's process; 0 for one that this process's pid namespace does not have.
    pub pid: u32,
    /// The time when that process began, in the kernel's ticks since boot; [`Self::NEVER`] where that is not certain.
    pub since: u64,
}

impl Peer {
    /// The start time of a caller that had ended, or could not be looked at, when it was asked for.
    pub const NEVER: u64 = u64::MAX;

    /// A process of user `uid`.
    #[must_use]
    pub fn new(uid: u32, pid: u32) -> Self {
        let since = Stat::of(pid).map_or(Self::NEVER, |stat| stat.start_ticks);
        Self { uid, pid, since }
    }

    /// The process at the other end of a new connection, for which the kernel reported `uid` and `pid`.
    #[must_use]
    pub fn of_connection(socket: impl AsFd, uid: u32, pid: u32) -> Self {
        let peer = Self::new(uid, pid);
        // This comes after its start time is read, so that a reused number is noticed.
        match divvy_ledger::peer_pidfd(socket.as_fd()) {
            Ok(pinned) => {
                let mut fds = [PollFd::new(&pinned, PollFlags::IN)];
                let now = Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                };
                match poll(&mut fds, Some(&now)) {
                    Ok(0) => peer,
                    _ => peer.ended(),
                }
            }
            // A kernel before 6.5 has none: number and start time are used.
            Err(rustix::io::Errno::NOPROTOOPT) => peer,
            Err(_) => peer.ended(),
        }
    }

    fn ended(self) -> Self {
        Self {
            since: Self::NEVER,
            ..self
        }
    }

    /// Whether the process that called still lives, for sure.
    #[must_use]
    pub fn lives(&self) -> bool {
        self.since != Self::NEVER
            && Stat::of(self.pid).is_ok_and(|stat| stat.start_ticks == self.since && !stat.has_ended())
    }

    /// Refuses a caller that has ended.
    ///
    /// # Errors
    /// [`Code::NotAllowed`].
    pub(crate) fn require_life(self) -> Result<(), Fault> {
        if self.lives() {
            return Ok(());
        }
        Err(Fault::new(
            Code::NotAllowed,
            format!("the process that connected (number {}) has ended", self.pid),
        )
        .hint("connect from the process that asks: a connection decides nothing for another process"))
    }

    /// The processes above the caller, nearest first.
    ///
    /// # Errors
    /// [`Code::NotAllowed`] where they cannot be told for sure.
    pub(crate) fn ancestors(self) -> Result<Vec<u32>, Fault> {
        self.require_life()?;
        let refusal = |why: &str| {
            Err(Fault::new(
                Code::NotAllowed,
                format!("it cannot be told which slice process {} runs in", self.pid),
            )
            .cause(why)
            .hint("try again"))
        };
        match ancestors(self.pid, self.since) {
            Ok(above) => Ok(above),
            Err(Lost::Ended) => refusal("the process has ended"),
            Err(Lost::Unsteady) => refusal("the processes above it come and go"),
            Err(Lost::Unknown(error)) => refusal(&error.to_string()),
        }
    }

    /// Whether this is root or the agent's own user, which no other user's requests may delay.
    pub(crate) fn is_trusted(self, agent: u32) -> bool {
        self.uid == 0 || self.uid == agent
    }

    /// Whether this caller may change a slice of user `owner`, with an agent of user `agent`.
    ///
    /// # Errors
    /// [`Code::NotAllowed`], for a caller that has ended too.
    pub(crate) fn may_change(self, owner: u32, agent: u32) -> Result<(), Fault> {
        if self.uid != owner && !self.is_trusted(agent) {
            return Err(Fault::new(
                Code::NotAllowed,
                format!("user {} may not change what belongs to user {owner}", self.uid),
            )
            .hint("ask its owner or root"));
        }
        self.require_life()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;
    use std::process::Stdio;

    use super::*;

    /// Names the socket to the process that connects and dies.
    const SOCKET: &str = "DIVVY_TEST_OF_THE_DEAD";
    /// The number of connections that each such process makes, and leaves in the listener's queue.
    const EACH: usize = 100;

    /// Connects, and dies at a moment of the connection's own.
    #[test]
    fn a_process_that_connects_and_dies() {
        let Some(path) = std::env::var_os(SOCKET) else {
            return;
        };
        let held: Vec<_> = (0..EACH).map(|_| UnixStream::connect(Path::new(&path))).collect();
        std::mem::forget(held);
        std::process::abort();
    }

    /// Ten thousand times. Requests to an agent are too slow for that, because users have a rate limit there.
    /// `f11_a_caller_that_is_dead_decides_nothing` is the whole path.
    #[test]
    fn connections_of_the_dead_decide_nothing() {
        const DEAD: usize = 100;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).expect("it listens");
        let (mut lived, mut rounds) = (0, 0);
        for _ in 0..DEAD {
            let mut command = divvy_own_process::other("a_process_that_connects_and_dies");
            command
                .env(SOCKET, &path)
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let mut child = command.spawn().expect("it starts");
            let uid = rustix::process::getuid().as_raw();
            // While it goes on, and while it dies.
            let peers: Vec<Peer> = (0..EACH)
                .map(|_| listener.accept().expect("a connection").0)
                .map(|stream| Peer::of_connection(stream, uid, child.id()))
                .collect();
            lived += peers.iter().filter(|peer| peer.since != Peer::NEVER).count();
            child.wait().expect("reaped");
            for peer in peers {
                rounds += 1;
                assert!(peer.require_life().is_err(), "{peer:?} is dead");
                assert!(peer.may_change(uid, uid).is_err() && peer.ancestors().is_err());
            }
        }
        assert_eq!(rounds, DEAD * EACH);
        println!("{rounds} rounds, in {lived} of which the peer lived at first");
    }

    /// The case in which the caller's number passed to another: the kernel's descriptor is of the caller.
    #[test]
    fn a_process_that_got_the_number_of_a_caller_is_not_the_caller() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).expect("it listens");
        let mut command = divvy_own_process::other("a_process_that_connects_and_dies");
        command
            .env(SOCKET, &path)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        let (stream, _) = listener.accept().expect("a connection");
        // The others are refused: it ends without waiting for us.
        drop(listener);
        child.wait().expect("reaped");
        if callers_are_pinned().is_err() {
            // A kernel before 6.5 cannot tell.
            return;
        }
        assert!(Peer::new(1000, std::process::id()).lives());
        let heir = Peer::of_connection(&stream, 1000, std::process::id());
        assert_eq!(heir.since, Peer::NEVER);
        assert!(!heir.lives());
    }

    #[test]
    fn a_caller_that_has_ended_decides_nothing() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let own = Peer::of_connection(&one, 1000, std::process::id());
        assert!(own.lives());
        own.may_change(1000, 0).expect("its own");
        assert_eq!(
            own.may_change(1001, 0).expect_err("another's").code,
            Code::NotAllowed
        );
        let parents = own.ancestors().expect("it lives");
        assert_eq!(parents.first(), Some(&std::os::unix::process::parent_id()));
        // Another process has its number now.
        let other = Peer {
            since: own.since + 1,
            ..own
        };
        assert!(!other.lives());
        assert_eq!(
            other.may_change(1000, 0).expect_err("gone").code,
            Code::NotAllowed
        );
        assert_eq!(other.ancestors().expect_err("gone").code, Code::NotAllowed);
        assert!(!Peer::new(0, 0).lives(), "of no process here");

        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("a process");
        let peer = Peer::new(1000, child.id());
        assert!(peer.lives());
        child.kill().expect("killed");
        while peer.lives() {
            std::thread::yield_now();
        }
        child.wait().expect("reaped");
        assert_eq!(
            peer.may_change(1000, 0).expect_err("ended").code,
            Code::NotAllowed
        );
    }
}
