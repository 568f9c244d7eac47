//! Which lines a process has written: a set that is bounded and without a lock, since a fork may come while one is
//! held.

use core::sync::atomic::{AtomicU64, Ordering};

/// How many different lines a process writes at most. The driver's names are fewer than a thousand.
pub(crate) const MOST: usize = 8192;

/// Lines by their hash. Two lines of one hash count as one: among 8,192 of 64 bits each that is one chance in 10^11.
pub(crate) struct Seen([AtomicU64; MOST]);

impl Seen {
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; MOST])
    }

    /// Adds a line, and returns true if it is new. Never true where no place is left.
    pub fn insert(&self, line: &[u8]) -> bool {
        let hash = hash(line);
        let (before, after) = self.0.split_at(hash as usize % MOST);
        for place in after.iter().chain(before) {
            match place.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) if other == hash => return false,
                Err(_) => {}
            }
        }
        false
    }
}

/// FNV-1a of 64 bits; never 0, which is an empty place.
fn hash(line: &[u8]) -> u64 {
    let hash = line.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_new_once_until_the_set_is_full() {
        static SEEN: Seen = Seen::new();
        let line = |number: usize| number.to_string();
        for number in 0..MOST {
            assert!(SEEN.insert(line(number).as_bytes()), "{number}");
        }
        for number in [0, 7, MOST - 1, MOST, MOST + 1] {
            assert!(!SEEN.insert(line(number).as_bytes()), "{number}");
        }
    }
}
