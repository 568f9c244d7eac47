//! The identity of an allocation in all processes of a slice.

use core::sync::atomic::{AtomicU64, Ordering};

use divvy_ledger::shared::{HOLDER_BITS, SLOT_BITS};

const KEY_SHIFT: u32 = HOLDER_BITS + SLOT_BITS;
pub(crate) const HOLDERS: u64 = (1 << HOLDER_BITS) - 1;
/// How many entries of the table are searched for a key.
const PROBES: usize = 64;

/// The identity of an allocation in all processes of a slice; never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key(u64);

impl Key {
    /// The key of the object that these bytes identify.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        // FNV-1a with a final mix, since the top bits decide.
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self((mixed >> KEY_SHIFT).max(1))
    }

    /// The key of a file, by its device and inode.
    #[must_use]
    pub fn of_file(device: u64, inode: u64) -> Self {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&device.to_ne_bytes());
        name[8..].copy_from_slice(&inode.to_ne_bytes());
        Self::of(&name)
    }

    /// The key of an allocation of which only the size is known.
    #[must_use]
    pub fn of_size(bytes: u64) -> Self {
        let mut name = *b"size\0\0\0\0\0\0\0\0";
        name[4..].copy_from_slice(&bytes.to_ne_bytes());
        Self::of(&name)
    }

    /// The ledger's word: process slot `slot` is charged, and so many processes hold the allocation.
    pub(crate) fn word(self, slot: usize, holders: u64) -> u64 {
        (self.0 << SLOT_BITS | slot as u64) << HOLDER_BITS | holders & HOLDERS
    }

    pub(crate) fn is_of(self, word: u64) -> bool {
        word >> KEY_SHIFT == self.0
    }

    /// The entries of the ledger's table where it may be.
    pub(crate) fn places(self, table: &[AtomicU64]) -> impl Iterator<Item = usize> + use<> {
        let (first, count) = (self.0 as usize, table.len());
        (0..PROBES).map(move |probe| (first + probe) % count)
    }

    /// Replaces a word by the result of `change`, as long as it is of this key. Returns the word before.
    pub(crate) fn update(self, word: &AtomicU64, change: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
            if self.is_of(now) { change(now) } else { None }
        })
        .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_ledger::shared::owner_of;

    #[test]
    fn words_keep_key_owner_and_holders() {
        for bytes in [&b"a"[..], b"b", b"", &[0; 64], &[255; 64]] {
            let key = Key::of(bytes);
            let word = key.word(2047, 3);
            assert_ne!(word, 0);
            assert!(key.is_of(word));
            assert_eq!((owner_of(word), word & HOLDERS), (2047, 3));
            assert!(!Key::of(b"another").is_of(word));
        }
        assert_ne!(Key::of_size(1 << 20), Key::of_size(2 << 20));
    }
}
