//! A page's bytes copied while others write them: a copy of one moment, as far as one can be had.

use crate::memory::mapping::Mapping;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// Tries to read a page that no process changes meanwhile. A change takes microseconds. A page that another process
/// changes all the time is taken as it is.
const TRIES: u32 = 64;

/// Where a page has what its copy depends on, in bytes from its beginning.
pub struct Layout {
    /// The word that is 0 while no process changes the page.
    pub lock: usize,
    /// The word that says how many places may be in use.
    pub top: usize,
    /// The first place, the bytes of each, and how many there are.
    pub places: usize,
    pub place_bytes: usize,
    pub most: usize,
}

/// Copies the head and the places in use. Two equal copies with the lock free show one moment.
pub fn read(file: BorrowedFd<'_>, layout: &Layout, into: &Mapping) -> Result<(), Errno> {
    let mut last = once(file, layout)?;
    for round in 0..TRIES {
        let now = once(file, layout)?;
        let lock = word(&now, layout.lock);
        let same = now == last && lock == 0;
        last = now;
        if same {
            break;
        }
        if round > 8 {
            std::thread::yield_now();
        }
    }
    // SAFETY: the mapping is new, writable, of the page's size, and no other code knows its address; `once` reads no
    // more than the page has.
    unsafe {
        std::ptr::copy_nonoverlapping(last.as_ptr(), into.address() as *mut u8, last.len());
    }
    Ok(())
}

fn once(file: BorrowedFd<'_>, layout: &Layout) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; layout.places];
    fill(file, &mut bytes, 0)?;
    let top = word(&bytes, layout.top).min(layout.most as u64) as usize;
    bytes.resize(layout.places + top * layout.place_bytes, 0);
    fill(file, &mut bytes[layout.places..], layout.places)?;
    Ok(bytes)
}

/// A file that ends before the last byte is none of ours any more.
fn fill(file: BorrowedFd<'_>, mut into: &mut [u8], mut at: usize) -> Result<(), Errno> {
    while !into.is_empty() {
        match rustix::io::pread(file, &mut *into, at as u64) {
            Ok(0) => return Err(Errno::PROTO),
            Ok(count) => {
                into = &mut into[count..];
                at += count;
            }
            Err(Errno::INTR) => {}
            Err(why) => return Err(why),
        }
    }
    Ok(())
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_ne_bytes)
}
