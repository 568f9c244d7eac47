//! Memory for the arguments of one call: taken piecewise, all given back when the call is answered.
//!
//! It is allocated once. A length that a message claims can use it up, and never make it grow.

use super::Stop;

/// The granularity of a part: the alignment that every structure of the interface is content with.
const ALIGN: usize = 16;

/// The memory.
pub struct Arena {
    words: Box<[u128]>,
    used: usize,
}

/// A part of it, or a null pointer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spot {
    at: usize,
    bytes: usize,
    present: bool,
}

impl Spot {
    /// A null pointer.
    pub const NULL: Spot = Spot {
        at: 0,
        bytes: 0,
        present: false,
    };

    /// Whether it is no null pointer.
    pub fn is_present(&self) -> bool {
        self.present
    }

    /// Bytes of it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it begins, as the driver below is told. `base` is that of the arena that it is of.
    pub fn pointer<T>(&self, base: *mut u8) -> *mut T {
        match self.present {
            // A spot lies in its arena, so the address does not wrap.
            true => base.wrapping_add(self.at).cast(),
            false => std::ptr::null_mut(),
        }
    }
}

impl Arena {
    /// An arena of so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self {
            words: vec![0; bytes.div_ceil(ALIGN)].into_boxed_slice(),
            used: 0,
        }
    }

    /// Gives everything back.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// So many bytes of zeros.
    ///
    /// # Errors
    /// There are not as many left: the call asks for more than a message can carry.
    pub fn zeros(&mut self, bytes: u64) -> Result<Spot, Stop> {
        let most = self.words.len() * ALIGN;
        let end = usize::try_from(bytes)
            .ok()
            .and_then(|bytes| self.used.checked_add(bytes));
        let Some(end) = end.filter(|end| *end <= most) else {
            return Err(Stop::TOO_LARGE);
        };
        let at = std::mem::replace(&mut self.used, end.next_multiple_of(ALIGN));
        let spot = Spot {
            at,
            bytes: end - at,
            present: true,
        };
        self.bytes_mut(spot).fill(0);
        Ok(spot)
    }

    /// These bytes, or a null pointer.
    ///
    /// # Errors
    /// There is no room for them.
    pub fn keep(&mut self, bytes: Option<&[u8]>) -> Result<Spot, Stop> {
        let Some(bytes) = bytes else {
            return Ok(Spot::NULL);
        };
        let spot = self.zeros(bytes.len() as u64)?;
        self.bytes_mut(spot).copy_from_slice(bytes);
        Ok(spot)
    }

    /// What a part holds.
    pub fn read(&self, spot: Spot) -> &[u8] {
        // SAFETY: a box of numbers is as many initialised bytes, borrowed as this arena is.
        let all =
            unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast::<u8>(), self.words.len() * ALIGN) };
        all.get(spot.at..spot.at + spot.bytes).unwrap_or_default()
    }

    /// The same, to write.
    pub fn bytes_mut(&mut self, spot: Spot) -> &mut [u8] {
        let length = self.words.len() * ALIGN;
        // SAFETY: as above, and borrowed mutably as this arena is.
        let all = unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast::<u8>(), length) };
        all.get_mut(spot.at..spot.at + spot.bytes).unwrap_or_default()
    }

    /// The first word of a part, in which the driver below wrote a handle, an address or a count.
    pub fn word(&self, spot: Spot) -> u64 {
        let bytes = self.read(spot);
        let mut word = [0; 8];
        let length = bytes.len().min(8);
        word[..length].copy_from_slice(&bytes[..length]);
        u64::from_le_bytes(word)
    }

    /// Where the memory begins, for the driver below.
    pub fn base(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_zero_and_aligned_and_do_not_overlap() {
        let mut arena = Arena::new(64);
        let first = arena.keep(Some(&[7; 3])).expect("room");
        let second = arena.zeros(20).expect("room");
        assert_eq!(arena.read(first), [7; 3]);
        assert_eq!(arena.read(second), [0; 20]);
        let base = arena.base();
        assert_eq!(second.pointer::<u8>(base).addr() % ALIGN, 0);
        assert_eq!(arena.zeros(17), Err(Stop::TOO_LARGE));
        assert_eq!(arena.zeros(u64::MAX), Err(Stop::TOO_LARGE));
        assert!(arena.zeros(16).is_ok());
        arena.clear();
        let again = arena.zeros(3).expect("room");
        assert_eq!(arena.read(again), [0; 3], "what a call left is gone");
        assert!(Spot::NULL.pointer::<u8>(base).is_null());
    }
}
