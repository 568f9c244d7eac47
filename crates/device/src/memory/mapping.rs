//! Mappings: the address ranges that device and host allocations live in.

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

/// A mapping, unmapped on drop. The pages are zero and cost nothing until touched, so that a device can
/// have more memory than the host.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory; the caller that asks for its address decides which code may touch which byte
// when.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared reference gives out the address only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps at least `bytes`, at an address that is a multiple of `align` (a power of two of at least a page).
    /// A forked child does not inherit it when `device` is set: the child has no device.
    ///
    /// # Errors
    /// The system's reason.
    pub fn new(bytes: usize, align: usize, device: bool) -> Result<Mapping, Errno> {
        Mapping::anonymous(bytes, align, device, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Keeps an address range of a multiple of `align` free of everything else. No code may touch it until [`map_over`]
    /// put something there.
    ///
    /// # Errors
    /// The system's reason.
    pub fn reserve(bytes: usize, align: usize) -> Result<Mapping, Errno> {
        Mapping::anonymous(bytes, align, true, ProtFlags::empty())
    }

    /// The same at an address of the caller's choice, if that is free; `address` is a multiple of a host page.
    ///
    /// # Errors
    /// `EEXIST` where something is at that address; else the system's reason.
    pub fn reserve_at(address: u64, bytes: usize) -> Result<Mapping, Errno> {
        // SAFETY: the kernel refuses the address if anything is there.
        let start = unsafe {
            mmap_anonymous(
                address as *mut _,
                bytes,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE,
            )?
        };
        let base = NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)?;
        let mapping = Mapping { base, bytes };
        // Kernels before 4.17 take the address for a hint.
        if mapping.address() == address {
            // SAFETY: the range is the mapping just made.
            unsafe { madvise(start, bytes, Advice::LinuxDontFork)? };
            Ok(mapping)
        } else {
            Err(Errno::EXIST)
        }
    }

    /// Maps a part of a memory file, shared with all others that map it, at a multiple of `align`; `offset` is a
    /// multiple of a host page. A forked child does not inherit it.
    ///
    /// # Errors
    /// The system's reason.
    pub fn of_file(fd: BorrowedFd<'_>, offset: u64, bytes: usize, align: usize) -> Result<Mapping, Errno> {
        let mapping = Mapping::reserve(bytes, align)?;
        // SAFETY: the range is the reservation just made, which no other code knows yet.
        unsafe { map_over(mapping.address(), bytes, fd, offset)? };
        Ok(mapping)
    }

    fn anonymous(bytes: usize, align: usize, device: bool, access: ProtFlags) -> Result<Mapping, Errno> {
        let slack = bytes.checked_add(align).ok_or(Errno::NOMEM)?;
        // SAFETY: an anonymous mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                slack,
                access,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let head = start.cast::<u8>().align_offset(align);
        let base = start.cast::<u8>().wrapping_add(head);
        let tail = slack - head - bytes;
        // SAFETY: both trimmed parts lie inside the mapping just made and nothing points into them.
        unsafe {
            if head > 0 {
                munmap(start, head)?;
            }
            if tail > 0 {
                munmap(base.wrapping_add(bytes).cast(), tail)?;
            }
            if device {
                madvise(base.cast(), bytes, Advice::LinuxDontFork)?;
            }
        }
        let base = NonNull::new(base).ok_or(Errno::NOMEM)?;
        Ok(Mapping { base, bytes })
    }

    /// Gives the pages back to the host. They are zero when they are touched again.
    pub fn discard(&self) {
        // SAFETY: the range is ours, and the caller knows that nothing in it is needed.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.bytes, Advice::LinuxDontNeed) };
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly what `new` kept; owners drop a mapping only when no launch can reach it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Puts a part of a memory file in place of what an address range holds.
///
/// # Safety
/// The range lies inside a [`Mapping`] of the caller's, and no code uses what is there.
///
/// # Errors
/// The system's reason.
pub unsafe fn map_over(address: u64, bytes: usize, fd: BorrowedFd<'_>, offset: u64) -> Result<(), Errno> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: as the caller promises; the range is inside a mapping of ours, so no mapping of others is replaced.
    unsafe {
        mmap(address as *mut _, bytes, access, flags, fd, offset)?;
        madvise(address as *mut _, bytes, Advice::LinuxDontFork)
    }
}

/// Makes an address range a mere reservation again.
///
/// # Safety
/// As for [`map_over`].
///
/// # Errors
/// The system's reason.
pub unsafe fn clear_over(address: u64, bytes: usize) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: as the caller promises.
    unsafe {
        mmap_anonymous(address as *mut _, bytes, ProtFlags::empty(), flags)?;
        madvise(address as *mut _, bytes, Advice::LinuxDontFork)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_zeroed_and_larger_than_the_host() {
        let small = Mapping::new(3 << 12, 2 << 20, true).unwrap();
        assert_eq!(small.address() % (2 << 20), 0);
        // SAFETY: the mapping holds these bytes and no other code uses them.
        let bytes = unsafe { std::slice::from_raw_parts(small.address() as *const u8, 3 << 12) };
        assert!(bytes.iter().all(|&byte| byte == 0));
        assert!(
            Mapping::new(100 << 30, 2 << 20, true).is_ok(),
            "address space, not memory"
        );
        assert!(Mapping::new(usize::MAX - 4096, 4096, false).is_err());
    }
}
