//! The first message of each thread, and its answer: who speaks, and by which roles.

use super::{HEADER_BYTES, Header, Malformed, Reader, Sort, Writer};

/// Counts the changes of the header and of this record. Changes of single calls show in their ids.
pub const VERSION: u32 = 2;

const MARK: u64 = u64::from_le_bytes(*b"divvyGPU");

/// Bytes of a hello.
pub const HELLO_BYTES: usize = HEADER_BYTES + 24;

/// What each side says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The thread of the program.
    pub thread: u32,
    /// [`VERSION`] of the side that speaks.
    pub version: u32,
    /// `divvy_abi::ROLES_DIGEST` of the side that speaks. Two that differ still share the calls with one id.
    pub digest: u64,
    /// The largest message that it takes, in bytes.
    pub capacity: u32,
}

impl Hello {
    /// Our own.
    pub fn ours(thread: u32, capacity: u32) -> Self {
        Self {
            thread,
            version: VERSION,
            digest: divvy_abi::ROLES_DIGEST,
            capacity,
        }
    }

    /// The message.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        let mut to = Writer::new(&mut bytes);
        let header = Header {
            length: HELLO_BYTES as u32,
            id: 0,
            sequence: 0,
            order: self.thread,
            sort: Sort::Hello,
        };
        header.write(&mut to);
        to.plain(MARK);
        to.plain(self.version);
        to.plain(self.capacity);
        to.plain(self.digest);
        bytes
    }

    /// Reads a message.
    ///
    /// # Errors
    /// It is no hello.
    pub fn decode(message: &[u8]) -> Result<Self, Malformed> {
        let (header, mut body) = Header::read(message)?;
        let mark: u64 = body.plain()?;
        let hello = Self {
            thread: header.order,
            version: body.plain()?,
            capacity: body.plain()?,
            digest: body.plain()?,
        };
        let whole = header.sort == Sort::Hello && header.sequence == 0 && header.id == 0 && mark == MARK;
        Reader::end(&body)?;
        if whole { Ok(hello) } else { Err(Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_read_as_it_was_written() {
        let hello = Hello::ours(3, 65_536);
        let bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Ok(hello));
        for end in 0..bytes.len() {
            assert_eq!(Hello::decode(&bytes[..end]), Err(Malformed));
        }
        for at in [0, 4, 8, 20, 24] {
            let mut other = bytes;
            other[at] ^= 0x40;
            assert_eq!(Hello::decode(&other), Err(Malformed), "byte {at}");
        }
    }
}
