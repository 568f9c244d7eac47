//! A bit for each byte of a range of memory: whether it has been written.

use std::ops::Range;

/// Which bytes have been written.
#[derive(Default)]
pub struct Written {
    /// Zeroed memory of the system costs nothing until it is touched, so a large allocation is cheap.
    words: Vec<u64>,
}

impl Written {
    /// Nothing of so many bytes.
    pub fn nothing_of(bytes: u64) -> Written {
        Written {
            words: vec![0; bytes.div_ceil(64) as usize],
        }
    }

    /// These bytes are written now. Those beyond the end are left out.
    pub fn set(&mut self, bytes: Range<u64>) {
        let mut at = bytes.start;
        while at < bytes.end {
            let end = (at / 64 + 1) * 64;
            let mask = mask(at, bytes.end.min(end));
            match self.words.get_mut((at / 64) as usize) {
                Some(word) => *word |= mask,
                None => return,
            }
            at = end;
        }
    }

    /// The first of these bytes that is not written.
    pub fn first_unwritten(&self, bytes: Range<u64>) -> Option<u64> {
        let mut at = bytes.start;
        while at < bytes.end {
            let end = (at / 64 + 1) * 64;
            let mask = mask(at, bytes.end.min(end));
            let missing = mask & !self.words.get((at / 64) as usize)?;
            if missing != 0 {
                return Some(at / 64 * 64 + u64::from(missing.trailing_zeros()));
            }
            at = end;
        }
        None
    }

    /// These bytes are as others are, which begin at `from` in `source`.
    pub fn copy(&mut self, bytes: Range<u64>, source: &Written, from: u64) {
        for n in 0..bytes.end.saturating_sub(bytes.start) {
            let at = bytes.start + n;
            let is_set = source.first_unwritten(from + n..from + n + 1).is_none();
            if let Some(word) = self.words.get_mut((at / 64) as usize) {
                *word = *word & !(1 << (at % 64)) | u64::from(is_set) << (at % 64);
            }
        }
    }

    /// Whether it is of no bytes.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }
}

/// The bits of the bytes `from .. to`, which lie in one word.
fn mask(from: u64, to: u64) -> u64 {
    let count = to - from;
    let ones = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
    ones << (from % 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_told_apart_across_words() {
        let mut written = Written::nothing_of(300);
        assert_eq!(written.first_unwritten(0..4), Some(0));
        written.set(60..200);
        assert_eq!(written.first_unwritten(60..200), None);
        assert_eq!(written.first_unwritten(58..62), Some(58));
        assert_eq!(written.first_unwritten(199..201), Some(200));
        let mut other = Written::nothing_of(100);
        other.set(0..100);
        other.copy(0..10, &written, 55);
        assert_eq!(other.first_unwritten(0..100), Some(0));
        assert_eq!(other.first_unwritten(5..100), None);
    }
}
