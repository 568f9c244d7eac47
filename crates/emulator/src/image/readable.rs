//! Whether memory that an image claims to fill is there to be read.
//!
//! A container says its own length, and the interface gives no other. A damaged header must not make us read past what
//! is mapped: that would end the program. So the kernel is asked, one byte a page. It never faults.

use std::ffi::c_void;

/// The smallest page of any Linux we run on: probing finer than the real pages costs time, never truth.
const PAGE: usize = 4096;
/// Pages asked about in one system call (the kernel takes at most 1024 ranges).
const BATCH: usize = 512;

/// Whether all of `bytes` bytes from `start` can be read now. Where the kernel does not tell (a filter forbids the
/// call), the answer is yes: then there is only the program's word.
pub fn readable(start: *const c_void, bytes: usize) -> bool {
    let (first, Some(end)) = (start as usize, (start as usize).checked_add(bytes)) else {
        return false;
    };
    let mut at = first;
    while at < end {
        let mut pages = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; BATCH];
        let mut count = 0;
        while count < BATCH && at < end {
            pages[count] = libc::iovec {
                iov_base: at as *mut c_void,
                iov_len: 1,
            };
            count += 1;
            at = match (at - at % PAGE).checked_add(PAGE) {
                Some(next) => next,
                None => return false,
            };
        }
        if !probe(&pages[..count]) {
            return false;
        }
    }
    true
}

fn probe(pages: &[libc::iovec]) -> bool {
    let mut sink = [0_u8; BATCH];
    let into = libc::iovec {
        iov_base: sink.as_mut_ptr().cast(),
        iov_len: pages.len(),
    };
    // SAFETY: the kernel writes at most BATCH bytes into `sink`, and answers for the addresses in `pages` itself.
    let read = unsafe {
        libc::process_vm_readv(
            libc::getpid(),
            &raw const into,
            1,
            pages.as_ptr(),
            pages.len() as libc::c_ulong,
            0,
        )
    };
    match usize::try_from(read) {
        Ok(read) => read == pages.len(),
        Err(_) => std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_is_readable_and_what_is_not_is_not() {
        let bytes = vec![1_u8; 10 << 20];
        assert!(readable(bytes.as_ptr().cast(), bytes.len()));
        assert!(readable(bytes.as_ptr().cast(), 0));
        assert!(!readable(bytes.as_ptr().cast(), 1 << 60));
        assert!(!readable(bytes.as_ptr().cast(), usize::MAX));
        assert!(
            !readable(std::ptr::without_provenance(16), 1),
            "the first page is never mapped"
        );
    }
}
