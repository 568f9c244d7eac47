//! Memory files: what device memory is made of where another address or another process must reach the same bytes.
//!
//! A process keeps one descriptor for each such file, as NVIDIA's driver keeps those of its device nodes, at a high
//! number. A program may close what it does not know and open files of its own there, so a descriptor is compared
//! with the file's identity before every use.

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

/// Descriptors of ours start here where the limit allows, out of the way of the program's own.
const FIRST_DESCRIPTOR: RawFd = 512;

/// A memory file and the descriptor this process has of it.
#[derive(Debug)]
pub struct MemoryFile {
    number: RawFd,
    identity: Identity,
}

/// Device and inode number: what stays the same of a file, no matter which process has it open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Number of the file system.
    pub device: u64,
    /// Number of the file in it.
    pub inode: u64,
}

impl Identity {
    /// The identity of an open file.
    ///
    /// # Errors
    /// The system's reason.
    pub fn of(fd: impl AsFd) -> Result<Identity, Errno> {
        let facts = rustix::fs::fstat(fd)?;
        Ok(Identity {
            device: facts.st_dev,
            inode: facts.st_ino,
        })
    }
}

impl MemoryFile {
    /// A new file of `bytes` zeros that take no memory until they are written. Its size is sealed: no process that gets
    /// it can make others fault.
    ///
    /// # Errors
    /// `EFBIG` beyond the limit on file sizes of this process; else the system's reason.
    pub fn create(bytes: u64) -> Result<MemoryFile, Errno> {
        // Beyond this limit the kernel would not only refuse but send a signal.
        if rustix::process::getrlimit(rustix::process::Resource::Fsize)
            .current
            .is_some_and(|limit| limit < bytes)
        {
            return Err(Errno::FBIG);
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Kernels before 6.3 do not know the second flag; later ones may demand it.
        let create = |flags| rustix::fs::memfd_create(c"divvy-device-memory", flags);
        let fd = match create(flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => create(flags),
            answer => answer,
        }?;
        rustix::fs::ftruncate(&fd, bytes)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        MemoryFile::keep(fd)
    }

    /// Keeps a file that came from elsewhere.
    ///
    /// # Errors
    /// The system's reason.
    pub fn keep(fd: OwnedFd) -> Result<MemoryFile, Errno> {
        let identity = Identity::of(&fd)?;
        let high = rustix::io::fcntl_dupfd_cloexec(&fd, FIRST_DESCRIPTOR);
        Ok(MemoryFile {
            number: high.unwrap_or(fd).into_raw_fd(),
            identity,
        })
    }

    /// Its identity, no matter which process has it open.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The descriptor's number in this process.
    pub fn number(&self) -> RawFd {
        self.number
    }

    /// The descriptor, unless the program has closed it.
    ///
    /// # Errors
    /// `EBADF`: the program has closed it, or its number is another file now.
    pub fn fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        // SAFETY: the number is not -1. If the program closed it, fstat says so or shows another file.
        let fd = unsafe { BorrowedFd::borrow_raw(self.number) };
        if Identity::of(fd)? == self.identity {
            Ok(fd)
        } else {
            Err(Errno::BADF)
        }
    }

    /// A descriptor for the program to pass on.
    ///
    /// # Errors
    /// `EBADF` where the program has closed it, or the system's reason.
    pub fn export(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(self.fd()?, 0)
    }

    /// Gives the bytes of a part back to the system; they are zero from then on.
    ///
    /// # Errors
    /// The system's reason; `EBADF` where the program has closed the descriptor.
    pub fn discard(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(self.fd()?, flags, offset, bytes)
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        if self.fd().is_ok() {
            // SAFETY: the descriptor is still the one that `keep` made, and this value is its only user.
            drop(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(self.number) });
        }
    }
}

/// Whether a descriptor from elsewhere is memory that may be mapped: a memory file of at least `bytes`, whose size
/// is sealed or can be.
pub fn is_mappable(fd: BorrowedFd<'_>, bytes: u64) -> bool {
    // Only memory files answer this question.
    let sealed = rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| {
        seals.contains(SealFlags::SHRINK) || rustix::fs::fcntl_add_seals(fd, SealFlags::SHRINK).is_ok()
    });
    // Then the size, which from now on only grows. Asked earlier, it could have changed by the time the seal is there.
    sealed && rustix::fs::fstat(fd).is_ok_and(|facts| facts.st_size as u64 >= bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_descriptor_that_became_something_else_is_left_alone() {
        let file = MemoryFile::create(1 << 20).unwrap();
        assert!(file.fd().is_ok());
        let other = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: replaces our own descriptor's file; both numbers are open.
        unsafe { libc::dup2(other.as_raw_fd(), file.number()) };
        assert_eq!(file.fd().err(), Some(Errno::BADF));
        assert!(file.export().is_err() && file.discard(0, 4096).is_err());
        let number = file.number();
        drop(file);
        // SAFETY: asks about a number, then closes what this test put there.
        unsafe {
            assert!(libc::fcntl(number, libc::F_GETFD) >= 0, "not ours to close");
            libc::close(number);
        }
    }

    #[test]
    fn only_memory_files_of_sealed_size_are_mapped() {
        let file = MemoryFile::create(8192).unwrap();
        assert!(is_mappable(file.fd().unwrap(), 8192));
        assert!(!is_mappable(file.fd().unwrap(), 8193));
        assert!(rustix::fs::ftruncate(file.fd().unwrap(), 0).is_err());
        let disk = tempfile::tempfile().unwrap();
        disk.set_len(8192).unwrap();
        assert!(!is_mappable(disk.as_fd(), 1));
        assert!(!is_mappable(std::fs::File::open("/dev/zero").unwrap().as_fd(), 1));
    }

    #[test]
    fn what_is_shortened_and_sealed_during_the_look_is_not_mappable() {
        for _ in 0..10_000 {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = rustix::fs::memfd_create(c"shortened", flags).unwrap();
            rustix::fs::ftruncate(&file, 4096).unwrap();
            let start = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    start.wait();
                    let _too_late = rustix::fs::ftruncate(&file, 0);
                    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
                });
                start.wait();
                let said = is_mappable(file.as_fd(), 4096);
                let length = rustix::fs::fstat(&file).unwrap().st_size;
                assert!(
                    !said || length == 4096,
                    "{length} bytes were said to be 4096 for good"
                );
            });
        }
    }
}
