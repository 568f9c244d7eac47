//! What goes over the socket between a program that asks NVML and the process that answers. Each message is one packet.

use divvy_abi::nvml::{NVML_ERROR_INSUFFICIENT_SIZE, NVML_SUCCESS, Parameter, nvmlReturn_t};

use super::queries::{Counted, Query};
use crate::wire::{Malformed, Reader};

/// The first bytes of a greeting, and the version of this wire. NVML's own code at its start follows.
pub const GREETING: [u8; 12] = *b"divvynvm\x01\0\0\0";

/// The most bytes of a message.
pub const MOST: usize = 64 << 10;

/// The most bytes of a list or a text: with the rest of its message it fits.
pub const MOST_LIST: usize = 48 << 10;

/// The most bytes of a string that a program passes. NVML's longest is a UUID.
pub const MOST_STRING: usize = 256;

/// The code of a greeting.
///
/// # Errors
/// It is no greeting of this version.
pub fn greeted(message: &[u8]) -> Result<nvmlReturn_t, Malformed> {
    let mut m = Reader::new(message);
    if m.bytes(GREETING.len())? != GREETING {
        return Err(Malformed);
    }
    let code = m.plain()?;
    m.end()?;
    Ok(code)
}

/// One argument of a query as a message has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument<'a> {
    /// A number, in the low bytes.
    Number(u64),
    /// The name of a device.
    Device(u64),
    /// A string; none for a null pointer.
    String(Option<&'a [u8]>),
    /// A place for the name of a device; none for a null pointer.
    NewDevice(bool),
    /// One value that is read and may be written: its bytes, or none for a null pointer.
    One(Option<&'a [u8]>),
    /// A place for a list or a text of so many bytes; none for a null pointer. With the bytes that lie there, where the
    /// callee may read them.
    Counted(Option<(usize, &'a [u8])>),
}

impl Query {
    /// How a list counts: bytes of an element, and whether the callee reads what lies there. That is so where the number
    /// of elements is no place for a result.
    #[must_use]
    pub fn list(&self) -> Option<(Counted, usize, bool)> {
        let counted = self.counted?;
        let element = match self.parameters.get(counted.list)? {
            Parameter::Pointer { bytes, .. } => *bytes,
            _ => 1,
        };
        let is_number = matches!(self.parameters.get(counted.count)?, Parameter::Number(_));
        Some((counted, element, is_number && element != 1))
    }

    /// Reads the arguments of a query.
    ///
    /// # Errors
    /// They are not as the query says.
    pub fn arguments<'a>(&self, m: &mut Reader<'a>) -> Result<Vec<Argument<'a>>, Malformed> {
        let mut arguments = Vec::with_capacity(self.parameters.len());
        for (place, parameter) in self.parameters.iter().enumerate() {
            arguments.push(match (self.list(), parameter) {
                (Some((counted, element, is_read)), _) if counted.list == place => {
                    let count = m.flag()?.then(|| m.plain::<u32>()).transpose()?;
                    let place = |count: u32| -> Result<_, Malformed> {
                        let bytes = (count as usize).checked_mul(element).ok_or(Malformed)?;
                        if bytes > MOST_LIST {
                            return Err(Malformed);
                        }
                        Ok((bytes, if is_read { m.bytes(bytes)? } else { &[] }))
                    };
                    Argument::Counted(count.map(place).transpose()?)
                }
                (_, Parameter::Number(_)) => Argument::Number(m.plain()?),
                (_, Parameter::Device) => Argument::Device(m.plain()?),
                (_, Parameter::NewDevice) => Argument::NewDevice(m.flag()?),
                (_, Parameter::Text { constant: true }) => {
                    let text = m.list(1)?;
                    if text.is_some_and(|text| text.len() > MOST_STRING || text.contains(&0)) {
                        return Err(Malformed);
                    }
                    Argument::String(text)
                }
                (_, Parameter::Pointer { bytes, .. }) => Argument::One(m.optional(*bytes)?),
                (_, Parameter::Text { .. } | Parameter::Handle) => return Err(Malformed),
            });
        }
        m.end()?;
        self.is_consistent(&arguments)?;
        Ok(arguments)
    }

    /// The structure has the size that its version says: another one would be read or written past its end.
    fn is_consistent(&self, arguments: &[Argument<'_>]) -> Result<(), Malformed> {
        let versioned = self.versioned.and_then(|place| arguments.get(place));
        let Some(Argument::One(Some(bytes))) = versioned else {
            return Ok(());
        };
        let version: u32 = Reader::new(bytes).plain()?;
        match (version & 0x00ff_ffff) as usize == bytes.len() {
            true => Ok(()),
            false => Err(Malformed),
        }
    }
}

/// Whether a call with this code may have written its single values.
#[must_use]
pub fn has_results(code: nvmlReturn_t) -> bool {
    code == NVML_SUCCESS || code == NVML_ERROR_INSUFFICIENT_SIZE
}
