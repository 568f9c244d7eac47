//! File descriptors that a program passes by number. Another thread may put another file behind the number during a
//! call. So the limiter duplicates the descriptor, inspects its own copy, and passes that one on.

use std::os::fd::{AsRawFd, FromRawFd as _, IntoRawFd as _, OwnedFd};

use divvy_abi::{CUDA_ERROR_OPERATING_SYSTEM, CUresult};
use divvy_charges::Key;

/// A descriptor of our own for the file behind the program's, if there is one.
pub(super) struct Own {
    copy: Option<OwnedFd>,
    given: i32,
}

/// Takes one.
///
/// # Errors
/// `CUDA_ERROR_OPERATING_SYSTEM` if the process has no descriptors left.
pub(super) fn own(given: i32) -> Result<Own, CUresult> {
    // SAFETY: any number may be asked about.
    let copy = match unsafe { libc::fcntl(given, libc::F_DUPFD_CLOEXEC, 0) } {
        // SAFETY: just made, and owned by no other code.
        number @ 0.. => Some(unsafe { OwnedFd::from_raw_fd(number) }),
        _ if std::io::Error::last_os_error().raw_os_error() == Some(libc::EBADF) => None,
        _ => return Err(CUDA_ERROR_OPERATING_SYSTEM),
    };
    Ok(Own { copy, given })
}

/// The key of the file behind a descriptor, and its length in bytes. `None` if many allocations share one file, as with
/// a driver that hands out its device node.
pub(super) fn identity(descriptor: i32) -> Option<(Key, u64)> {
    let mut found = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: a valid out-parameter; any number may be asked about.
    if unsafe { libc::fstat(descriptor, found.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: fstat filled it in.
    let found = unsafe { found.assume_init() };
    if found.st_mode & libc::S_IFMT == libc::S_IFCHR {
        return None;
    }
    let key = Key::of_file(found.st_dev, found.st_ino);
    Some((key, u64::try_from(found.st_size).unwrap_or(0)))
}

impl Own {
    /// The descriptor to inspect and to pass on; none if the program's is invalid.
    pub fn number(&self) -> i32 {
        self.copy.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// The driver has taken it over, as it would have taken the program's, which is closed here.
    pub fn taken_over(self) {
        if let Some(copy) = self.copy {
            let _the_drivers = copy.into_raw_fd();
            // SAFETY: the program has given it away with the call.
            unsafe { libc::close(self.given) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::identity;

    #[test]
    fn a_file_is_known_and_a_device_node_is_not() {
        let file = std::fs::File::open("/proc/self/exe").expect("this program");
        let again = std::fs::File::open("/proc/self/exe").expect("this program");
        let node = std::fs::File::open("/dev/null").expect("a device node");
        assert_eq!(identity(file.as_raw_fd()), identity(again.as_raw_fd()));
        assert!(identity(file.as_raw_fd()).is_some());
        assert_eq!(identity(node.as_raw_fd()), None);
        assert_eq!(identity(-1), None);
    }
}
