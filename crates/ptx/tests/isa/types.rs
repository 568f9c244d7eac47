//! The operand types of PTX: how each is declared, loaded, stored, and which values are worth trying.

/// A fundamental type, as an instruction's suffix names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ty {
    Pred,
    U8,
    S8,
    B16,
    U16,
    S16,
    B32,
    U32,
    S32,
    B64,
    U64,
    S64,
    F16,
    BF16,
    F32,
    F64,
}

use Ty::*;

impl Ty {
    /// The suffix without its dot.
    pub fn name(self) -> &'static str {
        match self {
            Pred => "pred",
            U8 => "u8",
            S8 => "s8",
            B16 => "b16",
            U16 => "u16",
            S16 => "s16",
            B32 => "b32",
            U32 => "u32",
            S32 => "s32",
            B64 => "b64",
            U64 => "u64",
            S64 => "s64",
            F16 => "f16",
            BF16 => "bf16",
            F32 => "f32",
            F64 => "f64",
        }
    }

    /// Width in memory, in bits. A predicate travels as a word.
    pub fn bits(self) -> u32 {
        match self {
            U8 | S8 => 8,
            B16 | U16 | S16 | F16 | BF16 => 16,
            Pred | B32 | U32 | S32 | F32 => 32,
            B64 | U64 | S64 | F64 => 64,
        }
    }

    /// All ones over the width.
    pub fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    pub fn signed(self) -> bool {
        matches!(self, S8 | S16 | S32 | S64)
    }

    pub fn float(self) -> bool {
        matches!(self, F16 | BF16 | F32 | F64)
    }

    /// The type of the register that holds it: the narrow ones live in 16 bits.
    pub fn register(self) -> &'static str {
        match self {
            U8 | S8 | F16 | BF16 => "b16",
            other => other.name(),
        }
    }

    /// The suffix of the load or store that moves it.
    pub fn memory(self) -> &'static str {
        match self {
            Pred => "u32",
            F16 | BF16 => "b16",
            other => other.name(),
        }
    }

    /// The value as a signed or unsigned number.
    pub fn number(self, bits: u64) -> i128 {
        let bits = bits & self.mask();
        if self.signed() {
            let shift = 64 - self.bits();
            i128::from((bits << shift) as i64 >> shift)
        } else {
            i128::from(bits)
        }
    }

    /// Smallest and largest integer of the type.
    pub fn span(self) -> (i128, i128) {
        if self.signed() {
            (-(1 << (self.bits() - 1)), (1 << (self.bits() - 1)) - 1)
        } else {
            (0, (1 << self.bits()) - 1)
        }
    }

    /// A literal of this value in an instruction.
    pub fn literal(self, bits: u64) -> String {
        match self {
            F32 => format!("0f{:08X}", bits as u32),
            F64 => format!("0d{bits:016X}"),
            Pred => String::from(if bits & 1 == 1 { "1" } else { "0" }),
            _ if self.signed() => self.number(bits).to_string(),
            _ => format!("0x{:x}", bits & self.mask()),
        }
    }

    /// Bit patterns where rules change: limits, powers of two, infinities, NaN, denormals, halfway cases.
    pub fn special(self) -> Vec<u64> {
        match self {
            Pred => vec![0, 1],
            F16 => vec![
                0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x3c00, 0xbc00, 0x3800, 0x3e00, 0x4248, 0x7bff, 0xfbff,
                0x7c00, 0xfc00, 0x7e00, 0x7c01,
            ],
            BF16 => vec![
                0, 0x8000, 1, 0x8001, 0x7f, 0x80, 0x3f80, 0xbf80, 0x3f00, 0x4049, 0x7f7f, 0xff7f, 0x7f80,
                0xff80, 0x7fc0, 0x7f81,
            ],
            F32 => specials_f32(),
            F64 => specials_f64(),
            _ => {
                let bits = self.bits();
                let top = 1u64 << (bits - 1);
                let mut values = vec![0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 0x7f, 0x80, 0xff];
                values.extend([top - 1, top, top + 1, u64::MAX, u64::MAX - 1, u64::MAX - 31]);
                values.extend([
                    1 << (bits / 2),
                    (1 << (bits / 2)) - 1,
                    0x0123_4567_89ab_cdef,
                    0xaaaa_aaaa_aaaa_aaaa,
                ]);
                values.iter_mut().for_each(|value| *value &= self.mask());
                values.sort_unstable();
                values.dedup();
                values
            }
        }
    }
}

fn specials_f32() -> Vec<u64> {
    let values: [f32; 22] = [
        0.0,
        1.0,
        0.5,
        1.5,
        2.5,
        3.5,
        0.1,
        3.0,
        255.5,
        127.5,
        65535.5,
        32767.5,
        8388607.5,
        16777216.0,
        2147483648.0,
        4294967296.0,
        9.223372e18,
        1.8446744e19,
        1e-20,
        1e20,
        f32::MAX,
        f32::MIN_POSITIVE,
    ];
    let mut bits: Vec<u64> = values
        .iter()
        .flat_map(|v| [v.to_bits(), (-v).to_bits()])
        .map(u64::from)
        .collect();
    // Smallest and largest denormals, infinities, quiet and signalling NaN, neighbours of one.
    bits.extend([
        1,
        0x8000_0001,
        0x007f_ffff,
        0x807f_ffff,
        0x0040_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0xffc1_2345,
        0x7f80_0001,
        0x3f7f_ffff,
        0x3f80_0001,
    ]);
    bits
}

fn specials_f64() -> Vec<u64> {
    let values: [f64; 22] = [
        0.0,
        1.0,
        0.5,
        1.5,
        2.5,
        0.1,
        3.0,
        255.5,
        65535.5,
        2147483647.5,
        2147483648.0,
        4294967295.5,
        4503599627370495.5,
        9007199254740992.0,
        9.223372036854776e18,
        1.8446744073709552e19,
        1e-40,
        3.5e38,
        1e-200,
        1e200,
        f64::MAX,
        f64::MIN_POSITIVE,
    ];
    let mut bits: Vec<u64> = values
        .iter()
        .flat_map(|v| [v.to_bits(), (-v).to_bits()])
        .collect();
    bits.extend([
        1,
        0x8000_0000_0000_0001,
        0x000f_ffff_ffff_ffff,
        0x7ff0_0000_0000_0000,
        0xfff0_0000_0000_0000,
        0x7ff8_0000_0000_0000,
        0xfff8_1234_5678_9abc,
        0x7ff0_0000_0000_0001,
        0x3fef_ffff_ffff_ffff,
        0x3ff0_0000_0000_0001,
        // Halfway between two singles.
        0x3ff0_0000_1000_0000,
        0x3ff0_0000_3000_0000,
    ]);
    bits
}
