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
    Ex2F32<const M: u32>(a: f32) -> f32 { give::<M>(take::<M>(a).exp2()) }
    Lg2F32<const M: u32>(a: f32) -> f32 { give::<M>(take::<M>(a).log2()) }
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
