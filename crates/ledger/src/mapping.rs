//! One page object mapped into this process.

use core::ffi::c_void;
use core::fmt;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, size_of};
use core::ptr::NonNull;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::PageError;
use crate::layout::{GrantPage, LedgerPage};

/// Page types: any bytes are a valid value, and every field is an atomic.
///
/// # Safety
/// The implementor consists only of integers and atomic integers, and `size_of` is a multiple of 4096.
pub(crate) unsafe trait Page {}

// SAFETY: see their definitions.
unsafe impl Page for GrantPage {}
// SAFETY: see their definitions.
unsafe impl Page for LedgerPage {}

/// What the mapping process may do with the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    ReadWrite,
}

/// A shared mapping of a whole `P`. Writing through an [`Access::Read`] mapping faults, so its users do not write.
pub(crate) struct Mapping<P> {
    page: NonNull<P>,
    _page: PhantomData<P>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and the page is made of atomics.
unsafe impl<P: Sync> Send for Mapping<P> {}
// SAFETY: as above.
unsafe impl<P: Sync> Sync for Mapping<P> {}

impl<P: Page> Mapping<P> {
    /// Maps the descriptor's first `size_of::<P>()` bytes. The caller has made sure that they exist and stay.
    pub fn new(fd: BorrowedFd<'_>, access: Access, step: &'static str) -> Result<Self, PageError> {
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing of ours.
        let raw = unsafe {
            rustix::mm::mmap(
                core::ptr::null_mut(),
                size_of::<P>(),
                protection,
                MapFlags::SHARED,
                fd,
                0,
            )
        }
        .map_err(PageError::system(step))?;
        match NonNull::new(raw.cast()) {
            Some(page) => Ok(Self {
                page,
                _page: PhantomData,
            }),
            None => Err(PageError::System {
                step,
                errno: Errno::NOMEM,
            }),
        }
    }
}

impl<P: Page> Mapping<P> {
    /// Zeroed memory of this process alone, which costs nothing where nothing is written.
    pub fn private() -> Result<Self, PageError> {
        const STEP: &str = "mmap of memory for a copy of a page";
        // SAFETY: as in `new`.
        let raw = unsafe {
            rustix::mm::mmap_anonymous(
                core::ptr::null_mut(),
                size_of::<P>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(PageError::system(STEP))?;
        match NonNull::new(raw.cast()) {
            Some(page) => Ok(Self {
                page,
                _page: PhantomData,
            }),
            None => Err(PageError::System {
                step: STEP,
                errno: Errno::NOMEM,
            }),
        }
    }

    /// Copies a part of a file to the same offset of the page. The part lies inside the page. A file that ends before
    /// it gives an error, and no signal.
    pub fn read(
        &mut self,
        fd: BorrowedFd<'_>,
        part: core::ops::Range<usize>,
        page: &'static str,
    ) -> Result<(), PageError> {
        assert!(part.start <= part.end && part.end <= size_of::<P>());
        // SAFETY: the range lies inside the mapping, which is readable and writable (see `private`), and `&mut self`
        // proves that no other reference to it exists. Any bytes are a valid page.
        let mut into = unsafe {
            core::slice::from_raw_parts_mut(self.page.as_ptr().cast::<u8>().add(part.start), part.len())
        };
        let mut at = part.start;
        while !into.is_empty() {
            match rustix::io::pread(fd, &mut *into, at as u64) {
                Ok(0) => {
                    return Err(PageError::Size {
                        page,
                        expected: size_of::<P>() as u64,
                        found: at as u64,
                    });
                }
                Ok(count) => {
                    into = &mut into[count..];
                    at += count;
                }
                Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(PageError::System {
                        step: "pread of a page",
                        errno,
                    });
                }
            }
        }
        Ok(())
    }
}

impl<P> Mapping<P> {
    #[inline]
    pub fn page(&self) -> &P {
        // SAFETY: mapped from `new` to `drop`, aligned to a page; any bytes are a valid `P` (see [`Page`]), and other
        // processes change them through atomics, or, if hostile, as if by atomics of the hardware's.
        unsafe { self.page.as_ref() }
    }

    /// Keeps the mapping, and with it the locks of its open file description, from forked children.
    pub fn dont_fork(&self) -> Result<(), PageError> {
        // SAFETY: the range is our own mapping.
        unsafe { rustix::mm::madvise(self.address(), size_of::<P>(), Advice::LinuxDontFork) }
            .map_err(PageError::system("madvise(MADV_DONTFORK)"))
    }

    /// Keeps the mapping for as long as the process lives.
    pub fn leak(self) -> *mut P {
        ManuallyDrop::new(self).page.as_ptr()
    }

    /// The mapping of a page that was leaked. The caller must not drop it.
    pub fn of_leaked(page: &'static P) -> Self {
        Self {
            page: NonNull::from(page),
            _page: PhantomData,
        }
    }

    fn address(&self) -> *mut c_void {
        self.page.as_ptr().cast()
    }
}

impl<P> fmt::Debug for Mapping<P> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Mapping({:p})", self.page)
    }
}

impl<P> Drop for Mapping<P> {
    fn drop(&mut self) {
        // SAFETY: the range is our own mapping, and references to the page cannot outlive `self`.
        let _unmapped = unsafe { rustix::mm::munmap(self.address(), size_of::<P>()) };
    }
}
