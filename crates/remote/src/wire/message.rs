//! A generated call's message as values: read from bytes and written to them.

use super::{Malformed, Reader, Shape, Writer};

/// An argument's value as a message holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Bytes of a value.
    Value(Vec<u8>),
    /// One element, a list or a string; nothing for a null pointer.
    Bytes(Option<Vec<u8>>),
    /// Whether the answer is wanted.
    Wanted(bool),
    /// A handle or an address.
    Word(u64),
    /// Handles; nothing for a null pointer.
    Words(Option<Vec<u64>>),
    /// No byte.
    Nothing,
}

/// Reads the arguments of a call behind its header.
///
/// # Errors
/// The bytes are not such arguments.
pub fn decode(shapes: &[(&str, Shape)], mut body: Reader<'_>) -> Result<Vec<Sent>, Malformed> {
    let sent = shapes
        .iter()
        .map(|(_, shape)| one(*shape, &mut body))
        .collect::<Result<_, _>>()?;
    body.end()?;
    Ok(sent)
}

fn one(shape: Shape, body: &mut Reader<'_>) -> Result<Sent, Malformed> {
    Ok(match shape {
        Shape::Value(size) => Sent::Value(body.bytes(size)?.to_vec()),
        Shape::Optional(size) => Sent::Bytes(body.optional(size)?.map(<[u8]>::to_vec)),
        Shape::List(size) => Sent::Bytes(body.list(size)?.map(<[u8]>::to_vec)),
        Shape::String => Sent::Bytes(body.list(1)?.map(<[u8]>::to_vec)),
        Shape::Wanted => Sent::Wanted(body.flag()?),
        Shape::Handle(_) | Shape::Created(_) | Shape::Address => Sent::Word(body.plain()?),
        Shape::Handles(_) => Sent::Words(body.list(8)?.map(words)),
        Shape::Nothing => Sent::Nothing,
    })
}

fn words(bytes: &[u8]) -> Vec<u64> {
    let (words, _) = bytes.as_chunks();
    words.iter().copied().map(u64::from_le_bytes).collect()
}

/// Writes arguments behind a header. Values of other shapes than the call has make a message that is malformed.
pub fn encode(shapes: &[(&str, Shape)], sent: &[Sent], to: &mut Writer<'_>) {
    for ((_, shape), sent) in shapes.iter().zip(sent) {
        match (sent, shape) {
            (Sent::Value(bytes), _) => to.bytes(bytes),
            (Sent::Bytes(bytes), Shape::Optional(_)) => {
                to.flag(bytes.is_some());
                to.bytes(bytes.as_deref().unwrap_or_default());
            }
            (Sent::Bytes(bytes), Shape::List(size)) => {
                to.count(bytes.as_ref().map(|bytes| bytes.len() / (*size).max(1)));
                to.bytes(bytes.as_deref().unwrap_or_default());
            }
            (Sent::Bytes(bytes), _) => {
                to.count(bytes.as_ref().map(Vec::len));
                to.bytes(bytes.as_deref().unwrap_or_default());
            }
            (Sent::Wanted(wanted), _) => to.flag(*wanted),
            (Sent::Word(word), _) => to.plain(*word),
            (Sent::Words(words), _) => {
                to.count(words.as_ref().map(Vec::len));
                for word in words.iter().flatten() {
                    to.plain(*word);
                }
            }
            (Sent::Nothing, _) => {}
        }
    }
}
