//! Protocol buffers on the wire (protobuf.dev/programming-guides/encoding): as much of it as NRI's messages need. Bytes
//! from outside are read without copying, and never beyond their end.

use std::fmt;

/// Bytes that are no such message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

/// A field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A varint: every kind of integer, truth values, enumerations.
    Number(u64),
    /// A text, a message, bytes.
    Bytes(&'a [u8]),
    /// Four or eight bytes of a fixed width. No message that we read has any.
    Fixed,
}

impl<'a> Value<'a> {
    /// The integer.
    ///
    /// # Errors
    /// [`Malformed`] where it is none.
    pub fn number(self) -> Result<u64, Malformed> {
        match self {
            Self::Number(number) => Ok(number),
            _ => Err(Malformed("a number is of another kind")),
        }
    }

    /// The integer of 32 bits, of which longer encodings lose the rest, as every reader has it.
    ///
    /// # Errors
    /// [`Malformed`] where it is none.
    pub fn short(self) -> Result<u32, Malformed> {
        let bytes = self.number()?.to_le_bytes();
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// The bytes.
    ///
    /// # Errors
    /// [`Malformed`] where it is none.
    pub fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed("bytes are of another kind")),
        }
    }

    /// The text.
    ///
    /// # Errors
    /// [`Malformed`] where it is none.
    pub fn text(self) -> Result<String, Malformed> {
        let text = std::str::from_utf8(self.bytes()?);
        text.map(str::to_owned)
            .map_err(|_| Malformed("a text is no UTF-8"))
    }

    /// The entry of a map from texts to texts.
    ///
    /// # Errors
    /// [`Malformed`] where it is none.
    pub fn entry(self) -> Result<(String, String), Malformed> {
        let (mut key, mut value) = (String::new(), String::new());
        for field in fields(self.bytes()?) {
            match field? {
                (1, part) => key = part.text()?,
                (2, part) => value = part.text()?,
                _ => {}
            }
        }
        Ok((key, value))
    }
}

/// The fields of a message, in their order; the last one is an error where the bytes are no message.
#[must_use]
pub fn fields(bytes: &[u8]) -> Fields<'_> {
    Fields { rest: bytes }
}

/// See [`fields`].
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for place in 0..10 {
            let (first, rest) = self
                .rest
                .split_first()
                .ok_or(Malformed("it ends within a number"))?;
            self.rest = rest;
            // Only one bit of the tenth byte is used.
            if place == 9 && *first > 1 {
                break;
            }
            number |= u64::from(first & 0x7f) << (7 * place);
            if first & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Malformed("a number has more than 64 bits"))
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(length).ok();
        let split = length.and_then(|length| self.rest.split_at_checked(length));
        let (taken, rest) = split.ok_or(Malformed("it ends within a field"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn field(&mut self) -> Result<(u32, Value<'a>), Malformed> {
        let tag = u32::try_from(self.varint()?).map_err(|_| Malformed("a field's number is too large"))?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return Err(Malformed("a field is of a kind that is no more")),
        };
        match tag >> 3 {
            0 => Err(Malformed("a field has no number")),
            number => Ok((number, value)),
        }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// A message that is being written. Fields with their default value are left out, as others do, except in lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// The message.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn varint(&mut self, mut number: u64) {
        while number > 0x7f {
            self.bytes.push(low_bits(number) | 0x80);
            number >>= 7;
        }
        self.bytes.push(low_bits(number));
    }

    /// An integer.
    #[must_use]
    pub fn number(mut self, field: u32, number: u64) -> Self {
        if number != 0 {
            self.varint(u64::from(field) << 3);
            self.varint(number);
        }
        self
    }

    /// A text, or bytes.
    #[must_use]
    pub fn bytes(self, field: u32, bytes: &[u8]) -> Self {
        match bytes {
            [] => self,
            bytes => self.item(field, bytes),
        }
    }

    /// A text.
    #[must_use]
    pub fn text(self, field: u32, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    /// An item of a list of texts or bytes.
    #[must_use]
    pub fn item(mut self, field: u32, bytes: &[u8]) -> Self {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// A message, or an item of a list of messages.
    #[must_use]
    pub fn message(self, field: u32, message: Self) -> Self {
        self.item(field, &message.into_bytes())
    }
}

fn low_bits(number: u64) -> u8 {
    number.to_le_bytes()[0] & 0x7f
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Result<Vec<(u32, Value<'_>)>, Malformed> {
        fields(bytes).collect()
    }

    /// The examples of the encoding's own page.
    #[test]
    fn the_published_examples() {
        assert_eq!(all(&[0x08, 0x96, 0x01]), Ok(vec![(1, Value::Number(150))]));
        let testing = [0x12, 0x07, 0x74, 0x65, 0x73, 0x74, 0x69, 0x6e, 0x67];
        assert_eq!(all(&testing), Ok(vec![(2, Value::Bytes(b"testing"))]));
        assert_eq!(Writer::default().number(1, 150).into_bytes(), [0x08, 0x96, 0x01]);
        assert_eq!(Writer::default().text(2, "testing").into_bytes(), testing);
        let inner = Writer::default().number(1, 150);
        let outer = Writer::default().message(3, inner).into_bytes();
        assert_eq!(outer, [0x1a, 0x03, 0x08, 0x96, 0x01]);
        // -2 as an int64 has ten bytes.
        let minus = Writer::default().number(1, (-2_i64).cast_unsigned()).into_bytes();
        assert_eq!(minus.len(), 11);
        assert_eq!(all(&minus), Ok(vec![(1, Value::Number(u64::MAX - 1))]));
    }

    #[test]
    fn what_is_written_is_read() {
        for number in [1, 127, 128, 1 << 35, u64::MAX] {
            let bytes = Writer::default().number(9, number).into_bytes();
            assert_eq!(all(&bytes), Ok(vec![(9, Value::Number(number))]));
        }
        let entry = Writer::default().text(1, "key").text(2, "value");
        let bytes = Writer::default().message(6, entry).into_bytes();
        let (_, value) = fields(&bytes).next().expect("a field").expect("well formed");
        assert_eq!(value.entry(), Ok(("key".into(), "value".into())));
        assert_eq!(Writer::default().number(1, 0).text(2, "").into_bytes(), b"");
        assert_eq!(Writer::default().item(1, b"").into_bytes(), [0x0a, 0]);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in [
            &[0x08][..],
            &[0x08, 0x80],
            &[0x12, 0x05, 0x61],
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02],
            &[0x00, 0x01],
            &[0x0b],
            &[0x0d, 1, 2, 3],
            &[0x09, 1, 2, 3, 4, 5, 6, 7],
            &[0x80, 0x80, 0x80, 0x80, 0x80, 0x01, 0x01],
        ] {
            assert!(all(bytes).is_err(), "{bytes:x?}");
        }
        assert!(Value::Bytes(&[0xff]).text().is_err());
        assert!(Value::Number(1).text().is_err());
        assert!(Value::Bytes(b"").number().is_err());
    }
}
