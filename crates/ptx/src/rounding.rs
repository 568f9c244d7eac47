//! Binary floating point by integers, in every format and rounding mode. Slow and exact: for directed rounding, half
//! precision and conversions. Rounding to nearest in f32 and f64 is the processor's.

/// IEEE 754 rounding directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// To nearest, ties to even: `.rn`.
    Nearest,
    /// To nearest, ties away from zero: `.rna`.
    NearestAway,
    /// Towards zero: `.rz`.
    Zero,
    /// Towards minus infinity: `.rm`.
    Down,
    /// Towards plus infinity: `.rp`.
    Up,
}

/// A binary interchange format: bits of precision, and the exponent of its largest binade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    precision: u32,
    max_exponent: i32,
}

pub(crate) const F16: Format = Format {
    precision: 11,
    max_exponent: 15,
};
pub(crate) const BF16: Format = Format {
    precision: 8,
    max_exponent: 127,
};
pub(crate) const F32: Format = Format {
    precision: 24,
    max_exponent: 127,
};
pub(crate) const F64: Format = Format {
    precision: 53,
    max_exponent: 1023,
};

impl Format {
    fn exponent_bits(self) -> u32 {
        (self.max_exponent as u32 + 1).trailing_zeros() + 1
    }

    fn sign_bit(self) -> u32 {
        self.precision - 1 + self.exponent_bits()
    }

    fn infinity(self, negative: bool) -> u64 {
        ((1 << self.exponent_bits()) - 1) << (self.precision - 1) | u64::from(negative) << self.sign_bit()
    }

    /// The canonical NaN of NVIDIA's hardware: every bit but the sign.
    pub fn nan(self) -> u64 {
        if self == F64 {
            0x7ff8_0000_0000_0000
        } else {
            (1 << self.sign_bit()) - 1
        }
    }

    fn zero(self, negative: bool) -> u64 {
        u64::from(negative) << self.sign_bit()
    }
}

/// A value taken apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Parts {
    Nan,
    Infinity {
        negative: bool,
    },
    Zero {
        negative: bool,
    },
    /// `significand * 2^exponent`, not zero.
    Finite {
        negative: bool,
        significand: u64,
        exponent: i32,
    },
}

pub(crate) fn unpack(bits: u64, format: Format) -> Parts {
    let negative = bits >> format.sign_bit() & 1 != 0;
    let fraction = bits & ((1 << (format.precision - 1)) - 1);
    let biased = bits >> (format.precision - 1) & ((1 << format.exponent_bits()) - 1);
    let least = 2 - format.max_exponent - format.precision as i32;
    match biased {
        0 if fraction == 0 => Parts::Zero { negative },
        0 => Parts::Finite {
            negative,
            significand: fraction,
            exponent: least,
        },
        b if b == (1 << format.exponent_bits()) - 1 => {
            if fraction == 0 {
                Parts::Infinity { negative }
            } else {
                Parts::Nan
            }
        }
        b => Parts::Finite {
            negative,
            significand: fraction | 1 << (format.precision - 1),
            exponent: b as i32 - 1 + least,
        },
    }
}

/// Rounds `(significand + t) * 2^exponent` to the format, where `t` in (0, 1) stands for what `sticky` says is below.
/// The significand is not zero.
pub(crate) fn pack(
    negative: bool,
    significand: u128,
    exponent: i32,
    sticky: bool,
    format: Format,
    mode: Mode,
) -> u64 {
    let precision = format.precision as i32;
    let top = 127 - significand.leading_zeros() as i32;
    let least = 2 - format.max_exponent - precision;
    let mut unit = (exponent + top - (precision - 1)).max(least);
    let shift = unit - exponent;
    let (mut kept, half, below) = if shift <= 0 {
        (significand << -shift, false, sticky)
    } else if shift > 128 {
        (0, false, true)
    } else {
        let kept = if shift == 128 { 0 } else { significand >> shift };
        let half = significand >> (shift - 1) & 1 != 0;
        let below = significand & ((1u128 << (shift - 1)) - 1) != 0;
        (kept, half, below || sticky)
    };
    let up = match mode {
        Mode::Nearest => half && (below || kept & 1 != 0),
        Mode::NearestAway => half,
        Mode::Zero => false,
        Mode::Down => negative && (half || below),
        Mode::Up => !negative && (half || below),
    };
    if up {
        kept += 1;
        if kept == 1 << precision {
            kept >>= 1;
            unit += 1;
        }
    }
    let sign = format.zero(negative);
    if kept >> (precision - 1) != 0 && unit + precision - 1 > format.max_exponent {
        let to_infinity = match mode {
            Mode::Nearest | Mode::NearestAway => true,
            Mode::Zero => false,
            Mode::Down => negative,
            Mode::Up => !negative,
        };
        return if to_infinity {
            format.infinity(negative)
        } else {
            format.infinity(negative) - 1
        };
    }
    if kept >> (precision - 1) == 0 {
        return sign | kept as u64;
    }
    let biased = (unit - least + 1) as u64;
    sign | biased << (precision - 1) | kept as u64 & ((1 << (precision - 1)) - 1)
}

/// `a * b + c`, rounded once.
pub(crate) fn fma(a: u64, b: u64, c: u64, format: Format, mode: Mode) -> u64 {
    use Parts::{Finite, Infinity, Nan, Zero};
    let (a, b, addend) = (unpack(a, format), unpack(b, format), unpack(c, format));
    let sign = |p: Parts| match p {
        Nan => false,
        Infinity { negative } | Zero { negative } | Finite { negative, .. } => negative,
    };
    let product_negative = sign(a) != sign(b);
    match (a, b, addend) {
        (Nan, _, _)
        | (_, Nan, _)
        | (_, _, Nan)
        | (Infinity { .. }, Zero { .. }, _)
        | (Zero { .. }, Infinity { .. }, _) => format.nan(),
        (Infinity { .. }, _, Infinity { negative }) | (_, Infinity { .. }, Infinity { negative })
            if negative != product_negative =>
        {
            format.nan()
        }
        (Infinity { .. }, _, _) | (_, Infinity { .. }, _) => format.infinity(product_negative),
        (_, _, Infinity { negative }) => format.infinity(negative),
        (Zero { .. }, _, Zero { negative }) | (_, Zero { .. }, Zero { negative }) => {
            format.zero(if negative == product_negative {
                negative
            } else {
                mode == Mode::Down
            })
        }
        (Zero { .. }, _, _) | (_, Zero { .. }, _) => c,
        (
            Finite {
                significand: m,
                exponent: p,
                ..
            },
            Finite {
                significand: n,
                exponent: q,
                ..
            },
            Zero { .. },
        ) => pack(
            product_negative,
            u128::from(m) * u128::from(n),
            p + q,
            false,
            format,
            mode,
        ),
        (
            Finite {
                significand: m,
                exponent: p,
                ..
            },
            Finite {
                significand: n,
                exponent: q,
                ..
            },
            Finite {
                negative,
                significand,
                exponent,
            },
        ) => {
            // Both with their top bit at 125: room for a carry, and the smaller one loses nothing unless it is far
            // below, where a sticky bit says all that rounding needs.
            let normal = |m: u128, e: i32| {
                let by = m.leading_zeros() as i32 - 2;
                (m << by, e - by)
            };
            let product = normal(u128::from(m) * u128::from(n), p + q);
            let third = normal(u128::from(significand), exponent);
            let ((big, e, big_negative), (small, small_e, small_negative)) =
                if (product.1, product.0) >= (third.1, third.0) {
                    (
                        (product.0, product.1, product_negative),
                        (third.0, third.1, negative),
                    )
                } else {
                    (
                        (third.0, third.1, negative),
                        (product.0, product.1, product_negative),
                    )
                };
            let by = e - small_e;
            let (shifted, lost) = match by {
                0..=127 => (small >> by, small & ((1u128 << by) - 1) != 0),
                _ => (0, true),
            };
            if big_negative == small_negative {
                return pack(big_negative, big + shifted, e, lost, format, mode);
            }
            let difference = big - shifted - u128::from(lost);
            if difference == 0 && !lost {
                return format.zero(mode == Mode::Down);
            }
            pack(big_negative, difference, e, lost, format, mode)
        }
    }
}

/// The number one.
fn one(format: Format) -> u64 {
    (format.max_exponent as u64) << (format.precision - 1)
}

pub(crate) fn add(a: u64, b: u64, format: Format, mode: Mode) -> u64 {
    fma(a, one(format), b, format, mode)
}

pub(crate) fn mul(a: u64, b: u64, format: Format, mode: Mode) -> u64 {
    // Adding a zero of the product's sign changes nothing.
    let sign = (a ^ b) & format.zero(true);
    fma(a, b, sign, format, mode)
}

pub(crate) fn div(a: u64, b: u64, format: Format, mode: Mode) -> u64 {
    use Parts::{Finite, Infinity, Nan, Zero};
    let negative = (a ^ b) & format.zero(true) != 0;
    match (unpack(a, format), unpack(b, format)) {
        (Nan, _) | (_, Nan) | (Infinity { .. }, Infinity { .. }) | (Zero { .. }, Zero { .. }) => format.nan(),
        (Infinity { .. }, _) | (_, Zero { .. }) => format.infinity(negative),
        (_, Infinity { .. }) | (Zero { .. }, _) => format.zero(negative),
        (
            Finite {
                significand: m,
                exponent: p,
                ..
            },
            Finite {
                significand: n,
                exponent: q,
                ..
            },
        ) => {
            let up = m.leading_zeros() as i32 + 60;
            let dividend = u128::from(m) << up;
            let quotient = dividend / u128::from(n);
            let sticky = !dividend.is_multiple_of(u128::from(n));
            pack(negative, quotient, p - q - up, sticky, format, mode)
        }
    }
}

pub(crate) fn sqrt(a: u64, format: Format, mode: Mode) -> u64 {
    match unpack(a, format) {
        Parts::Zero { .. } | Parts::Infinity { negative: false } => a,
        Parts::Finite {
            negative: false,
            significand,
            exponent,
        } => {
            // An even exponent and a significand of 125 or 126 bits: the root has 63.
            let mut up = u128::from(significand).leading_zeros() as i32 - 2;
            if (exponent - up) % 2 != 0 {
                up -= 1;
            }
            let square = u128::from(significand) << up;
            let root = square.isqrt();
            pack(
                false,
                root,
                (exponent - up) / 2,
                root * root != square,
                format,
                mode,
            )
        }
        _ => format.nan(),
    }
}

/// From one format to another.
pub(crate) fn convert(bits: u64, from: Format, to: Format, mode: Mode) -> u64 {
    match unpack(bits, from) {
        Parts::Nan => to.nan(),
        Parts::Infinity { negative } => to.infinity(negative),
        Parts::Zero { negative } => to.zero(negative),
        Parts::Finite {
            negative,
            significand,
            exponent,
        } => pack(negative, u128::from(significand), exponent, false, to, mode),
    }
}

/// From an integer.
pub(crate) fn from_integer(value: i128, to: Format, mode: Mode) -> u64 {
    if value == 0 {
        0
    } else {
        pack(value < 0, value.unsigned_abs(), 0, false, to, mode)
    }
}

/// To an integer, rounded and not clamped; infinities become the largest magnitude. `None` for NaN.
pub(crate) fn to_integer(bits: u64, from: Format, mode: Mode) -> Option<i128> {
    let (negative, significand, exponent) = match unpack(bits, from) {
        Parts::Nan => return None,
        Parts::Zero { .. } => return Some(0),
        Parts::Infinity { negative } => return Some(if negative { i128::MIN } else { i128::MAX }),
        Parts::Finite {
            negative,
            significand,
            exponent,
        } => (negative, u128::from(significand), exponent),
    };
    let magnitude = if exponent >= 0 {
        if exponent > 70 {
            return Some(if negative { i128::MIN } else { i128::MAX });
        }
        significand << exponent
    } else {
        let shift = -exponent as u32;
        let (kept, half, below) = if shift > 127 {
            (0, false, true)
        } else {
            let half = significand >> (shift - 1) & 1 != 0;
            (
                significand >> shift,
                half,
                significand & ((1u128 << (shift - 1)) - 1) != 0,
            )
        };
        let up = match mode {
            Mode::Nearest => half && (below || kept & 1 != 0),
            Mode::NearestAway => half,
            Mode::Zero => false,
            Mode::Down => negative && (half || below),
            Mode::Up => !negative && (half || below),
        };
        kept + u128::from(up)
    };
    Some(if negative {
        -(magnitude as i128)
    } else {
        magnitude as i128
    })
}

/// To an integral value of the same format.
pub(crate) fn to_integral(bits: u64, format: Format, mode: Mode) -> u64 {
    match unpack(bits, format) {
        Parts::Nan => format.nan(),
        Parts::Finite {
            negative, exponent, ..
        } if exponent < 0 => match to_integer(bits, format, mode) {
            Some(0) | None => format.zero(negative),
            Some(value) => from_integer(value, format, Mode::Nearest),
        },
        _ => bits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<u64> {
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut list = vec![
            0,
            1 << 63,
            1,
            0x7ff0 << 48,
            0x3ff0 << 48,
            0x000f_ffff_ffff_ffff,
            0x7fef_ffff_ffff_ffff,
        ];
        for _ in 0..400 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            list.push(seed);
            // Near one, where sums cancel.
            list.push(seed & 0x800f_ffff_ffff_ffff | (0x3f0 + (seed >> 52 & 0x1f)) << 52);
        }
        list
    }

    fn same(a: f64, b: u64) -> bool {
        a.is_nan() && f64::from_bits(b).is_nan() || a.to_bits() == b
    }

    #[test]
    fn nearest_agrees_with_the_processor() {
        let list = samples();
        for (n, a) in list.iter().enumerate() {
            let b = list[(n * 7 + 3) % list.len()];
            let c = list[(n * 13 + 5) % list.len()];
            let (x, y, z) = (f64::from_bits(*a), f64::from_bits(b), f64::from_bits(c));
            assert!(same(x + y, add(*a, b, F64, Mode::Nearest)), "{x:e} + {y:e}");
            assert!(same(x * y, mul(*a, b, F64, Mode::Nearest)), "{x:e} * {y:e}");
            assert!(same(x / y, div(*a, b, F64, Mode::Nearest)), "{x:e} / {y:e}");
            assert!(
                same(x.mul_add(y, z), fma(*a, b, c, F64, Mode::Nearest)),
                "{x:e} * {y:e} + {z:e}"
            );
            assert!(same(x.sqrt(), sqrt(*a, F64, Mode::Nearest)), "sqrt {x:e}");
            let narrow = convert(*a, F64, F32, Mode::Nearest) as u32;
            let expected = x as f32;
            assert!(
                expected.is_nan() && f32::from_bits(narrow).is_nan() || expected.to_bits() == narrow,
                "{x:e}"
            );
            assert_eq!(
                to_integer(*a, F64, Mode::Zero).map(|v| v.clamp(i64::MIN.into(), i64::MAX.into())),
                (!x.is_nan()).then_some(i128::from(x as i64))
            );
            assert!(
                same(x.round_ties_even(), to_integral(*a, F64, Mode::Nearest)),
                "rint {x:e}"
            );
            assert!(same(x.floor(), to_integral(*a, F64, Mode::Down)), "floor {x:e}");
        }
    }

    #[test]
    fn directed_modes_bracket_the_exact_value() {
        let (one, tiny) = (1f64.to_bits(), 1e-300f64.to_bits());
        assert_eq!(add(one, tiny, F64, Mode::Up), one + 1);
        assert_eq!(add(one, tiny, F64, Mode::Down), one);
        assert_eq!(add(one, tiny | 1 << 63, F64, Mode::Zero), one - 1);
        assert_eq!(
            add(one, one | 1 << 63, F64, Mode::Down),
            1 << 63,
            "an exact zero is negative when rounding down"
        );
        let max = u64::from(f32::MAX.to_bits());
        assert_eq!(mul(max, max, F32, Mode::Zero), max);
        assert_eq!(mul(max, max, F32, Mode::Up), u64::from(f32::INFINITY.to_bits()));
    }
}
