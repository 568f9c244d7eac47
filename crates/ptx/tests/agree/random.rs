//! Repeatable random numbers, and the bits of numbers that programs begin with.

use super::program::COUNT;

/// Repeatable random numbers (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 33) % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len() as u64) as usize]
    }

    /// A register of a class: `r` 32 bits, `d` 64, `f` f32, `g` f64, `p` a predicate.
    pub fn register(&mut self, class: char) -> String {
        format!("%{class}{}", self.below(COUNT))
    }

    /// A register or now and then a literal.
    pub fn source(&mut self, class: char) -> String {
        match class {
            'r' if self.one_in(5) => format!("{:#x}", self.next() as u32),
            'd' if self.one_in(5) => format!("{:#x}", self.next()),
            'f' if self.one_in(5) => format!("0f{:08x}", number32(self)),
            'g' if self.one_in(5) => format!("0d{:016x}", number64(self)),
            _ => self.register(class),
        }
    }
}

/// Bits of an f32: any, a NaN with a payload, a subnormal, an infinity, a zero, or something near one.
pub fn number32(random: &mut Random) -> u32 {
    let bits = random.next() as u32;
    match random.below(8) {
        0 => bits,
        1 => bits | 0x7f80_0000,
        2 => bits & 0x807f_ffff,
        3 => bits & 0x8000_0000 | 0x7f80_0000,
        4 => bits & 0x8000_0000,
        _ => bits & 0x83ff_ffff | 0x3c00_0000,
    }
}

pub fn number64(random: &mut Random) -> u64 {
    let bits = random.next();
    match random.below(8) {
        0 => bits,
        1 => bits | 0x7ff0_0000_0000_0000,
        2 => bits & 0x800f_ffff_ffff_ffff,
        3 => bits & 0x8000_0000_0000_0000 | 0x7ff0_0000_0000_0000,
        4 => bits & 0x8000_0000_0000_0000,
        _ => bits & 0x80ff_ffff_ffff_ffff | 0x3f00_0000_0000_0000,
    }
}
