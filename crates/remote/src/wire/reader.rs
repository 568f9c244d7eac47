//! Reading a message that the other side may have made up.

use core::fmt;

use divvy_abi::Plain;

/// A message that is none: a part of it is missing, too long, or in excess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message is not as its call says")
    }
}

impl std::error::Error for Malformed {}

/// Reads one part after the other. The bytes are a copy of our own: the other side cannot change them meanwhile.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

/// A count that says that there is no list, but a null pointer.
pub(crate) const ABSENT: u32 = u32::MAX;

impl<'a> Reader<'a> {
    /// Reads these bytes from their beginning.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or(Malformed)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// A number or a structure.
    ///
    /// # Errors
    /// The message ends before.
    pub fn plain<T: Plain>(&mut self) -> Result<T, Malformed> {
        let bytes = self.bytes(size_of::<T>())?;
        // SAFETY: there are as many bytes as the type has, any bytes are a value of a plain type, and the read asks for
        // no alignment.
        Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }

    /// Whether something is there: one byte, 0 or 1.
    ///
    /// # Errors
    /// The message ends before, or has another byte.
    pub fn flag(&mut self) -> Result<bool, Malformed> {
        match self.plain::<u8>()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    /// A list of elements of `size` bytes: their bytes, or nothing for a null pointer.
    ///
    /// # Errors
    /// The message ends before.
    pub fn list(&mut self, size: usize) -> Result<Option<&'a [u8]>, Malformed> {
        let count = self.plain::<u32>()?;
        if count == ABSENT {
            return Ok(None);
        }
        let bytes = (count as usize).checked_mul(size).ok_or(Malformed)?;
        self.bytes(bytes).map(Some)
    }

    /// One element of `size` bytes, or nothing for a null pointer.
    ///
    /// # Errors
    /// The message ends before.
    pub fn optional(&mut self, size: usize) -> Result<Option<&'a [u8]>, Malformed> {
        match self.flag()? {
            true => self.bytes(size).map(Some),
            false => Ok(None),
        }
    }

    /// What has not been read.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The message ends here.
    ///
    /// # Errors
    /// It does not.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Malformed)
        }
    }
}
