//! A part of a file of records, which one thread at a time writes through a mapping.
//!
//! A record is its length (4 bytes, with them and what fills it up to a multiple of 8) and its bytes. The length is stored
//! last, so that a reader finds whole records only. [`END`] says that the rest stays empty.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes of a chunk.
pub const CHUNK: usize = 64 << 10;
/// The length that says that no record follows in this chunk.
pub const END: u32 = u32::MAX;

/// A mapped chunk.
#[derive(Debug)]
pub struct Chunk {
    base: NonNull<u8>,
    at: usize,
}

// SAFETY: the mapping belongs to this value alone, whichever thread has it.
unsafe impl Send for Chunk {}

impl Chunk {
    /// The chunk at `offset` of a file. Its blocks are taken from the disk first: a store into a mapping of a full disk
    /// would end the program.
    pub fn new(file: &File, offset: u64) -> std::io::Result<Chunk> {
        file.write_all_at(&[0; CHUNK], offset)?;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                CHUNK,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                offset,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(std::io::ErrorKind::Other)?;
        Ok(Chunk { base, at: 0 })
    }

    /// Bytes that a record of so many takes.
    fn needed(bytes: usize) -> usize {
        (4 + bytes).next_multiple_of(8)
    }

    /// Whether a record of so many bytes has room in an empty chunk.
    pub fn fits(bytes: usize) -> bool {
        Self::needed(bytes) <= CHUNK
    }

    /// Appends a record; false where there is no room, after which nothing more is written.
    pub fn append(&mut self, record: &[u8]) -> bool {
        let needed = Self::needed(record.len());
        if needed > CHUNK - self.at {
            self.close();
            return false;
        }
        // SAFETY: `at` and the record's end lie within the mapping, which this value alone writes.
        unsafe {
            let text = self.base.as_ptr().add(self.at + 4);
            std::ptr::copy_nonoverlapping(record.as_ptr(), text, record.len());
        }
        self.length(needed as u32);
        self.at += needed;
        true
    }

    fn close(&mut self) {
        if self.at < CHUNK {
            self.length(END);
            self.at = CHUNK;
        }
    }

    /// Stores the length of the record at `at`, behind its bytes.
    fn length(&self, length: u32) {
        // SAFETY: `at` is a multiple of 8 below the chunk's end, and the mapping begins at a page. Readers are other
        // processes, with system calls.
        let word = unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(self.at).cast()) };
        word.store(length, Ordering::Release);
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nothing points into it any more.
        let _unmapped = unsafe { munmap(self.base.as_ptr().cast(), CHUNK) };
    }
}

/// The records in the bytes of a chunk from `from`, and where the next will be: the chunk's length where there is none.
pub fn records(bytes: &[u8], from: usize) -> (Vec<&[u8]>, usize) {
    let (mut records, mut at) = (Vec::new(), from);
    while let Some(length) = bytes.get(at..at + 4) {
        let length = u32::from_le_bytes(length.try_into().unwrap_or_default());
        match length as usize {
            0 => return (records, at),
            // A length that no writer makes ends the chunk too.
            length if length < 8 || length % 8 != 0 || at + length > bytes.len() => break,
            length => {
                records.push(&bytes[at + 4..at + length]);
                at += length;
            }
        }
    }
    (records, bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_records_are_read_and_a_full_chunk_ends() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("records");
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .expect("a file");
        let mut chunk = Chunk::new(&file, 0).expect("a chunk");
        assert!(chunk.append(b"one") && chunk.append(&[7; 100]));
        let bytes = std::fs::read(&path).expect("read");
        let (found, next) = records(&bytes, 0);
        assert_eq!((found[0], found.len(), next), (&b"one\0"[..], 2, 8 + 104));
        assert!(chunk.append(b"three"));
        let bytes = std::fs::read(&path).expect("read");
        let (found, next) = records(&bytes, next);
        assert_eq!((&found[0][..5], found.len()), (&b"three"[..], 1));
        assert!(!chunk.append(&[1; CHUNK - 64]));
        let bytes = std::fs::read(&path).expect("read");
        assert_eq!(records(&bytes, next), (Vec::new(), CHUNK));
        assert!(Chunk::fits(CHUNK - 4) && !Chunk::fits(CHUNK - 3));
    }

    #[test]
    fn lengths_that_no_writer_makes_end_the_chunk() {
        for length in [3_u32, 12, 9, CHUNK as u32 + 8, u32::MAX - 7] {
            let mut bytes = vec![0; CHUNK];
            bytes[..4].copy_from_slice(&length.to_le_bytes());
            assert_eq!(records(&bytes, 0), (Vec::new(), CHUNK), "{length}");
        }
        assert_eq!(records(&[0; 3], 0), (Vec::new(), 3));
    }
}
