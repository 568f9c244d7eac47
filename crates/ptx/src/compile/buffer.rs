//! Memory that code runs from. It is written first and executable afterwards, never both.

use std::ptr::NonNull;

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
    /// Pages that hold `code` and may be executed; `None` where the system refuses that.
    pub fn new(code: &[u8]) -> Option<Pages> {
        let bytes = code.len().max(1);
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
        if at == libc::MAP_FAILED {
            return None;
        }
        let pages = Pages {
            at: NonNull::new(at.cast())?,
            bytes,
        };
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
    }
}
