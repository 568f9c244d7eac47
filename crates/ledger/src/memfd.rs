//! Memory files: creating them, sealing them, and checking the seals.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

use crate::error::PageError;

/// Makes a memory file of `bytes` zero bytes, sealable, close-on-exec.
pub(crate) fn create(name: &CStr, bytes: usize) -> Result<OwnedFd, PageError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Systems may demand that a memory file is marked as not executable; kernels before 6.3 do not know the flag.
    let fd = rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|errno| {
            if errno == Errno::INVAL {
                rustix::fs::memfd_create(name, flags)
            } else {
                Err(errno)
            }
        })
        .map_err(PageError::system("memfd_create"))?;
    rustix::fs::ftruncate(&fd, bytes as u64).map_err(PageError::system("ftruncate of a memory file"))?;
    Ok(fd)
}

/// Makes a page for others to map: a memory file of `bytes`, which begins with `head` and whose size is sealed.
///
/// # Errors
/// The system's reason.
pub fn new_page(name: &CStr, bytes: usize, head: &[u8]) -> Result<OwnedFd, PageError> {
    let fd = create(name, bytes)?;
    rustix::io::pwrite(&fd, head, 0).map_err(PageError::system("pwrite of a new page"))?;
    seal(fd.as_fd(), SealFlags::empty())?;
    Ok(fd)
}

/// Checks that a foreign page is safe to map: first that its size is sealed, and then that it is `bytes`.
///
/// # Errors
/// [`PageError::Unsealed`], [`PageError::Size`].
pub fn check_page(fd: BorrowedFd<'_>, page: &'static str, bytes: usize) -> Result<(), PageError> {
    // The order matters: an unsealed file could change its size between two checks.
    require_seals(fd, page, SealFlags::empty())?;
    require_size(fd, page, bytes)
}

/// Opens a page once more, for reading and writing: another open file description, with locks of its own.
///
/// # Errors
/// The system's reason; /proc must be mounted.
pub fn reopen_page(fd: BorrowedFd<'_>) -> Result<OwnedFd, PageError> {
    reopen(fd, OFlags::RDWR)
}

/// Adds permanent seals: the size, the seals themselves, and those in `more`.
pub(crate) fn seal(fd: BorrowedFd<'_>, more: SealFlags) -> Result<(), PageError> {
    rustix::fs::fcntl_add_seals(fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | more)
        .map_err(PageError::system("fcntl(F_ADD_SEALS)"))
}

/// Refuses a descriptor whose file could shrink under a mapping, or which lacks one of the seals in `more`.
pub(crate) fn require_seals(
    fd: BorrowedFd<'_>,
    page: &'static str,
    more: SealFlags,
) -> Result<(), PageError> {
    let seals = rustix::fs::fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
    if seals.contains(SealFlags::SHRINK | more) {
        Ok(())
    } else {
        Err(PageError::Unsealed { page })
    }
}

/// Refuses a file of another size.
pub(crate) fn require_size(fd: BorrowedFd<'_>, page: &'static str, expected: usize) -> Result<(), PageError> {
    let found = rustix::fs::fstat(fd)
        .map_err(PageError::system("fstat of a page"))?
        .st_size;
    let (expected, found) = (expected as u64, u64::try_from(found).unwrap_or(0));
    if found == expected {
        Ok(())
    } else {
        Err(PageError::Size {
            page,
            expected,
            found,
        })
    }
}

/// Opens the file again: another open file description, with locks of its own.
///
/// # Errors
/// [`PageError::System`], for example where /proc is not mounted.
pub(crate) fn reopen(fd: BorrowedFd<'_>, access: OFlags) -> Result<OwnedFd, PageError> {
    let mut path = [0_u8; 32];
    let path = proc_path(&mut path, fd.as_raw_fd().unsigned_abs());
    rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty())
        .map_err(PageError::system("open of /proc/self/fd"))
}

/// "/proc/self/fd/N" without an allocation.
fn proc_path(buffer: &mut [u8; 32], number: u32) -> &CStr {
    const PREFIX: &[u8] = b"/proc/self/fd/";
    let mut digits = [0_u8; 10];
    let (mut at, mut rest) = (digits.len(), number);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let digits = &digits[at..];
    buffer[..PREFIX.len()].copy_from_slice(PREFIX);
    buffer[PREFIX.len()..PREFIX.len() + digits.len()].copy_from_slice(digits);
    CStr::from_bytes_until_nul(buffer).unwrap_or(c"/proc/self/fd/0")
}

#[cfg(test)]
mod tests {
    use super::proc_path;

    #[test]
    fn descriptor_paths() {
        assert_eq!(proc_path(&mut [0; 32], 0), c"/proc/self/fd/0");
        assert_eq!(proc_path(&mut [0; 32], 1_203), c"/proc/self/fd/1203");
        assert_eq!(proc_path(&mut [0; 32], u32::MAX), c"/proc/self/fd/4294967295");
    }
}
