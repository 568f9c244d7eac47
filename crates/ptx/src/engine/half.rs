//! Arithmetic and comparison of half precision: binary16 and bfloat16, one or two in a register.
//!
//! An operation is computed in f64 and rounded once. Sums and products of two halves are exact there. A fused
//! multiply-add is rounded to odd first, which keeps what the second rounding needs.

use super::control::NONE;
use super::ctx::{CHUNK, CHUNKS, Ctx};
use super::map::{COMBINE_AND, COMBINE_NONE, COMBINE_OR, COMBINE_XOR};
use crate::inst::{Flow, Inst, vectorised};

/// Two values in a register: the bits of `aux` from here on are the operation's modifiers.
pub(crate) const PACKED: u32 = 1;
/// Subnormal operands and results become zero.
pub(crate) const FTZ: u32 = 2;
/// Results are clamped to [0, 1]; a NaN becomes zero.
pub(crate) const SAT: u32 = 4;
/// Negative results become zero.
pub(crate) const RELU: u32 = 8;
/// `min` and `max`: NaN where an operand is.
pub(crate) const NAN: u32 = 16;
/// `min` and `max` of magnitudes, with the product of the signs.
pub(crate) const XORSIGN: u32 = 32;

/// The canonical NaN of both formats.
const QUIET: u16 = 0x7fff;

/// One of the two formats.
pub(crate) trait Format {
    /// Bits of the fraction.
    const FRACTION: u32;
    /// The exponent's bias.
    const BIAS: u32;
    /// The number one.
    const ONE: u16;
    /// All bits of the exponent.
    const INFINITY: u16;
    /// Exact.
    fn widen(bits: u16) -> f64;
}

pub(crate) struct Binary16;
pub(crate) struct Brain16;

impl Format for Binary16 {
    const FRACTION: u32 = 10;
    const BIAS: u32 = 15;
    const ONE: u16 = 0x3c00;
    const INFINITY: u16 = 0x7c00;
    #[inline(always)]
    fn widen(bits: u16) -> f64 {
        let magnitude = u32::from(bits & 0x7fff);
        // The fields in their places of an f32, whose bias is 112 more; the product is exact, subnormals included.
        let scaled = f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23);
        let special = f32::from_bits(magnitude << 13 | 0x7f80_0000);
        let value = if magnitude >= 0x7c00 { special } else { scaled };
        f64::from(f32::from_bits(value.to_bits() | u32::from(bits & 0x8000) << 16))
    }
}

impl Format for Brain16 {
    const FRACTION: u32 = 7;
    const BIAS: u32 = 127;
    const ONE: u16 = 0x3f80;
    const INFINITY: u16 = 0x7f80;
    #[inline(always)]
    fn widen(bits: u16) -> f64 {
        f64::from(f32::from_bits(u32::from(bits) << 16))
    }
}

/// To nearest, ties to even. A NaN becomes the canonical one.
#[inline(always)]
pub(crate) fn narrow<F: Format>(x: f64) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 48) as u16 & 0x8000;
    let magnitude = bits & !(1 << 63);
    let shift = 52 - F::FRACTION;
    let rounded = (magnitude + (1 << (shift - 1)) - 1 + (magnitude >> shift & 1)) >> shift;
    let normal = rounded.saturating_sub(u64::from(1023 - F::BIAS) << F::FRACTION);
    let normal = normal.min(u64::from(F::INFINITY)) as u16;
    // In units of the least subnormal. A carry makes the least normal number, as it should.
    let unit = f64::from_bits(u64::from(1023 + F::BIAS - 1 + F::FRACTION) << 52);
    let least = u64::from(1023 - F::BIAS + 1) << 52;
    let subnormal = (f64::from_bits(magnitude) * unit).round_ties_even() as u16;
    let value = if magnitude < least { subnormal } else { normal };
    if magnitude > 0x7ff0_0000_0000_0000 {
        QUIET
    } else {
        sign | value
    }
}

/// `a * b + c`, rounded to odd: its lowest bit is set where it is not exact.
#[inline(always)]
fn fma_to_odd(a: f64, b: f64, c: f64) -> f64 {
    // Two significands of 11 bits: the product is exact.
    let product = a * b;
    let sum = product + c;
    let other = sum - product;
    let error = (product - (sum - other)) + (c - other);
    let bits = sum.to_bits();
    // Where the error points towards zero, the number next to zero is the one below; either neighbour is odd.
    let toward_zero = (error > 0.0) != (sum > 0.0);
    let odd = if toward_zero {
        bits.wrapping_sub(1)
    } else {
        bits + 1
    };
    let exact = !(error < 0.0 || error > 0.0) || bits & 1 != 0;
    if exact { sum } else { f64::from_bits(odd) }
}

/// A subnormal to zero of its sign.
#[inline(always)]
fn flush<F: Format>(bits: u16) -> u16 {
    if bits & F::INFINITY == 0 {
        bits & 0x8000
    } else {
        bits
    }
}

#[inline(always)]
fn is_nan<F: Format>(bits: u16) -> bool {
    bits & 0x7fff > F::INFINITY
}

/// The number as an integer of the same order, -0 below +0.
#[inline(always)]
fn rank(bits: u16) -> i16 {
    let bits = bits as i16;
    bits ^ (bits >> 15) & 0x7fff
}

#[inline(always)]
fn extreme<F: Format>(a: u16, b: u16, flags: u32, larger: bool) -> u16 {
    let sign = (a ^ b) & 0x8000;
    let (x, y) = if flags & XORSIGN != 0 {
        (a & 0x7fff, b & 0x7fff)
    } else {
        (a, b)
    };
    let (x_nan, y_nan) = (is_nan::<F>(a), is_nan::<F>(b));
    let first = (rank(x) > rank(y)) == larger;
    let number = if x_nan || !first && !y_nan { y } else { x };
    if x_nan && y_nan || flags & NAN != 0 && (x_nan || y_nan) {
        QUIET
    } else if flags & XORSIGN != 0 {
        number | sign
    } else {
        number
    }
}

/// What an operation computes of its operands, before `.sat` and `.relu`.
pub(crate) trait Operation {
    fn op<F: Format>(a: u16, b: u16, c: u16, flags: u32) -> u16;
}

macro_rules! operations {
    ($($name:ident<$f:ident>($a:ident, $b:ident, $c:ident, $flags:ident) $body:expr;)*) => {
        $(pub(crate) struct $name;
        impl Operation for $name {
            #[inline(always)]
            fn op<$f: Format>($a: u16, $b: u16, $c: u16, $flags: u32) -> u16 { $body }
        })*
    };
}
operations! {
    Add<F>(a, b, _c, _flags) narrow::<F>(F::widen(a) + F::widen(b));
    Sub<F>(a, b, _c, _flags) narrow::<F>(F::widen(a) - F::widen(b));
    Mul<F>(a, b, _c, _flags) narrow::<F>(F::widen(a) * F::widen(b));
    Fma<F>(a, b, c, _flags) narrow::<F>(fma_to_odd(F::widen(a), F::widen(b), F::widen(c)));
    Min<F>(a, b, _c, flags) extreme::<F>(a, b, flags, false);
    Max<F>(a, b, _c, flags) extreme::<F>(a, b, flags, true);
    Abs<F>(a, _b, _c, _flags) a & 0x7fff;
    Neg<F>(a, _b, _c, _flags) a ^ 0x8000;
    Ex2<F>(a, _b, _c, _flags) narrow::<F>(F::widen(a).exp2());
    Tanh<F>(a, _b, _c, _flags) narrow::<F>(F::widen(a).tanh());
}

/// An operation in a format.
pub(crate) trait Half {
    fn op(a: u16, b: u16, c: u16, flags: u32) -> u16;
}

/// `O` in the format `F`.
pub(crate) struct In<F, O>(std::marker::PhantomData<(F, O)>);

impl<F: Format, O: Operation> Half for In<F, O> {
    #[inline(always)]
    fn op(a: u16, b: u16, c: u16, flags: u32) -> u16 {
        let take = |x| if flags & FTZ != 0 { flush::<F>(x) } else { x };
        let out = O::op::<F>(take(a), take(b), take(c), flags);
        let out = if flags & FTZ != 0 { flush::<F>(out) } else { out };
        let nan = is_nan::<F>(out);
        let out = if nan && flags & SAT != 0 { 0 } else { out };
        let out = if nan && flags & RELU != 0 { QUIET } else { out };
        let negative = out & 0x8000 != 0 && !nan;
        let out = if negative && flags & (SAT | RELU) != 0 {
            0
        } else {
            out
        };
        if flags & SAT != 0 { out.min(F::ONE) } else { out }
    }
}

#[inline(always)]
fn run<H: Half>(c: &mut Ctx, i: &Inst) -> Flow {
    let flags = i.aux;
    let operand = |slot: u32| if slot == NONE { i.a } else { slot };
    let (second, third) = (operand(i.b), operand(i.c));
    let full = c.full();
    for k in 0..CHUNKS {
        let (x, y, z) = (
            c.chunk::<u32>(i.a, k),
            c.chunk::<u32>(second, k),
            c.chunk::<u32>(third, k),
        );
        let mut d = [0u32; CHUNK];
        for n in 0..CHUNK {
            d[n] = u32::from(H::op(x[n] as u16, y[n] as u16, z[n] as u16, flags));
        }
        if flags & PACKED != 0 {
            for n in 0..CHUNK {
                let high = H::op(
                    (x[n] >> 16) as u16,
                    (y[n] >> 16) as u16,
                    (z[n] >> 16) as u16,
                    flags,
                );
                d[n] |= u32::from(high) << 16;
            }
        }
        if full {
            c.put_all(i.d, k, d);
        } else {
            c.put_active(i.d, k, d);
        }
    }
    Flow::Next
}

vectorised!(half, run, Half);

/// The comparisons by name; a comparison's place is its number in `aux`.
pub(crate) const COMPARISONS: [&str; 14] = [
    "eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
];
/// Of comparisons: the format is bfloat16.
pub(crate) const BRAIN: u32 = 64;
/// Of comparisons: how the result is combined with a predicate; two bits.
pub(crate) const COMBINE_SHIFT: u32 = 8;
/// Of comparisons: the comparison's number; four bits.
pub(crate) const COMPARISON_SHIFT: u32 = 12;

fn holds(comparison: u32, a: f64, b: f64) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let order = a.partial_cmp(&b);
    let unordered = order.is_none();
    match comparison {
        0 => order == Some(Equal),
        1 => matches!(order, Some(Less | Greater)),
        2 => order == Some(Less),
        3 => matches!(order, Some(Less | Equal)),
        4 => order == Some(Greater),
        5 => matches!(order, Some(Greater | Equal)),
        6 => unordered || order == Some(Equal),
        7 => order != Some(Equal),
        8 => unordered || order == Some(Less),
        9 => unordered || matches!(order, Some(Less | Equal)),
        10 => unordered || order == Some(Greater),
        11 => unordered || matches!(order, Some(Greater | Equal)),
        12 => !unordered,
        _ => unordered,
    }
}

/// A bit a lane for the low halves and one for the high halves.
fn compare(c: &Ctx, i: &Inst) -> [u32; 2] {
    let value = |word: u32, half: usize| {
        let bits = (word >> (16 * half)) as u16;
        if i.aux & BRAIN != 0 {
            Brain16::widen(bits)
        } else if i.aux & FTZ != 0 {
            Binary16::widen(flush::<Binary16>(bits))
        } else {
            Binary16::widen(bits)
        }
    };
    let mut found = [0u32; 2];
    for lane in c.active() {
        let (a, b) = (c.lane::<u32>(i.a, lane), c.lane::<u32>(i.b, lane));
        for (half, bits) in found.iter_mut().enumerate() {
            let yes = holds(i.aux >> COMPARISON_SHIFT & 15, value(a, half), value(b, half));
            *bits |= u32::from(yes) << lane;
        }
    }
    found
}

/// The comparison's bits with the predicate `c`.
fn combined(c: &Ctx, i: &Inst, bits: u32) -> u32 {
    match i.aux >> COMBINE_SHIFT & 3 {
        COMBINE_NONE => bits,
        COMBINE_AND => bits & c.pred_signed(i.c),
        COMBINE_OR => bits | c.pred_signed(i.c),
        COMBINE_XOR => bits ^ c.pred_signed(i.c),
        _ => bits,
    }
}

/// `setp`: `e` is the complement's predicate, or the high half's.
pub(crate) fn set_predicate(c: &mut Ctx, i: &Inst) -> Flow {
    let [low, high] = compare(c, i);
    let second = if i.aux & PACKED != 0 { high } else { !low };
    let (first, second) = (combined(c, i, low), combined(c, i, second));
    c.put_pred(i.d, first);
    c.put_pred(i.e, second);
    Flow::Next
}

/// `set`: `imm` is what a lane gets where the comparison holds; 16 bits of it for each half.
pub(crate) fn set_register(c: &mut Ctx, i: &Inst) -> Flow {
    let [low, high] = compare(c, i);
    let (low, high) = (combined(c, i, low), combined(c, i, high));
    for lane in c.active() {
        let out = if i.aux & PACKED != 0 {
            let part = |bits: u32, mask: u32| if bits >> lane & 1 != 0 { mask } else { 0 };
            i.imm as u32 & (part(low, 0xffff) | part(high, 0xffff_0000))
        } else if low >> lane & 1 != 0 {
            i.imm as u32
        } else {
            0
        };
        c.put_lane(i.d, lane, out);
    }
    Flow::Next
}

/// Minimum or maximum of singles by magnitude with the product of the signs: `aux` has `XORSIGN`'s companions `FTZ`
/// and `NAN`, and `PACKED` for the maximum.
pub(crate) fn signed_extreme(c: &mut Ctx, i: &Inst) -> Flow {
    let larger = i.aux & PACKED != 0;
    for lane in c.active() {
        let read = |slot: u32| {
            let x = c.lane::<f32>(slot, lane);
            if i.aux & FTZ != 0 {
                super::compare::flush::<true>(x)
            } else {
                x
            }
        };
        let (a, b) = (read(i.a), read(i.b));
        let sign = (a.to_bits() ^ b.to_bits()) & 1 << 31;
        let (x, y) = (a.abs(), b.abs());
        let number = if x.is_nan() || !y.is_nan() && (y > x) == larger {
            y
        } else {
            x
        };
        let nan = x.is_nan() && y.is_nan() || i.aux & NAN != 0 && (x.is_nan() || y.is_nan());
        let bits = if nan { 0x7fff_ffff } else { number.to_bits() | sign };
        c.put_lane(i.d, lane, bits);
    }
    Flow::Next
}

/// What `atom.add` of one or two halves makes of what is in memory.
pub(crate) fn add_in_memory<F: Format>(old: u16, b: u16) -> u16 {
    Add::op::<F>(old, b, 0, 0)
}
