//! Floating point, lane-wise, rounding to nearest. Directed rounding is in `rounding`.
//!
//! `M` of the f32 operations: bit 0 flushes subnormal operands and results (`.ftz`), bit 1 clamps the result to
//! [0, 1] with NaN to 0 (`.sat`).

use super::compare::flush;
use super::ctx::Ctx;
use super::map::ops;
use crate::inst::{Flow, Inst};

/// `.ftz`.
pub(crate) const FTZ: u32 = 1;
/// `.sat`.
pub(crate) const SAT: u32 = 2;

#[inline(always)]
fn take<const M: u32>(x: f32) -> f32 {
    if M & FTZ != 0 { flush::<true>(x) } else { x }
}

#[inline(always)]
pub(crate) fn give<const M: u32>(x: f32) -> f32 {
    let x = if M & FTZ != 0 { flush::<true>(x) } else { x };
    if M & SAT != 0 {
        // Written so that NaN, for which both comparisons are false, ends as 0.
        let x = if x > 0.0 { x } else { 0.0 };
        return if x < 1.0 { x } else { 1.0 };
    }
    x
}

ops! {
    AddF32<const M: u32>(a: f32, b: f32) -> f32 { give::<M>(take::<M>(a) + take::<M>(b)) }
    SubF32<const M: u32>(a: f32, b: f32) -> f32 { give::<M>(take::<M>(a) - take::<M>(b)) }
    MulF32<const M: u32>(a: f32, b: f32) -> f32 { give::<M>(take::<M>(a) * take::<M>(b)) }
    FmaF32<const M: u32>(a: f32, b: f32, c: f32) -> f32 {
        give::<M>(take::<M>(a).mul_add(take::<M>(b), take::<M>(c)))
    }
    DivF32<const M: u32>(a: f32, b: f32) -> f32 { give::<M>(take::<M>(a) / take::<M>(b)) }
    RcpF32<const M: u32>(a: f32) -> f32 { give::<M>(1.0 / take::<M>(a)) }
    SqrtF32<const M: u32>(a: f32) -> f32 { give::<M>(take::<M>(a).sqrt()) }
    RsqrtF32<const M: u32>(a: f32) -> f32 { give::<M>((1.0 / f64::from(take::<M>(a)).sqrt()) as f32) }
    MinF32<const M: u32>(a: f32, b: f32) -> f32 { give::<M>(minimum(take::<M>(a), take::<M>(b))) }
    MaxF32<const M: u32>(a: f32, b: f32) -> f32 { give::<M>(maximum(take::<M>(a), take::<M>(b))) }
    /// `.NaN`: NaN where an operand is.
    MinNanF32<const M: u32>(a: f32, b: f32) -> f32 {
        if a.is_nan() || b.is_nan() { f32::from_bits(0x7fff_ffff) } else { give::<M>(minimum(take::<M>(a), take::<M>(b))) }
    }
    MaxNanF32<const M: u32>(a: f32, b: f32) -> f32 {
        if a.is_nan() || b.is_nan() { f32::from_bits(0x7fff_ffff) } else { give::<M>(maximum(take::<M>(a), take::<M>(b))) }
    }
    AbsF32<const M: u32>(a: f32) -> f32 { take::<M>(a).abs() }
    NegF32<const M: u32>(a: f32) -> f32 { -take::<M>(a) }
    /// `copysign d, a, b`: the sign of a on the magnitude of b.
    CopysignF32(a: u32, b: u32) -> u32 { a & 0x8000_0000 | b & 0x7fff_ffff }
    Ex2F32<const M: u32>(a: f32) -> f32 { give::<M>(power_of_two(take::<M>(a))) }
    Lg2F32<const M: u32>(a: f32) -> f32 { give::<M>(logarithm(take::<M>(a))) }
    SinF32<const M: u32>(a: f32) -> f32 { give::<M>(take::<M>(a).sin()) }
    CosF32<const M: u32>(a: f32) -> f32 { give::<M>(take::<M>(a).cos()) }
    TanhF32(a: f32) -> f32 { a.tanh() }

    AddF64(a: f64, b: f64) -> f64 { a + b }
    SubF64(a: f64, b: f64) -> f64 { a - b }
    MulF64(a: f64, b: f64) -> f64 { a * b }
    FmaF64(a: f64, b: f64, c: f64) -> f64 { a.mul_add(b, c) }
    DivF64(a: f64, b: f64) -> f64 { a / b }
    RcpF64(a: f64) -> f64 { 1.0 / a }
    /// `rcp.approx.ftz.f64`: the operand's and the result's low words are ignored, subnormals are flushed.
    RcpApproxF64(a: f64) -> f64 { high_word(1.0 / high_word(a)) }
    SqrtF64(a: f64) -> f64 { a.sqrt() }
    RsqrtF64(a: f64) -> f64 { 1.0 / a.sqrt() }
    RsqrtApproxF64(a: f64) -> f64 { high_word(1.0 / high_word(a).sqrt()) }
    MinF64(a: f64, b: f64) -> f64 {
        if a.is_nan() { return b; }
        if b.is_nan() { return a; }
        if a == b { return f64::from_bits(a.to_bits() | b.to_bits()); }
        if a < b { a } else { b }
    }
    MaxF64(a: f64, b: f64) -> f64 {
        if a.is_nan() { return b; }
        if b.is_nan() { return a; }
        if a == b { return f64::from_bits(a.to_bits() & b.to_bits()); }
        if a > b { a } else { b }
    }
    AbsF64(a: u64) -> u64 { a & !(1 << 63) }
    NegF64(a: u64) -> u64 { a ^ (1 << 63) }
    CopysignF64(a: u64, b: u64) -> u64 { a & (1 << 63) | b & !(1 << 63) }
}

/// 2 to the power of `x`, almost always rounded correctly. Without branches, so that it becomes vector instructions.
#[inline(always)]
fn power_of_two(x: f32) -> f32 {
    // Added to a number, it leaves the nearest whole number in the lowest bits.
    const WHOLE: f64 = 6_755_399_441_055_744.0;
    // Powers of the logarithm of 2, over factorials.
    const TERMS: [f64; 9] = [
        1.0,
        std::f64::consts::LN_2,
        0.240_226_506_959_100_7,
        0.055_504_108_664_821_58,
        0.009_618_129_107_628_477,
        0.001_333_355_814_642_844_3,
        0.000_154_035_303_933_816_1,
        0.000_015_252_733_804_059_84,
        0.000_001_321_548_679_014_431,
    ];
    // Beyond these all results are infinite or zero.
    let near = if x > 200.0 { 200.0 } else { x };
    let near = f64::from(if near < -200.0 { -200.0 } else { near });
    let shifted = near + WHOLE;
    let rest = near - (shifted - WHOLE);
    let mut power = TERMS[8];
    for n in (0..8).rev() {
        power = power * rest + TERMS[n];
    }
    let result = f64::from_bits(power.to_bits().wrapping_add(shifted.to_bits() << 52)) as f32;
    if x.is_nan() { x + x } else { result }
}

/// The binary logarithm of `x`, likewise.
#[inline(always)]
fn logarithm(x: f32) -> f32 {
    /// The fraction bits of the root of 2.
    const ROOT: u64 = 0x6_a09e_667f_3bcd;
    const ONE: u64 = 1.0f64.to_bits();
    /// 2^52: a number below it in the fraction bits is added.
    const WHOLE: f64 = 4_503_599_627_370_496.0;
    let bits = f64::from(x).to_bits();
    // The exponent for which the fraction lies around 1.
    let exponent = bits.wrapping_add((1 << 52) - ROOT) >> 52;
    let fraction = f64::from_bits(bits.wrapping_sub(exponent << 52).wrapping_add(ONE));
    let exponent = f64::from_bits(WHOLE.to_bits() | exponent & 0xfff) - (WHOLE + 1023.0);
    let s = (fraction - 1.0) / (fraction + 1.0);
    let z = s * s;
    let mut series = 1.0 / 13.0;
    for n in (0..6).rev() {
        series = series * z + 1.0 / (2 * n + 1) as f64;
    }
    let result = (exponent + s * series * (2.0 * std::f64::consts::LOG2_E)) as f32;
    let result = if x == 0.0 { f32::NEG_INFINITY } else { result };
    let result = if x < 0.0 { f32::NAN } else { result };
    if x < f32::INFINITY { result } else { x + x }
}

/// What `.approx.ftz.f64` sees and gives: the upper word, subnormals as zero.
#[inline(always)]
fn high_word(x: f64) -> f64 {
    let bits = x.to_bits() & 0xffff_ffff_0000_0000;
    f64::from_bits(if bits & 0x7ff0_0000_0000_0000 == 0 {
        bits & (1 << 63)
    } else {
        bits
    })
}

/// The smaller operand; of NaN and a number the number; -0 below +0.
#[inline(always)]
fn minimum(a: f32, b: f32) -> f32 {
    let r = if a < b { a } else { b };
    let r = if a == b {
        f32::from_bits(a.to_bits() | b.to_bits())
    } else {
        r
    };
    let r = if b.is_nan() { a } else { r };
    if a.is_nan() && b.is_nan() {
        f32::from_bits(0x7fff_ffff)
    } else {
        r
    }
}

#[inline(always)]
fn maximum(a: f32, b: f32) -> f32 {
    let r = if a > b { a } else { b };
    let r = if a == b {
        f32::from_bits(a.to_bits() & b.to_bits())
    } else {
        r
    };
    let r = if b.is_nan() { a } else { r };
    if a.is_nan() && b.is_nan() {
        f32::from_bits(0x7fff_ffff)
    } else {
        r
    }
}

pub(crate) trait Classify: super::ctx::Lane {
    fn category(self) -> std::num::FpCategory;
}

impl Classify for f32 {
    fn category(self) -> std::num::FpCategory {
        self.classify()
    }
}

impl Classify for f64 {
    fn category(self) -> std::num::FpCategory {
        self.classify()
    }
}

/// `testp`: `aux` is 0 finite, 1 infinite, 2 number, 3 not a number, 4 normal, 5 subnormal.
pub(crate) fn test_property<T: Classify>(c: &mut Ctx, i: &Inst) -> Flow {
    use std::num::FpCategory::{Infinite, Nan, Normal, Subnormal};
    let mut bits = 0;
    for lane in c.active() {
        let category = c.lane::<T>(i.a, lane).category();
        let yes = match i.aux {
            0 => !matches!(category, Infinite | Nan),
            1 => category == Infinite,
            2 => category != Nan,
            3 => category == Nan,
            4 => category == Normal,
            _ => category == Subnormal,
        };
        bits |= u32::from(yes) << lane;
    }
    c.put_pred(i.d, bits);
    Flow::Next
}
