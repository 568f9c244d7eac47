//! Exact floating-point in software: every operation in every rounding, with flushing and saturation as PTX has them.

use rustc_apfloat::ieee::{BFloat, Double, Half, Single};
use rustc_apfloat::{Float, FloatConvert, Round};

use crate::types::Ty;
use crate::want::{Want, value};

/// A rounding suffix: its name, and what it means.
pub const ROUNDINGS: [(&str, Round); 4] = [
    ("rn", Round::NearestTiesToEven),
    ("rz", Round::TowardZero),
    ("rm", Round::TowardNegative),
    ("rp", Round::TowardPositive),
];

/// An operation that rounds once.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    Add,
    Sub,
    Mul,
    Fma,
    Div,
    Sqrt,
    Rcp,
}

/// The modifiers of one instruction.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    pub round: Round,
    pub ftz: bool,
    pub sat: bool,
}

/// What `operation` in `ty` must give.
pub fn arithmetic(ty: Ty, operation: Operation, mode: Mode, operands: &[u64]) -> Want {
    let operands: Vec<u64> = operands
        .iter()
        .map(|bits| if mode.ftz { flushed(ty, *bits) } else { *bits })
        .collect();
    let bits = match ty {
        Ty::F16 => exact::<Half>(operation, mode.round, &operands, 11, 5),
        Ty::BF16 => exact::<BFloat>(operation, mode.round, &operands, 8, 8),
        Ty::F32 => exact::<Single>(operation, mode.round, &operands, 24, 8),
        Ty::F64 => exact::<Double>(operation, mode.round, &operands, 53, 11),
        _ => panic!("no arithmetic in {ty:?}"),
    };
    let want = float(ty, if mode.ftz { flushed(ty, bits) } else { bits });
    if mode.sat { want.saturated(ty) } else { want }
}

/// These bits, or any NaN where they are one.
pub fn float(ty: Ty, bits: u64) -> Want {
    if value(ty, bits).is_nan() {
        Want::Nan
    } else {
        Want::Bits(bits)
    }
}

/// A denormal becomes the zero of its sign.
pub fn flushed(ty: Ty, bits: u64) -> u64 {
    let (fraction, exponent, sign) = match ty {
        Ty::F16 => (0x3ff, 0x1f << 10, 1 << 15),
        Ty::F32 => (0x7f_ffff, 0xff << 23, 1 << 31),
        Ty::F64 => (0xf_ffff_ffff_ffff, 0x7ff << 52, 1 << 63),
        _ => panic!("no flushing in {ty:?}"),
    };
    if bits & exponent == 0 && bits & fraction != 0 {
        bits & sign
    } else {
        bits
    }
}

fn exact<F: Float>(operation: Operation, round: Round, operands: &[u64], digits: u32, exponents: u32) -> u64 {
    let at = |k: usize| F::from_bits(u128::from(operands[k]));
    let result = match operation {
        Operation::Add => at(0).add_r(at(1), round).value,
        Operation::Sub => at(0).sub_r(at(1), round).value,
        Operation::Mul => at(0).mul_r(at(1), round).value,
        Operation::Fma => at(0).mul_add_r(at(1), at(2), round).value,
        Operation::Div => at(0).div_r(at(1), round).value,
        Operation::Rcp => F::from_u128(1).value.div_r(at(0), round).value,
        Operation::Sqrt => return square_root(operands[0], round, digits, exponents),
    };
    result.to_bits() as u64
}

/// The square root by integers: a significand of twice the digits, its root, and whether a rest is left.
fn square_root(bits: u64, round: Round, digits: u32, exponents: u32) -> u64 {
    let fraction_bits = digits - 1;
    let sign = bits >> (fraction_bits + exponents) & 1 == 1;
    let exponent_field = (bits >> fraction_bits) as i64 & ((1 << exponents) - 1);
    let fraction = bits & ((1 << fraction_bits) - 1);
    let special = exponent_field == (1 << exponents) - 1;
    let not_a_number = ((1u64 << exponents) - 1) << fraction_bits | 1 << (fraction_bits - 1);
    if exponent_field == 0 && fraction == 0 || special && fraction == 0 && !sign {
        return bits;
    }
    if special || sign {
        return not_a_number;
    }
    let bias = (1i64 << (exponents - 1)) - 1;
    let (mut significand, mut exponent) = match exponent_field {
        0 => (u128::from(fraction), 1 - bias - i64::from(fraction_bits)),
        field => (
            u128::from(fraction | 1 << fraction_bits),
            field - bias - i64::from(fraction_bits),
        ),
    };
    // Bring it to exactly 2 * digits or 2 * digits - 1 bits with an even exponent: the root then has `digits` bits.
    let shift = i64::from(2 * digits) - (128 - i64::from(significand.leading_zeros()));
    let shift = if (exponent - shift) % 2 != 0 {
        shift - 1
    } else {
        shift
    };
    significand <<= shift;
    exponent -= shift;
    let root = significand.isqrt();
    let rest = significand - root * root;
    // The rest tells halves apart: (root + 1/2)^2 = root^2 + root + 1/4.
    let up = match round {
        Round::TowardPositive => rest > 0,
        Round::NearestTiesToEven => rest > root,
        _ => false,
    };
    let root = root + u128::from(up);
    let exponent = exponent / 2;
    // A carry out of the top makes a power of two, which the field's sum below takes up by itself.
    let field = (exponent + i64::from(fraction_bits) + bias) as u64;
    (field << fraction_bits) + (root as u64 - (1 << fraction_bits))
}

/// Conversion between float types, `integral` first rounding to a whole number, then `round` to the type.
pub fn convert(from: Ty, to: Ty, round: Round, integral: Option<Round>, bits: u64) -> u64 {
    match from {
        Ty::F16 => narrow::<Half>(to, round, integral, bits),
        Ty::BF16 => narrow::<BFloat>(to, round, integral, bits),
        Ty::F32 => narrow::<Single>(to, round, integral, bits),
        _ => narrow::<Double>(to, round, integral, bits),
    }
}

fn narrow<F>(to: Ty, round: Round, integral: Option<Round>, bits: u64) -> u64
where
    F: Float + FloatConvert<Half> + FloatConvert<BFloat> + FloatConvert<Single> + FloatConvert<Double>,
{
    let mut number = F::from_bits(u128::from(bits));
    if let Some(integral) = integral {
        number = number.round_to_integral(integral).value;
    }
    fn to_bits<F: Float + FloatConvert<T>, T: Float>(number: F, round: Round) -> u64 {
        number.convert_r(round, &mut false).value.to_bits() as u64
    }
    match to {
        Ty::F16 => to_bits::<F, Half>(number, round),
        Ty::BF16 => to_bits::<F, BFloat>(number, round),
        Ty::F32 => to_bits::<F, Single>(number, round),
        _ => to_bits::<F, Double>(number, round),
    }
}

/// An integer as a float.
pub fn from_integer(to: Ty, round: Round, number: i128) -> u64 {
    match to {
        Ty::F16 => Half::from_i128_r(number, round).value.to_bits() as u64,
        Ty::BF16 => BFloat::from_i128_r(number, round).value.to_bits() as u64,
        Ty::F32 => Single::from_i128_r(number, round).value.to_bits() as u64,
        _ => Double::from_i128_r(number, round).value.to_bits() as u64,
    }
}

/// A float as an integer of type `to`: rounded, then clamped to the type's span; a NaN is left to the caller.
pub fn to_integer(from: Ty, to: Ty, round: Round, bits: u64) -> u64 {
    let whole = match from {
        // Rounded in their own type: a wider one could only make the question harder.
        Ty::F32 => value(Ty::F32, convert(Ty::F32, Ty::F32, round, Some(round), bits)),
        Ty::F64 => f64::from_bits(convert(Ty::F64, Ty::F64, round, Some(round), bits)),
        _ => f64::from_bits(convert(from, Ty::F64, round, Some(round), bits)),
    };
    let (least, most) = to.span();
    // `as` clamps to i128, which holds every span with room.
    (whole as i128).clamp(least, most) as u64 & to.mask()
}
