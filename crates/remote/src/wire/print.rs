//! A message as one line of text, for logs.

use core::fmt;

use super::message::{self, Sent};
use super::{Header, Shape, Sort, by_hand, shapes};
use crate::handle::Id;

/// Prints a message: `7/0 cuMemAlloc_v2(dptr=?, bytesize=4096)`, with the message's number and its place among those of all threads.
///
/// Any bytes print as something. A string prints as a literal of Rust, so on one line, and a list by its length.
#[derive(Clone, Copy, Debug)]
pub struct Printed<'a>(pub &'a [u8]);

impl fmt::Display for Printed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok((header, body)) = Header::read(self.0) else {
            return write!(f, "{} bytes that are no message", self.0.len());
        };
        write!(f, "{}/{} ", header.sequence, header.order)?;
        let rest = body.rest().len();
        let generated = shapes().iter().find(|(_, id, _)| *id == header.id);
        let hand = by_hand::ALL.iter().find(|(id, _)| *id == header.id);
        match header.sort {
            Sort::Hello => return f.write_str("hello"),
            Sort::Answer => write!(f, "answer of ")?,
            Sort::Call | Sort::Submit => {}
        }
        match (generated, hand) {
            (Some((symbol, _, arguments)), _) if header.sort != Sort::Answer => {
                match message::decode(arguments, body) {
                    Ok(sent) => call(f, symbol.name(), arguments, &sent),
                    Err(_) => write!(f, "{symbol} with arguments that are not its"),
                }
            }
            (Some((symbol, ..)), _) => write!(f, "{symbol}, {rest} bytes"),
            (None, Some((_, text))) => write!(f, "{text}, {rest} bytes"),
            (None, None) => write!(f, "unknown call {:#010x}, {rest} bytes", header.id),
        }
    }
}

fn call(f: &mut fmt::Formatter<'_>, name: &str, shapes: &[(&str, Shape)], sent: &[Sent]) -> fmt::Result {
    write!(f, "{name}(")?;
    for (index, ((argument, shape), sent)) in shapes.iter().zip(sent).enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        write!(f, "{comma}{argument}=")?;
        match (sent, shape) {
            (Sent::Value(bytes), _) if bytes.len() <= 8 => {
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                write!(f, "{}", u64::from_le_bytes(word))?;
            }
            (Sent::Bytes(None) | Sent::Words(None) | Sent::Nothing, _) => f.write_str("null")?,
            (Sent::Bytes(Some(bytes)), Shape::String) => write!(f, "{:?}", String::from_utf8_lossy(bytes))?,
            (Sent::Bytes(Some(bytes)), Shape::List(size)) => write!(f, "[{}]", bytes.len() / (*size).max(1))?,
            (Sent::Value(bytes) | Sent::Bytes(Some(bytes)), _) => write!(f, "{{{} bytes}}", bytes.len())?,
            (Sent::Wanted(wanted), _) => f.write_str(if *wanted { "?" } else { "null" })?,
            (Sent::Word(word), _) => match Id::from_bits(*word) {
                Some(id) => write!(f, "{id}")?,
                None => write!(f, "{word:#x}")?,
            },
            (Sent::Words(Some(words)), _) => write!(f, "[{}]", words.len())?,
        }
    }
    f.write_str(")")
}
