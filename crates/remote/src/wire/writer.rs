//! Writing a message into memory of the caller.

use divvy_abi::Plain;

use super::reader::ABSENT;

/// The message is longer than the memory for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Writes one part after the other. What does not fit is left out, and [`Writer::finish`] says so.
#[derive(Debug)]
pub struct Writer<'a> {
    memory: &'a mut [u8],
    at: usize,
    full: bool,
}

impl<'a> Writer<'a> {
    /// Writes from the beginning of `memory`.
    pub fn new(memory: &'a mut [u8]) -> Self {
        Self {
            memory,
            at: 0,
            full: false,
        }
    }

    /// Room for the next `count` bytes, whatever they held; nothing where it does not fit.
    pub fn room(&mut self, count: usize) -> Option<&mut [u8]> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.memory.len());
        let Some(end) = end.filter(|_| !self.full) else {
            self.full = true;
            return None;
        };
        let start = std::mem::replace(&mut self.at, end);
        Some(&mut self.memory[start..end])
    }

    /// Bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        if let Some(room) = self.room(bytes.len()) {
            room.copy_from_slice(bytes);
        }
    }

    /// Bytes of the program's memory.
    ///
    /// # Safety
    /// `count` bytes from `from` may be read.
    pub unsafe fn copy(&mut self, from: *const u8, count: usize) {
        if let Some(room) = self.room(count) {
            // SAFETY: the caller vouches for the source, `room` has as many bytes, and the program's memory is not ours.
            unsafe { std::ptr::copy_nonoverlapping(from, room.as_mut_ptr(), count) };
        }
    }

    /// A number or a structure.
    pub fn plain<T: Plain>(&mut self, value: T) {
        // SAFETY: the value is here. Bytes between its members are copied as they are and mean nothing.
        unsafe { self.copy((&raw const value).cast(), size_of::<T>()) };
    }

    /// Whether something is there.
    pub fn flag(&mut self, present: bool) {
        self.plain(u8::from(present));
    }

    /// The beginning of a list of so many elements; `None` for a null pointer.
    pub fn count(&mut self, count: Option<usize>) {
        let number = count.map_or(Some(ABSENT), |count| {
            u32::try_from(count).ok().filter(|n| *n != ABSENT)
        });
        match number {
            Some(number) => self.plain(number),
            None => self.full = true,
        }
    }

    /// Bytes that were written.
    pub fn len(&self) -> usize {
        self.at
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.at == 0
    }

    /// Bytes that still fit.
    pub fn left(&self) -> usize {
        self.memory.len() - self.at
    }

    /// Forgets what was written behind the first `length` bytes, also that it did not fit.
    pub fn truncate(&mut self, length: usize) {
        self.at = self.at.min(length);
        self.full = false;
    }

    /// The last bytes that were written; none where the message is full.
    pub(crate) fn last(&mut self, bytes: usize) -> &mut [u8] {
        let start = self.at.saturating_sub(bytes);
        match self.full {
            true => &mut [],
            false => &mut self.memory[start..self.at],
        }
    }

    /// The length of the message.
    ///
    /// # Errors
    /// It did not fit.
    pub fn finish(self) -> Result<usize, Full> {
        if self.full { Err(Full) } else { Ok(self.at) }
    }
}
