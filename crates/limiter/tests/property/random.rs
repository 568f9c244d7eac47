//! The random numbers of a thread.

use crate::{MIB, PAGE};

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    /// Mostly some pages, often less than one, sometimes about one.
    pub fn bytes(&mut self) -> u64 {
        match self.below(10) {
            0..3 => 1 + self.below(100_000),
            3 | 4 => 1 + self.below(PAGE / 2),
            5 => PAGE * self.below(3) + PAGE / 2 * self.below(2) + 1 + self.below(1024),
            _ => MIB + 1 + self.below(48 * MIB),
        }
    }
}
