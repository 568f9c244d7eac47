//! The memory that a machine and its host share, as the host has it: a memory file, and its parts.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use divvy_remote::local::handshake::Part;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::label::{self, PAGE};

/// No program's part is smaller, in bytes.
pub const LEAST_PART: u64 = 1 << 20;

/// The file and how it is divided.
#[derive(Debug)]
pub struct Memory {
    file: OwnedFd,
    bytes: u64,
    label: u64,
    part: u64,
    count: u32,
    pinned: u64,
}

impl Memory {
    /// A file of `bytes`, a power of two as PCI asks for, with parts for `count` programs at a time. Each may have
    /// `pinned` bytes of its part pinned. Memory is taken where it is used.
    ///
    /// # Errors
    /// `EINVAL` for numbers that do not go together; else the system's reason.
    pub fn new(bytes: u64, count: u32, pinned: u64) -> Result<Self, Errno> {
        let for_parts = bytes.saturating_sub(PAGE as u64);
        let part = for_parts.checked_div(u64::from(count)).unwrap_or(0) / PAGE as u64 * PAGE as u64;
        if !bytes.is_power_of_two() || part < LEAST_PART {
            return Err(Errno::INVAL);
        }
        let file = rustix::fs::memfd_create(c"divvy-guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, bytes)?;
        // Workers take no other: what can be shortened makes its users fault.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let memory = Self {
            file,
            bytes,
            label: random(),
            part,
            count,
            pinned,
        };
        memory.mark()?;
        Ok(memory)
    }

    /// Writes the label at the begin. A program of the guest that has the memory can have written over it.
    ///
    /// # Errors
    /// The system's reason.
    pub fn mark(&self) -> Result<(), Errno> {
        rustix::io::pwrite(&self.file, &label::encode(self.label), 0).map(drop)
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number at its begin.
    #[must_use]
    pub fn label(&self) -> u64 {
        self.label
    }

    /// Into how many parts it is divided.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// A part.
    #[must_use]
    pub fn part(&self, index: u32) -> Part {
        Part {
            at: PAGE as u64 + u64::from(index) * self.part,
            bytes: self.part,
            pinned: self.pinned,
        }
    }

    /// Gives a part's memory back to the system. The next program finds zeros there, and nothing of the one before.
    ///
    /// # Errors
    /// The system's reason: then the part may not be used again.
    pub fn clear(&self, index: u32) -> Result<(), Errno> {
        let Part { at, bytes, .. } = self.part(index);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, hole, at, bytes)
    }
}

/// A number that differs from time to time. It keeps devices apart, and nothing secret depends on it.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_behind_the_label_and_in_the_file() {
        let memory = Memory::new(1 << 26, 5, 0).expect("memory");
        let mut end = PAGE as u64;
        for index in 0..5 {
            let part = memory.part(index);
            assert_eq!(
                (part.at, part.at % PAGE as u64, part.bytes % PAGE as u64),
                (end, 0, 0)
            );
            end += part.bytes;
        }
        assert!(end <= 1 << 26);
        assert_eq!(label::read(memory.file()), Ok(Some(memory.label())));
        // Nothing of a program stays for the next one.
        let at = memory.part(1).at;
        rustix::io::pwrite(memory.file(), &[7; 100], at).expect("written");
        memory.clear(1).expect("cleared");
        let mut bytes = [1; 100];
        rustix::io::pread(memory.file(), &mut bytes[..], at).expect("read");
        assert_eq!(bytes, [0; 100]);
    }

    #[test]
    fn sizes_that_are_none_are_refused() {
        for (bytes, count) in [
            (0, 1),
            (1 << 26, 0),
            ((1 << 26) + 4096, 4),
            (1 << 20, 1),
            (1 << 26, 64),
        ] {
            assert_eq!(
                Memory::new(bytes, count, 0).err(),
                Some(Errno::INVAL),
                "{bytes} {count}"
            );
        }
    }
}
