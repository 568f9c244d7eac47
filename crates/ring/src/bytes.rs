//! The bytes of a ring, which the other side may write at any moment.
//!
//! All accesses are relaxed atomic loads and stores of whole words. So a racing writer is no data race, and what a load
//! returns is whatever bytes were there. Positions are taken modulo the ring's size: no value of them leads outside.

use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// The bytes of one ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedBytes {
    first: NonNull<AtomicU64>,
    /// Bytes - 1, a power of two less one.
    mask: u32,
}

// SAFETY: it is only accessed through atomics.
unsafe impl Send for SharedBytes {}

impl SharedBytes {
    /// `bytes` is a power of two and at least a word.
    ///
    /// # Safety
    /// The `bytes` from `first` on, which is aligned to a word, stay mapped while this value is used.
    pub unsafe fn new(first: NonNull<u8>, bytes: u32) -> Self {
        assert!(bytes.is_power_of_two() && bytes as usize >= WORD);
        Self {
            first: first.cast(),
            mask: bytes - 1,
        }
    }

    /// The word at a position.
    #[inline]
    pub fn word(&self, at: u32) -> &AtomicU64 {
        let index = (at & self.mask) as usize / WORD;
        // SAFETY: the masked position is inside the ring, whose size is a multiple of a word.
        unsafe { self.first.add(index).as_ref() }
    }

    /// The words from a position on, in two runs: up to the ring's end, and from its start.
    #[inline]
    fn runs(&self, at: u32, count: usize) -> [&[AtomicU64]; 2] {
        let words = (self.mask as usize + 1) / WORD;
        assert!(count <= words);
        let start = (at & self.mask) as usize / WORD;
        let one = count.min(words - start);
        // SAFETY: `start + one` is at most `words`, and `count - one` at most `start`, as `count` is at most `words`.
        // So both ranges are inside the ring. Any bytes are valid atomics.
        unsafe {
            [
                core::slice::from_raw_parts(self.first.add(start).as_ptr(), one),
                core::slice::from_raw_parts(self.first.as_ptr(), count - one),
            ]
        }
    }

    /// Writes bytes from a position on, and zeros up to the next word.
    #[inline]
    pub fn write(&self, at: u32, from: &[u8]) {
        let (whole, rest) = from.as_chunks::<WORD>();
        let [one, two] = self.runs(at, whole.len());
        let (left, right) = whole.split_at(one.len());
        store(one, left);
        store(two, right);
        if !rest.is_empty() {
            let mut last = [0; WORD];
            last[..rest.len()].copy_from_slice(rest);
            let at = at.wrapping_add((whole.len() * WORD) as u32);
            self.word(at).store(u64::from_ne_bytes(last), Relaxed);
        }
    }

    /// Appends a copy of the `count` bytes from a position on. The ring has as many.
    #[inline]
    pub fn read(&self, at: u32, count: usize, onto: &mut Vec<u8>) {
        let whole = count / WORD;
        let [one, two] = self.runs(at, whole);
        onto.reserve(count);
        append(one, onto);
        append(two, onto);
        let rest = count % WORD;
        if rest != 0 {
            let last = self.word(at.wrapping_add((whole * WORD) as u32)).load(Relaxed);
            onto.extend_from_slice(&last.to_ne_bytes()[..rest]);
        }
    }
}

#[inline]
fn store(into: &[AtomicU64], from: &[[u8; WORD]]) {
    for (word, bytes) in into.iter().zip(from) {
        word.store(u64::from_ne_bytes(*bytes), Relaxed);
    }
}

#[inline]
fn append(from: &[AtomicU64], onto: &mut Vec<u8>) {
    let (bytes, length) = (from.len() * WORD, onto.len());
    let spare = &mut onto.spare_capacity_mut()[..bytes];
    let (chunks, _) = spare.as_chunks_mut::<WORD>();
    for (into, word) in chunks.iter_mut().zip(from) {
        *into = word.load(Relaxed).to_ne_bytes().map(core::mem::MaybeUninit::new);
    }
    // SAFETY: the slice above proves the capacity, and the loop has written all of it: it has as many chunks as `from`
    // has words.
    unsafe { onto.set_len(length + bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_wrap_at_the_end_and_touch_no_others() {
        let memory: Vec<AtomicU64> = (0..10).map(|_| AtomicU64::new(u64::MAX)).collect();
        let first = NonNull::from(&memory[1]).cast();
        // SAFETY: words 1 to 8 of the vector, which outlives `ring`.
        let ring = unsafe { SharedBytes::new(first, 64) };
        let message: Vec<u8> = (1..=27).collect();
        for at in (0..256_u32).step_by(8).chain([u32::MAX - 7]) {
            ring.write(at, &message);
            let mut copy = vec![99];
            ring.read(at, message.len(), &mut copy);
            assert_eq!((copy[0], &copy[1..]), (99, &message[..]), "at {at}");
        }
        for word in [&memory[0], &memory[9]] {
            assert_eq!(word.load(Relaxed), u64::MAX);
        }
    }

    #[test]
    #[should_panic(expected = "count <= words")]
    fn more_than_the_ring_is_refused() {
        let memory: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
        // SAFETY: the vector outlives `ring`.
        let ring = unsafe { SharedBytes::new(NonNull::from(&memory[0]).cast(), 64) };
        ring.read(0, 72, &mut Vec::new());
    }
}
