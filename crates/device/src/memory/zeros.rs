//! Zeros over the memory of a device. Pages that hold nothing yet are zero already: to write them would only cost the host's
//! time and memory, a second for each GiB where a program asks for zeroed memory that it fills itself.

use rustix::mm::{Advice, madvise};

/// Below so many bytes a look at the pages costs more than it saves.
const LEAST: usize = 1 << 20;
/// Bytes of a page of the host. Where they are larger, all is written.
const PAGE: usize = 4096;
/// Pages that one look is at.
const PAGES: usize = 4096;

/// Sets `bytes` bytes from `address` on to zero.
///
/// # Safety
/// The range is mapped and writable, and no reference of the program's own is to it.
pub unsafe fn zero(address: u64, bytes: usize) {
    let start = address as usize;
    let end = start + bytes;
    let (first, last) = (start.next_multiple_of(PAGE), end / PAGE * PAGE);
    // SAFETY: it takes no pointer.
    let is_other = || unsafe { libc::sysconf(libc::_SC_PAGESIZE) } != PAGE as libc::c_long;
    if bytes < LEAST || first >= last || is_other() {
        // SAFETY: the caller's range.
        return unsafe { write(start, end) };
    }
    // SAFETY: all of these lie inside the caller's range.
    unsafe {
        write(start, first);
        for part in (first..last).step_by(PAGES * PAGE) {
            zero_pages(part, last.min(part + PAGES * PAGE));
        }
        write(last, end);
    }
}

/// The same for at most [`PAGES`] whole pages.
///
/// # Safety
/// As for [`zero`].
unsafe fn zero_pages(start: usize, end: usize) {
    let mut looks = [0_u8; PAGES];
    let looks = &mut looks[..(end - start) / PAGE];
    // SAFETY: the range is mapped, and there is a byte for each of its pages.
    let seen = unsafe { libc::mincore(start as *mut _, end - start, looks.as_mut_ptr()) } == 0;
    if !seen {
        // SAFETY: the caller's range.
        return unsafe { write(start, end) };
    }
    let mut at = start;
    for run in looks.chunk_by(|one, next| one & 1 == next & 1) {
        let then = at + run.len() * PAGE;
        // What is not in memory may be in a swap file, so it is not merely left alone.
        // SAFETY: whole pages inside the caller's range, and what is in them is to be lost.
        let is_gone =
            run[0] & 1 == 0 && unsafe { madvise(at as *mut _, then - at, Advice::LinuxRemove) }.is_ok();
        if !is_gone {
            // SAFETY: the caller's range.
            unsafe { write(at, then) };
        }
        at = then;
    }
}

/// # Safety
/// As for [`zero`].
unsafe fn write(start: usize, end: usize) {
    // SAFETY: as the caller promises.
    unsafe { std::ptr::write_bytes(start as *mut u8, 0, end - start) };
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::memory::mapping::{Mapping, map_over};

    const MIB: usize = 1 << 20;

    /// A mapping of a file in memory, as devices have, of so many bytes.
    fn mapped(bytes: usize) -> (Mapping, std::os::fd::OwnedFd) {
        let file = rustix::fs::memfd_create(c"zeros", rustix::fs::MemfdFlags::empty()).expect("a file");
        rustix::fs::ftruncate(&file, bytes as u64).expect("a length");
        let mapping = Mapping::reserve(bytes, 4096).expect("reserved");
        // SAFETY: the range was reserved for it.
        unsafe { map_over(mapping.address(), bytes, file.as_fd(), 0) }.expect("mapped");
        (mapping, file)
    }

    /// How many bytes of the host's memory the file has.
    fn held(file: &std::os::fd::OwnedFd) -> i64 {
        rustix::fs::fstat(file).expect("its state").st_blocks * 512
    }

    #[test]
    fn untouched_pages_stay_so_and_all_others_are_zero() {
        let (mapping, file) = mapped(64 * MIB);
        let start = mapping.address();
        let all = start as *mut u8;
        // In the middle of a page, at the edges of what one look is at, and behind the end of what is zeroed.
        let touched = [
            5,
            4096 * 7 + 1,
            16 * MIB - 1,
            16 * MIB,
            40 * MIB + 3,
            64 * MIB - 1,
        ];
        for at in touched {
            // SAFETY: inside the mapping.
            unsafe { all.add(at).write(7) };
        }
        let before = held(&file);
        // SAFETY: the same.
        unsafe { zero(start + 3, 64 * MIB - 4) };
        assert_eq!(held(&file), before, "nothing more is held");
        for at in &touched[..5] {
            // SAFETY: the same.
            assert_eq!(unsafe { all.add(*at).read() }, 0, "{at}");
        }
        // SAFETY: the same.
        assert_eq!(unsafe { all.add(64 * MIB - 1).read() }, 7, "behind the end");
    }

    #[test]
    fn memory_that_is_no_file_and_short_ranges_are_zeroed_too() {
        let mapping = Mapping::new(8 * MIB, 4096, false).expect("memory");
        let all = mapping.address() as *mut u8;
        for (from, bytes) in [(0, 8 * MIB), (1, 4096), (4096, 0), (4095, 2 * MIB)] {
            // SAFETY: inside the mapping, which no other code uses.
            let bytes_of = unsafe {
                all.write_bytes(9, 8 * MIB);
                zero(mapping.address() + from as u64, bytes);
                std::slice::from_raw_parts(all, 8 * MIB)
            };
            let wrong = bytes_of.iter().enumerate().find(|(at, byte)| {
                let is_inside = (from..from + bytes).contains(at);
                **byte != if is_inside { 0 } else { 9 }
            });
            assert_eq!(wrong, None, "{from} {bytes}");
        }
    }
}
