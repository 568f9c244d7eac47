//! The begin of the shared memory: it tells the broker which of a machine's devices the relay means.
//!
//! A machine may have other shared memory, and a relay another file than its machine. Then the number differs that the
//! relay says, and the broker gives out no part.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// Bytes of the first page, in which no part lies.
pub const PAGE: usize = 4096;

/// "DVYGUEST" in memory order.
const MAGIC: [u8; 8] = *b"DVYGUEST";

/// The label's bytes.
pub(crate) fn encode(label: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..].copy_from_slice(&label.to_le_bytes());
    bytes
}

/// The label of this memory, if it has one. A device's memory can be mapped and not read.
///
/// # Errors
/// The system's reason: a kernel in lockdown maps no device's memory.
pub fn read(memory: BorrowedFd<'_>) -> Result<Option<u64>, Errno> {
    let length = rustix::fs::fstat(memory)?.st_size;
    if length < PAGE as i64 {
        return Ok(None);
    }
    // SAFETY: without MAP_FIXED the kernel takes addresses that are free.
    let page = unsafe {
        rustix::mm::mmap(
            core::ptr::null_mut(),
            PAGE,
            ProtFlags::READ,
            MapFlags::SHARED,
            memory,
            0,
        )?
    };
    let words = page.cast::<u64>();
    // SAFETY: the page is mapped, and aligned. The other side may write it at any time, so the reads are volatile.
    let (magic, label) = unsafe { (words.read_volatile(), words.add(1).read_volatile()) };
    // SAFETY: it is the mapping that was made above, and no reference to it exists.
    let _unmapped = unsafe { rustix::mm::munmap(page, PAGE) };
    Ok((magic == u64::from_le_bytes(MAGIC)).then_some(u64::from_le(label)))
}
