//! Text in a page: UTF-8, padded with zeros.

use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use crate::error::PageError;
use crate::layout::{TEXT_WORDS, Text};

/// Longest slice id or name in a grant, in bytes of UTF-8.
pub const TEXT_BYTES: usize = TEXT_WORDS * 8;

/// A text from a grant.
#[derive(Clone, Copy)]
pub struct GrantText {
    bytes: [u8; TEXT_BYTES],
    length: usize,
}

impl GrantText {
    pub(crate) fn read(words: &Text) -> Self {
        let mut bytes = [0; TEXT_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
        }
        let length = bytes.iter().position(|&byte| byte == 0).unwrap_or(TEXT_BYTES);
        Self { bytes, length }
    }

    /// The text; as much of it as is UTF-8.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let bytes = &self.bytes[..self.length];
        match core::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => core::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or(""),
        }
    }
}

impl fmt::Debug for GrantText {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(out)
    }
}

pub(crate) fn write(words: &Text, text: &str) -> Result<(), PageError> {
    if text.len() > TEXT_BYTES {
        return Err(PageError::TextTooLong { bytes: text.len() });
    }
    let mut bytes = [0; TEXT_BYTES];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    for (chunk, word) in bytes.chunks_exact(8).zip(words) {
        let mut value = [0; 8];
        value.copy_from_slice(chunk);
        word.store(u64::from_ne_bytes(value), Relaxed);
    }
    Ok(())
}
