//! Who is at the other end of a unix socket.
//!
//! By getsockopt itself: the kernel says pid 0 of a process that this pid namespace does not see (a keeper in a
//! container, asked by the agent outside), which a type of non-zero ids cannot hold.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::error::AttachError;

/// The process that connected, or that listens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// Its id in our pid namespace, 0 when it has none there.
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
