//! Anonymous memory that backs device and host allocations.

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr::{self, NonNull};

/// A private mapping, unmapped on drop. The pages are zero and cost nothing until touched, so that a device can
/// have more memory than the host.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory; who may touch which byte when is decided by whoever asks for its address.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared reference gives out the address only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps at least `bytes`, at an address that is a multiple of `align` (a power of two of at least a page).
    /// A forked child does not inherit it when `device` is set: the child has no device.
    pub fn new(bytes: usize, align: usize, device: bool) -> Result<Mapping, Errno> {
        let slack = bytes.checked_add(align).ok_or(Errno::NOMEM)?;
        // SAFETY: an anonymous mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                slack,
                ProtFlags::READ | ProtFlags::WRITE,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_zeroed_and_larger_than_the_host() {
        let small = Mapping::new(3 << 12, 2 << 20, true).unwrap();
        assert_eq!(small.address() % (2 << 20), 0);
        // SAFETY: the mapping holds these bytes and nobody else uses them.
        let bytes = unsafe { std::slice::from_raw_parts(small.address() as *const u8, 3 << 12) };
        assert!(bytes.iter().all(|&byte| byte == 0));
        assert!(
            Mapping::new(100 << 30, 2 << 20, true).is_ok(),
            "address space, not memory"
        );
        assert!(Mapping::new(usize::MAX - 4096, 4096, false).is_err());
    }
}
