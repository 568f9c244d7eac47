//! The process at the other end of a unix socket, pinned by a pidfd (SO_PEERPIDFD, Linux 6.5 and later).
//!
//! The process id that a socket reports may have passed to another process since; the pidfd never does.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

/// The socket option's number; the libc crate has no name for it on all platforms.
const SO_PEERPIDFD: libc::c_int = 77;

/// A descriptor of the process that connected, or that listens.
///
/// # Errors
/// [`Errno::NOPROTOOPT`] on kernels before 6.5; [`Errno::SRCH`] or [`Errno::INVAL`] if that process has ended; or any
/// other error of the system.
pub fn peer_pidfd(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut number: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the socket is open, and the kernel writes at most `length` bytes, into an integer of that size.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            core::ptr::from_mut(&mut number).cast(),
            &mut length,
        )
    };
    if answer != 0 {
        let code = std::io::Error::last_os_error().raw_os_error();
        return Err(code.map_or(Errno::IO, Errno::from_raw_os_error));
    }
    if number < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the kernel made this descriptor for the call just done, so it is open and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let pinned = match peer_pidfd(one.as_fd()) {
            // A kernel before 6.5 has nothing to test.
            Err(Errno::NOPROTOOPT) => return,
            pinned => pinned.expect("a descriptor"),
        };
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pinned.as_raw_fd()));
        let pid = format!("Pid:\t{}\n", std::process::id());
        assert!(info.expect("it tells").contains(&pid));
    }
}
