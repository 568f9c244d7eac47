//! Comparisons. Ordered ones are false where an operand is NaN, unordered ones (`equ` …) true.

// With NaN about, `!(a >= b)` is not `a < b`, and `a < b || a > b` is not `a != b`: that is the point of these.
#![allow(clippy::double_comparisons, clippy::neg_cmp_op_on_partial_ord)]

use super::map::cmps;

cmps! {
    Eq32(a, b: u32) a == b;
    Ne32(a, b: u32) a != b;
    LtS32(a, b: i32) a < b;
    LeS32(a, b: i32) a <= b;
    GtS32(a, b: i32) a > b;
    GeS32(a, b: i32) a >= b;
    LtU32(a, b: u32) a < b;
    LeU32(a, b: u32) a <= b;
    GtU32(a, b: u32) a > b;
    GeU32(a, b: u32) a >= b;
    Eq16(a, b: u32) a as u16 == b as u16;
    Ne16(a, b: u32) a as u16 != b as u16;
    LtS16(a, b: u32) (a as i16) < (b as i16);
    LeS16(a, b: u32) (a as i16) <= (b as i16);
    GtS16(a, b: u32) (a as i16) > (b as i16);
    GeS16(a, b: u32) (a as i16) >= (b as i16);
    LtU16(a, b: u32) (a as u16) < (b as u16);
    LeU16(a, b: u32) (a as u16) <= (b as u16);
    GtU16(a, b: u32) (a as u16) > (b as u16);
    GeU16(a, b: u32) (a as u16) >= (b as u16);
    Eq64(a, b: u64) a == b;
    Ne64(a, b: u64) a != b;
    LtS64(a, b: i64) a < b;
    LeS64(a, b: i64) a <= b;
    GtS64(a, b: i64) a > b;
    GeS64(a, b: i64) a >= b;
    LtU64(a, b: u64) a < b;
    LeU64(a, b: u64) a <= b;
    GtU64(a, b: u64) a > b;
    GeU64(a, b: u64) a >= b;

    EqF32[const F: bool](a, b: f32) flush::<F>(a) == flush::<F>(b);
    NeF32[const F: bool](a, b: f32) { let (a, b) = (flush::<F>(a), flush::<F>(b)); a < b || a > b };
    LtF32[const F: bool](a, b: f32) flush::<F>(a) < flush::<F>(b);
    LeF32[const F: bool](a, b: f32) flush::<F>(a) <= flush::<F>(b);
    GtF32[const F: bool](a, b: f32) flush::<F>(a) > flush::<F>(b);
    GeF32[const F: bool](a, b: f32) flush::<F>(a) >= flush::<F>(b);
    EquF32[const F: bool](a, b: f32) { let (a, b) = (flush::<F>(a), flush::<F>(b)); !(a < b || a > b) };
    NeuF32[const F: bool](a, b: f32) flush::<F>(a) != flush::<F>(b);
    LtuF32[const F: bool](a, b: f32) !(flush::<F>(a) >= flush::<F>(b));
    LeuF32[const F: bool](a, b: f32) !(flush::<F>(a) > flush::<F>(b));
    GtuF32[const F: bool](a, b: f32) !(flush::<F>(a) <= flush::<F>(b));
    GeuF32[const F: bool](a, b: f32) !(flush::<F>(a) < flush::<F>(b));
    NumF32(a, b: f32) !a.is_nan() && !b.is_nan();
    NanF32(a, b: f32) a.is_nan() || b.is_nan();

    EqF64(a, b: f64) a == b;
    NeF64(a, b: f64) a < b || a > b;
    LtF64(a, b: f64) a < b;
    LeF64(a, b: f64) a <= b;
    GtF64(a, b: f64) a > b;
    GeF64(a, b: f64) a >= b;
    EquF64(a, b: f64) !(a < b || a > b);
    NeuF64(a, b: f64) a != b;
    LtuF64(a, b: f64) !(a >= b);
    LeuF64(a, b: f64) !(a > b);
    GtuF64(a, b: f64) !(a <= b);
    GeuF64(a, b: f64) !(a < b);
    NumF64(a, b: f64) !a.is_nan() && !b.is_nan();
    NanF64(a, b: f64) a.is_nan() || b.is_nan();
}

/// A subnormal to zero of its sign, where `F` asks for it.
#[inline(always)]
pub(crate) fn flush<const F: bool>(x: f32) -> f32 {
    let bits = x.to_bits();
    if F && bits & 0x7f80_0000 == 0 {
        f32::from_bits(bits & 0x8000_0000)
    } else {
        x
    }
}
