//! Which processes attached to a slice, as the kernel told the page server. They are pinned by descriptors, so that a
//! number never comes to mean another process.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::peer::{self, Peer};
use super::wire::Status;
use crate::accounting::SLOTS;

/// Size of one member in a page server's answer, in bytes.
pub(super) const MEMBER_BYTES: usize = size_of::<Wire>();
/// The most members that are recorded at once: a ledger has this many slots.
pub(super) const MOST: usize = SLOTS;

/// A process that attached to a slice, in the pid namespace of the page server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub pid: u32,
    /// Its user when it attached.
    pub uid: u32,
    /// When it began, in the kernel's ticks since boot. Together with its id, this names one process for ever.
    pub start_ticks: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Wire {
    pid: u32,
    uid: u32,
    start_ticks: u64,
}

impl Member {
    pub(super) fn encode(self) -> [u8; MEMBER_BYTES] {
        let wire = Wire {
            pid: self.pid,
            uid: self.uid,
            start_ticks: self.start_ticks,
        };
        zerocopy::transmute!(wire)
    }

    pub(super) fn decode(bytes: &[u8; MEMBER_BYTES]) -> Self {
        let wire: Wire = zerocopy::transmute!(*bytes);
        Self {
            pid: wire.pid,
            uid: wire.uid,
            start_ticks: wire.start_ticks,
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Members {
    noted: Mutex<Vec<(Member, OwnedFd)>>,
}

impl Members {
    /// Records the process at the other end of a connection.
    ///
    /// # Errors
    /// [`Status::Failed`] if it has ended, cannot be pinned, or is one too many.
    pub fn note(&self, socket: BorrowedFd<'_>, peer: Peer) -> Result<(), Status> {
        if peer.pid == 0 {
            return Err(Status::Failed);
        }
        let pidfd = peer::pin(socket, peer).map_err(|_| Status::Failed)?;
        let start_ticks = peer::start_ticks(peer.pid).ok_or(Status::Failed)?;
        // Checked after its start time was read: the time was this process's, or the process has ended.
        if has_ended(&pidfd) {
            return Err(Status::Failed);
        }
        let member = Member {
            pid: peer.pid,
            uid: peer.uid,
            start_ticks,
        };
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.iter().any(|(known, _)| *known == member) {
            return Ok(());
        }
        if noted.len() >= MOST {
            noted.retain(|(_, pidfd)| !has_ended(pidfd));
        }
        if noted.len() >= MOST {
            return Err(Status::Failed);
        }
        noted.push((member, pidfd));
        Ok(())
    }

    /// Those that are alive.
    pub fn living(&self) -> Vec<Member> {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.retain(|(_, pidfd)| !has_ended(pidfd));
        noted.iter().map(|(member, _)| *member).collect()
    }
}

/// A process's descriptor is readable once the process has ended. A poll that fails proves nothing.
fn has_ended(pidfd: &OwnedFd) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(
        poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)),
        Ok(1..)
    )
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use rustix::io::Errno;
    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;

    #[test]
    fn a_peer_is_noted_once_and_goes_when_it_ends() {
        let members = Members::default();
        let (ours, _theirs) = UnixStream::pair().expect("a pair");
        let own = peer::of(ours.as_fd()).expect("ourselves");
        for _ in 0..2 {
            members.note(ours.as_fd(), own).expect("noted");
        }
        let living = members.living();
        assert_eq!(living.len(), 1);
        assert_eq!((living[0].pid, living[0].uid), (std::process::id(), own.uid));
        assert_eq!(Member::decode(&living[0].encode()), living[0]);
        // A process that the page server's namespace does not show is in no slice.
        let unseen = Peer { pid: 0, ..own };
        assert_eq!(members.note(ours.as_fd(), unseen), Err(Status::Failed));
    }

    /// A child that has connected, and its connection. The child ends by itself.
    fn connected() -> (std::process::Child, UnixStream) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        let child = std::process::Command::new("python3")
            .args([
                "-c",
                "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])",
            ])
            .arg(&path)
            .spawn()
            .expect("python runs");
        let (stream, _) = listener.accept().expect("it connects");
        (child, stream)
    }

    #[test]
    fn a_peer_that_has_ended_is_refused() {
        let (mut child, stream) = connected();
        let gone = peer::of(stream.as_fd()).expect("credentials stay");
        let members = Members::default();
        // It has ended and is not reaped: its number and its start time are still there.
        let pid = rustix::process::Pid::from_child(&child);
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), ended).expect("it ends");
        assert!(peer::start_ticks(gone.pid).is_some());
        assert_eq!(members.note(stream.as_fd(), gone), Err(Status::Failed));
        child.wait().expect("reaped");
        assert_eq!(members.note(stream.as_fd(), gone), Err(Status::Failed));
        assert!(members.living().is_empty());
    }

    #[test]
    fn a_process_that_got_the_number_of_the_peer_is_not_the_peer() {
        let (mut child, stream) = connected();
        child.wait().expect("it ends");
        if crate::peer_pidfd(stream.as_fd()).err() == Some(Errno::NOPROTOOPT) {
            // A kernel before 6.5 cannot tell.
            return;
        }
        let gone = peer::of(stream.as_fd()).expect("credentials stay");
        let heir = Peer {
            pid: std::process::id(),
            ..gone
        };
        let members = Members::default();
        assert_eq!(members.note(stream.as_fd(), heir), Err(Status::Failed));
        assert!(members.living().is_empty());
    }
}
