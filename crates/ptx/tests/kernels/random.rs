//! Repeatable random inputs, without a generator from outside.

/// A 64-bit mixing sequence (Steele, Lea and Flood's splitmix), good enough to fill arrays.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// From 0 up to but without `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.word() % end
    }

    /// From -1 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    pub fn floats(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| self.unit() as f32 * scale).collect()
    }
}

/// Fails unless each of `got` lies within `relative` of `want` (or `absolute`, near zero).
pub fn assert_close(what: &str, got: &[f64], want: &[f64], relative: f64, absolute: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (at, (got, want)) in got.iter().zip(want).enumerate() {
        let off = (got - want).abs();
        assert!(
            got == want || off <= want.abs() * relative + absolute,
            "{what}[{at}]: got {got}, want {want}"
        );
    }
}

pub fn widened(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}
