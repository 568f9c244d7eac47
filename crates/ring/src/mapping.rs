//! One region mapped into this process.

use core::ffi::c_void;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU32;
use std::os::fd::BorrowedFd;

use divvy_ledger::PageError;
use divvy_ledger::fork::ForkGuard;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::bytes::SharedBytes;
use crate::layout::{ChannelWords, Header, PAGE, Shape};

/// A shared mapping, with a page on either side that no access passes. A forked child does not have the rings: it has
/// only the data area, which its parent's buffers may lie in.
pub(crate) struct Mapping {
    /// The region's first byte; the page before it and the one behind its end are ours too.
    first: NonNull<u8>,
    bytes: usize,
    guard: ForkGuard,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is only accessed through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` of the file from its byte `at` on. Both are multiples of [`PAGE`], and the caller has made sure
    /// that the file has them and keeps them. The first byte lies at `address`, if nothing else does and the kernel
    /// agrees; 0 leaves it to the kernel.
    pub fn new(fd: BorrowedFd<'_>, at: u64, bytes: usize, address: u64) -> Result<Self, PageError> {
        let guard = ForkGuard::new()?;
        let near = usize::try_from(address).unwrap_or(0).saturating_sub(PAGE) / PAGE * PAGE;
        // SAFETY: without MAP_FIXED the kernel takes an address where nothing is mapped, whatever is asked for.
        let reserved = unsafe {
            rustix::mm::mmap_anonymous(
                core::ptr::without_provenance_mut(near),
                bytes + 2 * PAGE,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(system("mmap of a region's addresses"))?;
        let Some(first) = NonNull::new(reserved.cast::<u8>().wrapping_add(PAGE)) else {
            return Err(system("mmap of a region's addresses")(Errno::NOMEM));
        };
        // From here on a drop gives the addresses back.
        let mapping = Self { first, bytes, guard };
        // SAFETY: it replaces a part of the mapping that was just made, to which no reference exists.
        unsafe {
            rustix::mm::mmap(
                first.as_ptr().cast(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED,
                fd,
                at,
            )
        }
        .map_err(system("mmap of a region"))?;
        Ok(mapping)
    }

    /// Keeps the first `bytes` from forked children: a multiple of [`PAGE`] inside the mapping.
    pub fn hide(&self, bytes: usize) -> Result<(), PageError> {
        assert!(bytes <= self.bytes);
        // SAFETY: the range is our own mapping.
        unsafe { rustix::mm::madvise(self.first.as_ptr().cast(), bytes, Advice::LinuxDontFork) }
            .map_err(system("madvise(MADV_DONTFORK)"))
    }

    /// Whether this process made the mapping: a forked child did not, and may not touch it.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.guard.is_ours()
    }

    /// The region's header. Only of a mapping that is ours.
    pub fn header(&self) -> &Header {
        assert!(size_of::<Header>() <= self.bytes && self.is_ours());
        // SAFETY: it lies inside the mapping, at its aligned start. It is made of atomics, for which any bytes are
        // valid, and which may be written by others at any time.
        unsafe { self.first.cast::<Header>().as_ref() }
    }

    /// The words of a channel. They stay mapped as long as `self`; only a process whose mapping it is may use them.
    pub fn channel(&self, shape: &Shape, channel: u32) -> NonNull<ChannelWords<AtomicU32>> {
        let at = Shape::control_at(channel);
        assert!(channel < shape.channels && at + PAGE <= self.bytes);
        // SAFETY: the offset lies inside the mapping, and is a multiple of the words' alignment.
        unsafe { self.first.add(at).cast() }
    }

    /// The bytes of a ring: `bytes` from `at` on, a power of two.
    pub fn ring(&self, at: usize, bytes: u32) -> SharedBytes {
        assert!(at + bytes as usize <= self.bytes && at.is_multiple_of(PAGE));
        // SAFETY: the range lies inside the mapping, as asserted.
        unsafe { SharedBytes::new(self.first.add(at), bytes) }
    }

    /// The address of the byte at an offset: at most the end.
    pub fn address(&self, at: usize) -> NonNull<u8> {
        assert!(at <= self.bytes);
        // SAFETY: inside the mapping, or its end.
        unsafe { self.first.add(at) }
    }
}

/// For `map_err`: names the failed step.
pub(crate) fn system(step: &'static str) -> impl Fn(Errno) -> PageError {
    move |errno| PageError::System { step, errno }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Mapping({:p}, {} bytes)", self.first, self.bytes)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a child the addresses may have become those of something else.
        if self.is_ours() {
            let start: *mut c_void = self.first.as_ptr().wrapping_sub(PAGE).cast();
            // SAFETY: the range is our own mapping, and each pointer into it is kept beside a reference to `self`.
            let _unmapped = unsafe { rustix::mm::munmap(start, self.bytes + 2 * PAGE) };
        }
    }
}
