//! Random numbers that are the same on every machine.

use crate::Nanos;

/// SplitMix64: small, seedable, good enough for arrivals and kernel lengths.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A stream of its own for every seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        let span = u128::from(high - low) + 1;
        low + ((u128::from(self.bits()) * span) >> 64) as u64
    }

    /// Exponentially distributed with this mean: the gaps of a Poisson process.
    pub fn exponential(&mut self, mean: Nanos) -> Nanos {
        let unit = (self.bits() >> 11) as f64 / (1u64 << 53) as f64;
        (-(1.0 - unit).ln() * mean as f64) as Nanos
    }
}
