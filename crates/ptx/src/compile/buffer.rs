//! Memory that code runs from. It is written first and executable afterwards, never both.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of machine code that this process has, and may have.
static USED: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(256 << 20);

/// Lets this process hold so many bytes of machine code from now on, 256 MiB unless told otherwise. A module whose
/// code would go beyond is interpreted. Code that is there already stays.
pub fn limit_code(bytes: usize) {
    LIMIT.store(bytes, Ordering::Relaxed);
}

/// Counts bytes of code; false where that is more than there may be.
fn take(bytes: usize) -> bool {
    let limit = LIMIT.load(Ordering::Relaxed);
    let more = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= limit);
    USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
        .is_ok()
}

/// Pages with code, mapped until this is dropped.
pub(super) struct Pages {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: nothing writes the pages after `new`.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Pages that hold `code` and may be executed; `None` where the system refuses that, or there is too much code.
    pub fn new(code: &[u8]) -> Option<Pages> {
        let bytes = code.len().max(1);
        if !take(bytes) {
            return None;
        }
        let (write, run) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::PROT_READ | libc::PROT_EXEC,
        );
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                write,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let mapped = NonNull::new(at.cast()).filter(|_| at != libc::MAP_FAILED);
        let Some(mapped) = mapped else {
            USED.fetch_sub(bytes, Ordering::Relaxed);
            return None;
        };
        let pages = Pages { at: mapped, bytes };
        // SAFETY: the mapping is ours, writable, and at least as long as the code.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), pages.at.as_ptr(), code.len()) };
        // SAFETY: the mapping is ours, and nothing refers into it yet.
        let status = unsafe { libc::mprotect(at, bytes, run) };
        (status == 0).then_some(pages)
    }

    pub fn address(&self) -> *const u8 {
        self.at.as_ptr()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours; no code in it runs, since a launch holds the module it belongs to.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
        USED.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
