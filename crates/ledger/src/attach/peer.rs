//! The process at the other end of a unix socket.
//!
//! This calls getsockopt itself. The kernel reports pid 0 for a process that this pid namespace does not show, such as
//! a page server in a container with the agent outside. A type of non-zero ids cannot hold that.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::error::AttachError;
use crate::peer_pidfd;

/// The process that connected, or that listens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// Its id in our pid namespace, or 0 if it has none there.
    pub pid: u32,
    /// Its user when it connected or began to listen.
    pub uid: u32,
}

/// Asks the kernel.
pub(super) fn of(socket: BorrowedFd<'_>) -> Result<Peer, AttachError> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the socket is open, and the kernel writes at most `length` bytes, into a `ucred` of that size.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            core::ptr::from_mut(&mut credentials).cast(),
            &mut length,
        )
    };
    if answer != 0 {
        let code = std::io::Error::last_os_error().raw_os_error();
        let errno = code.map_or(Errno::IO, Errno::from_raw_os_error);
        return Err(AttachError::system("getsockopt(SO_PEERCRED)")(errno));
    }
    Ok(Peer {
        pid: u32::try_from(credentials.pid).unwrap_or(0),
        uid: credentials.uid,
    })
}

/// A descriptor of the process that connected. On kernels before 6.5 it belongs to the process that has the peer's id
/// now.
pub(super) fn pin(socket: BorrowedFd<'_>, peer: Peer) -> Result<OwnedFd, Errno> {
    match peer_pidfd(socket) {
        Err(Errno::NOPROTOOPT) => {
            let pid = i32::try_from(peer.pid).ok().and_then(Pid::from_raw);
            pidfd_open(pid.ok_or(Errno::SRCH)?, PidfdFlags::empty())
        }
        pinned => pinned,
    }
}

/// When a process began, in the kernel's ticks since boot: field 22 of proc(5)'s stat.
pub(super) fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold any character, so parsing starts after the last one.
    let rest = stat.rsplit_once(')')?.1;
    rest.split_whitespace().nth(22 - 3)?.parse().ok()
}
