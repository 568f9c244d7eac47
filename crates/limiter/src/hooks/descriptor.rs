//! Descriptors that a program gives by number. Another of its threads may put another file behind the number while a call
//! looks at it: so the limiter looks at a descriptor of its own, and hands that one on.

use std::os::fd::{AsRawFd, FromRawFd as _, IntoRawFd as _, OwnedFd};

use divvy_abi::{CUDA_ERROR_OPERATING_SYSTEM, CUresult};

/// A descriptor of our own for the file behind the program's, if there is one.
pub(super) struct Own {
    copy: Option<OwnedFd>,
    given: i32,
}

/// Takes one.
///
/// # Errors
/// `CUDA_ERROR_OPERATING_SYSTEM` where the process has no more descriptors to spare.
pub(super) fn own(given: i32) -> Result<Own, CUresult> {
    // SAFETY: any number may be asked about.
    let copy = match unsafe { libc::fcntl(given, libc::F_DUPFD_CLOEXEC, 0) } {
        // SAFETY: just made, and nobody else's.
        number @ 0.. => Some(unsafe { OwnedFd::from_raw_fd(number) }),
        _ if std::io::Error::last_os_error().raw_os_error() == Some(libc::EBADF) => None,
        _ => return Err(CUDA_ERROR_OPERATING_SYSTEM),
    };
    Ok(Own { copy, given })
}

impl Own {
    /// What to look at, and to hand on: no descriptor where the program's is none.
    pub fn number(&self) -> i32 {
        self.copy.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// The driver has taken it over, as it would have the program's, which it closes.
    pub fn taken_over(self) {
        if let Some(copy) = self.copy {
            let _the_drivers = copy.into_raw_fd();
            // SAFETY: the program has given it away with the call.
            unsafe { libc::close(self.given) };
        }
    }
}
