//! The process that listens at the other end.
//!
//! This calls getsockopt itself. The kernel says 0 for a process that this pid namespace does not show, as for the
//! worker of a container. A type of ids that are never 0 cannot hold that.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::process::Pid;

/// Its id, where this pid namespace shows it.
pub fn pid_of(socket: BorrowedFd<'_>) -> Option<Pid> {
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
    (answer == 0).then(|| Pid::from_raw(credentials.pid)).flatten()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (ours, _its) = UnixStream::pair().expect("a pair");
        assert_eq!(pid_of(ours.as_fd()), Some(rustix::process::getpid()));
    }
}
