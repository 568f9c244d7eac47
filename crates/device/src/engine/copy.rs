//! A page's bytes copied while others write them: a copy of one moment, as far as one can be had.

use super::page::{PLACES, PlaceWords, Words};
use crate::memory::mapping::Mapping;
use rustix::io::Errno;
use std::mem::offset_of;
use std::os::fd::BorrowedFd;

/// Tries to read a page that no process changes meanwhile. A change takes microseconds. A page that another process
/// changes all the time is taken as it is.
const TRIES: u32 = 64;
const PLACES_AT: usize = offset_of!(Words, places);

/// Copies the head and the places in use. Two equal copies with the lock free show one moment.
pub fn read(file: BorrowedFd<'_>, into: &Mapping) -> Result<(), Errno> {
    let mut last = once(file)?;
    for round in 0..TRIES {
        let now = once(file)?;
        let lock = word(&now, offset_of!(Words, lock));
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

fn once(file: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; PLACES_AT];
    fill(file, &mut bytes, 0)?;
    let top = word(&bytes, offset_of!(Words, top)).min(PLACES as u64) as usize;
    bytes.resize(PLACES_AT + top * size_of::<PlaceWords>(), 0);
    fill(file, &mut bytes[PLACES_AT..], PLACES_AT)?;
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
