//! Bytes of messages: little-endian numbers and counted bytes, read with bounds.

/// The longest message either way, in bytes.
pub const LONGEST: usize = 20 << 10;

/// "DVYP".
const MAGIC: u32 = u32::from_le_bytes(*b"DVYP");
/// Both sides must come from one build, or they refuse each other.
const VERSION: u16 = 1;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Not of this protocol.
    Foreign,
    /// Of another version of it.
    Version(u16),
    /// It ends too early, goes on too long, or a field has a value without meaning.
    Meaning,
}

/// Writes a message.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub fn new(kind: u16, number: u64) -> Self {
        let mut writer = Self(Vec::with_capacity(64));
        writer.u32(MAGIC);
        writer.u16(VERSION);
        writer.u16(kind);
        writer.u64(number);
        writer
    }

    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    pub fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    /// Bytes with their count before them.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u16(u16::try_from(bytes.len()).unwrap_or(u16::MAX));
        self.0.extend(bytes);
    }

    /// Bytes whose number both sides know.
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    pub fn done(self) -> Vec<u8> {
        self.0
    }
}

/// Reads a message.
pub(crate) struct Reader<'a>(&'a [u8]);

/// A message's head: its kind, and the number by which an answer is known.
pub(crate) struct Head {
    pub kind: u16,
    pub number: u64,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Result<(Self, Head), Malformed> {
        let mut reader = Self(bytes);
        let magic = reader.u32().map_err(|_| Malformed::Foreign)?;
        if magic != MAGIC {
            return Err(Malformed::Foreign);
        }
        match reader.u16()? {
            VERSION => {}
            other => return Err(Malformed::Version(other)),
        }
        let (kind, number) = (reader.u16()?, reader.u64()?);
        Ok((reader, Head { kind, number }))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed::Meaning)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.take().map(u8::from_le_bytes)
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }

    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take()
    }

    /// Counted bytes, `most` at most.
    pub fn bytes(&mut self, most: usize) -> Result<&'a [u8], Malformed> {
        let count = usize::from(self.u16()?);
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed::Meaning)?;
        self.0 = rest;
        (count <= most).then_some(taken).ok_or(Malformed::Meaning)
    }

    /// A counted list, `most` at most.
    pub fn list<T>(
        &mut self,
        most: usize,
        one: impl Fn(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = usize::from(self.u16()?);
        if count > most {
            return Err(Malformed::Meaning);
        }
        (0..count).map(|_| one(self)).collect()
    }

    /// Nothing may follow.
    pub fn end(self) -> Result<(), Malformed> {
        self.0.is_empty().then_some(()).ok_or(Malformed::Meaning)
    }
}
