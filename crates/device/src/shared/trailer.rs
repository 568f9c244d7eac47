//! The last page of a file of shareable device memory: whose memory it is, for a process that gets only the descriptor.
//!
//! The page is the program's to overwrite, like the memory itself. So nothing in it is believed that could harm more
//! than the program that wrote it.

use super::ownership::Id;
use crate::memory::file::{MemoryFile, is_mappable};
use crate::product::identity::Uuid;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// Bytes that a file is longer than the memory in it.
pub const BYTES: u64 = 4096;

const MAGIC: [u8; 8] = *b"DVYMEM01";

/// What a descriptor stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Memory on the device.
    Device,
    /// Host memory, named as CU_MEM_LOCATION_TYPE_*.
    Host(u32),
    /// A memory pool; the file holds nothing else.
    Pool,
}

/// Identity of shareable memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// The device it is on, or was made for.
    pub device: Uuid,
    /// Its name.
    pub id: Id,
    /// Size of the memory, in bytes; the trailer follows.
    pub bytes: u64,
    /// What it is.
    pub kind: Kind,
}

impl Trailer {
    /// A new file of such memory.
    ///
    /// # Errors
    /// The system's reason.
    pub fn create(&self) -> Result<MemoryFile, Errno> {
        let length = self
            .bytes
            .checked_add(BYTES)
            .filter(|&length| length < 1 << 62)
            .ok_or(Errno::FBIG)?;
        let file = MemoryFile::create(length)?;
        let mut page = Vec::with_capacity(64);
        page.extend(MAGIC);
        page.extend(self.device.0);
        page.extend(self.id.0);
        page.extend(self.bytes.to_le_bytes());
        let (kind, detail) = match self.kind {
            Kind::Device => (0u32, 0),
            Kind::Host(location) => (1, location),
            Kind::Pool => (2, 0),
        };
        page.extend(kind.to_le_bytes());
        page.extend(detail.to_le_bytes());
        rustix::io::pwrite(file.fd()?, &page, self.bytes)?;
        Ok(file)
    }

    /// Reads a descriptor's trailer; None if it is no file of ours.
    pub fn read(fd: BorrowedFd<'_>) -> Option<Trailer> {
        let length = rustix::fs::fstat(fd).ok()?.st_size as u64;
        let bytes = length.checked_sub(BYTES)?;
        let mut page = [0; 56];
        if rustix::io::pread(fd, &mut page, bytes).ok()? != page.len() {
            return None;
        }
        let (magic, rest) = page.split_at(8);
        let (device, rest) = rest.split_at(16);
        let (id, rest) = rest.split_at(16);
        let (said, rest) = rest.split_at(8);
        let (kind, detail) = rest.split_at(4);
        // Asked last: it seals the size, which is not to be done to a file that is not ours.
        if magic != MAGIC || said != bytes.to_le_bytes() || !is_mappable(fd, length) {
            return None;
        }
        let detail = u32::from_le_bytes(detail.try_into().ok()?);
        Some(Trailer {
            device: Uuid(device.try_into().ok()?),
            id: Id(id.try_into().ok()?),
            bytes,
            kind: match u32::from_le_bytes(kind.try_into().ok()?) {
                0 => Kind::Device,
                1 => Kind::Host(detail),
                2 => Kind::Pool,
                _ => return None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_descriptor_says_what_it_is() {
        for kind in [Kind::Device, Kind::Host(2), Kind::Pool] {
            let trailer = Trailer {
                device: Uuid([7; 16]),
                id: Id([9; 16]),
                bytes: 8192,
                kind,
            };
            let file = trailer.create().unwrap();
            assert_eq!(Trailer::read(file.fd().unwrap()), Some(trailer));
        }
        let plain = MemoryFile::create(8192).unwrap();
        assert_eq!(Trailer::read(plain.fd().unwrap()), None);
        assert_eq!(Trailer::read(MemoryFile::create(10).unwrap().fd().unwrap()), None);
        assert_eq!(
            Trailer::read(std::fs::File::open("/dev/null").unwrap().as_fd()),
            None
        );
        let huge = Trailer {
            device: Uuid([0; 16]),
            id: Id([0; 16]),
            bytes: u64::MAX,
            kind: Kind::Device,
        };
        assert!(huge.create().is_err());
    }
}
