//! Lets a forked child know that it is not the process that attached.
//!
//! A ledger's mapping is not inherited by children (its liveness lock must not be). A child that believed itself
//! attached would fault, or write into whatever now lies at that address. So a page that the kernel wipes on fork is
//! read before each access. That costs one load, and works after fork, raw clone and in threads alike.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::PageError;
use crate::mapping::Mapping;

const BYTES: usize = 4096;

/// A private page that reads "ours" in the process that made it and "not ours" in its children.
#[derive(Debug)]
pub struct ForkGuard {
    page: NonNull<AtomicU32>,
}

// SAFETY: the page is only ever accessed as one atomic, and is unmapped only when the guard is dropped.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    /// Maps a guard page for the calling process.
    ///
    /// # Errors
    /// [`PageError::System`], when the kernel cannot wipe on fork (before Linux 4.14) or has no memory.
    pub fn new() -> Result<Self, PageError> {
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let raw = unsafe {
            rustix::mm::mmap_anonymous(
                core::ptr::null_mut(),
                BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(PageError::system("mmap of the fork guard"))?;
        let Some(page) = NonNull::new(raw.cast()) else {
            return Err(PageError::System {
                step: "mmap of the fork guard",
                errno: rustix::io::Errno::NOMEM,
            });
        };
        let guard = Self { page };
        // SAFETY: the range is the mapping just made.
        unsafe { rustix::mm::madvise(raw, BYTES, Advice::LinuxWipeOnFork) }
            .map_err(PageError::system("madvise(MADV_WIPEONFORK)"))?;
        guard.flag().store(1, Relaxed);
        Ok(guard)
    }

    fn flag(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped, aligned and initialised as long as the guard lives, in children as well.
        unsafe { self.page.as_ref() }
    }

    /// Whether this is the process that made the guard.
    #[inline]
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.flag().load(Relaxed) == 1
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, in a child too, and `self` was the last to use it.
        let _unmapped = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), BYTES) };
    }
}

/// A page mapping that exists only in the process that made it.
pub(crate) struct OwnMapping<P> {
    mapping: core::mem::ManuallyDrop<Mapping<P>>,
    guard: ForkGuard,
}

impl<P> OwnMapping<P> {
    /// Hides `mapping` from children.
    pub fn new(mapping: Mapping<P>) -> Result<Self, PageError> {
        mapping.dont_fork()?;
        Ok(Self {
            mapping: core::mem::ManuallyDrop::new(mapping),
            guard: ForkGuard::new()?,
        })
    }

    /// The page, or `None` in a forked child, where there is none.
    #[inline]
    pub fn get(&self) -> Option<&P> {
        self.guard.is_ours().then(|| self.mapping.page())
    }
}

impl<P> core::fmt::Debug for OwnMapping<P> {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.mapping.fmt(out)
    }
}

impl<P> Drop for OwnMapping<P> {
    fn drop(&mut self) {
        if self.guard.is_ours() {
            // SAFETY: dropped here and nowhere else.
            unsafe { core::mem::ManuallyDrop::drop(&mut self.mapping) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// KiB of mappings that a fork wipes: those of guards.
    fn guarded() -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("/proc");
        let (mut size, mut sum) = (0, 0);
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("Size:") => size = words.next().and_then(|size| size.parse().ok()).expect("a size"),
                Some("VmFlags:") if words.any(|flag| flag == "wf") => sum += size,
                _ => {}
            }
        }
        sum
    }

    #[test]
    fn a_guard_that_is_dropped_gives_its_page_back() {
        let before = guarded();
        let held = ForkGuard::new().expect("a page");
        assert!(held.is_ours() && guarded() > 0);
        for _ in 0..1000 {
            assert!(ForkGuard::new().expect("a page").is_ours());
        }
        // Other tests' guards are few.
        assert!(guarded() < before + 500 * 4);
    }
}
