//! Integer arithmetic and bit operations, lane-wise. 16-bit values live in the low half of 32-bit lanes; the bits above
//! them are not looked at.

use super::ctx::{CHUNK, CHUNKS, Ctx};
use super::map::ops;
use crate::inst::{Exec, Flow, Inst, VectorSet, vectorised};

ops! {
    Add32(a: u32, b: u32) -> u32 { a.wrapping_add(b) }
    Sub32(a: u32, b: u32) -> u32 { a.wrapping_sub(b) }
    Mul32(a: u32, b: u32) -> u32 { a.wrapping_mul(b) }
    Mad32(a: u32, b: u32, c: u32) -> u32 { a.wrapping_mul(b).wrapping_add(c) }
    MulHiU32(a: u32, b: u32) -> u32 { ((u64::from(a) * u64::from(b)) >> 32) as u32 }
    MulHiS32(a: i32, b: i32) -> u32 { ((i64::from(a) * i64::from(b)) >> 32) as u32 }
    MadHiU32(a: u32, b: u32, c: u32) -> u32 { (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c) }
    MadHiS32(a: i32, b: i32, c: u32) -> u32 { (((i64::from(a) * i64::from(b)) >> 32) as u32).wrapping_add(c) }
    MulWideU32(a: u32, b: u32) -> u64 { u64::from(a) * u64::from(b) }
    MulWideS32(a: i32, b: i32) -> i64 { i64::from(a) * i64::from(b) }
    MadWideU32(a: u32, b: u32, c: u64) -> u64 { (u64::from(a) * u64::from(b)).wrapping_add(c) }
    MadWideS32(a: i32, b: i32, c: i64) -> i64 { (i64::from(a) * i64::from(b)).wrapping_add(c) }
    MulWideU16(a: u32, b: u32) -> u32 { (a & 0xffff) * (b & 0xffff) }
    MulWideS16(a: u32, b: u32) -> u32 { (i32::from(a as i16) * i32::from(b as i16)) as u32 }
    MadWideU16(a: u32, b: u32, c: u32) -> u32 { ((a & 0xffff) * (b & 0xffff)).wrapping_add(c) }
    MadWideS16(a: u32, b: u32, c: u32) -> u32 { ((i32::from(a as i16) * i32::from(b as i16)) as u32).wrapping_add(c) }
    MulHiU16(a: u32, b: u32) -> u32 { ((a & 0xffff) * (b & 0xffff)) >> 16 }
    MulHiS16(a: u32, b: u32) -> u32 { ((i32::from(a as i16) * i32::from(b as i16)) >> 16) as u32 & 0xffff }
    MadHiU16(a: u32, b: u32, c: u32) -> u32 { (((a & 0xffff) * (b & 0xffff)) >> 16).wrapping_add(c) & 0xffff }
    MadHiS16(a: u32, b: u32, c: u32) -> u32 {
        (((i32::from(a as i16) * i32::from(b as i16)) >> 16) as u32).wrapping_add(c) & 0xffff
    }
    Add16(a: u32, b: u32) -> u32 { a.wrapping_add(b) & 0xffff }
    Sub16(a: u32, b: u32) -> u32 { a.wrapping_sub(b) & 0xffff }
    Mul16(a: u32, b: u32) -> u32 { a.wrapping_mul(b) & 0xffff }
    Mad16(a: u32, b: u32, c: u32) -> u32 { a.wrapping_mul(b).wrapping_add(c) & 0xffff }
    Add64(a: u64, b: u64) -> u64 { a.wrapping_add(b) }
    Sub64(a: u64, b: u64) -> u64 { a.wrapping_sub(b) }
    Mul64(a: u64, b: u64) -> u64 { a.wrapping_mul(b) }
    Mad64(a: u64, b: u64, c: u64) -> u64 { a.wrapping_mul(b).wrapping_add(c) }
    MulHiU64(a: u64, b: u64) -> u64 { ((u128::from(a) * u128::from(b)) >> 64) as u64 }
    MulHiS64(a: i64, b: i64) -> u64 { ((i128::from(a) * i128::from(b)) >> 64) as u64 }
    MadHiU64(a: u64, b: u64, c: u64) -> u64 { (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c) }
    MadHiS64(a: i64, b: i64, c: u64) -> u64 { (((i128::from(a) * i128::from(b)) >> 64) as u64).wrapping_add(c) }

    Mul24LoU(a: u32, b: u32) -> u32 { (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff) }
    Mul24LoS(a: i32, b: i32) -> i32 { (a << 8 >> 8).wrapping_mul(b << 8 >> 8) }
    Mul24HiU(a: u32, b: u32) -> u32 { ((u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)) >> 16) as u32 }
    Mul24HiS(a: i32, b: i32) -> i32 { ((i64::from(a << 8 >> 8) * i64::from(b << 8 >> 8)) >> 16) as i32 }
    Mad24LoU(a: u32, b: u32, c: u32) -> u32 { (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff).wrapping_add(c) }
    Mad24LoS(a: i32, b: i32, c: i32) -> i32 { (a << 8 >> 8).wrapping_mul(b << 8 >> 8).wrapping_add(c) }
    Mad24HiU(a: u32, b: u32, c: u32) -> u32 {
        (((u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)) >> 16) as u32).wrapping_add(c)
    }
    Mad24HiS(a: i32, b: i32, c: i32) -> i32 {
        (((i64::from(a << 8 >> 8) * i64::from(b << 8 >> 8)) >> 16) as i32).wrapping_add(c)
    }
    /// Saturating: `add.sat.s32`.
    AddSat32(a: i32, b: i32) -> i32 { a.saturating_add(b) }
    SubSat32(a: i32, b: i32) -> i32 { a.saturating_sub(b) }
    MadHiSat32(a: i32, b: i32, c: i32) -> i32 { (((i64::from(a) * i64::from(b)) >> 32) as i32).saturating_add(c) }

    // A zero divisor gives all ones, and the dividend as remainder, as the hardware's division routine does.
    DivU32(a: u32, b: u32) -> u32 { a.checked_div(b).unwrap_or(u32::MAX) }
    DivS32(a: i32, b: i32) -> i32 { if b == 0 { -1 } else { a.wrapping_div(b) } }
    RemU32(a: u32, b: u32) -> u32 { a.checked_rem(b).unwrap_or(a) }
    RemS32(a: i32, b: i32) -> i32 { if b == 0 { a } else { a.wrapping_rem(b) } }
    DivU64(a: u64, b: u64) -> u64 { a.checked_div(b).unwrap_or(u64::MAX) }
    DivS64(a: i64, b: i64) -> i64 { if b == 0 { -1 } else { a.wrapping_div(b) } }
    RemU64(a: u64, b: u64) -> u64 { a.checked_rem(b).unwrap_or(a) }
    RemS64(a: i64, b: i64) -> i64 { if b == 0 { a } else { a.wrapping_rem(b) } }
    DivU16(a: u32, b: u32) -> u32 { (a & 0xffff).checked_div(b & 0xffff).unwrap_or(0xffff) }
    DivS16(a: u32, b: u32) -> u32 {
        let (a, b) = (i32::from(a as i16), i32::from(b as i16));
        (if b == 0 { -1 } else { a / b }) as u32 & 0xffff
    }
    RemU16(a: u32, b: u32) -> u32 { (a & 0xffff).checked_rem(b & 0xffff).unwrap_or(a & 0xffff) }
    RemS16(a: u32, b: u32) -> u32 {
        let (a, b) = (i32::from(a as i16), i32::from(b as i16));
        (if b == 0 { a } else { a % b }) as u32 & 0xffff
    }

    Abs32(a: i32) -> i32 { a.wrapping_abs() }
    Abs64(a: i64) -> i64 { a.wrapping_abs() }
    Abs16(a: u32) -> u32 { u32::from((a as i16).wrapping_abs() as u16) }
    Neg32(a: u32) -> u32 { a.wrapping_neg() }
    Neg64(a: u64) -> u64 { a.wrapping_neg() }
    Neg16(a: u32) -> u32 { a.wrapping_neg() & 0xffff }
    MinU32(a: u32, b: u32) -> u32 { a.min(b) }
    MinS32(a: i32, b: i32) -> i32 { a.min(b) }
    MaxU32(a: u32, b: u32) -> u32 { a.max(b) }
    MaxS32(a: i32, b: i32) -> i32 { a.max(b) }
    MinReluS32(a: i32, b: i32) -> i32 { a.min(b).max(0) }
    MaxReluS32(a: i32, b: i32) -> i32 { a.max(b).max(0) }
    MinU64(a: u64, b: u64) -> u64 { a.min(b) }
    MinS64(a: i64, b: i64) -> i64 { a.min(b) }
    MaxU64(a: u64, b: u64) -> u64 { a.max(b) }
    MaxS64(a: i64, b: i64) -> i64 { a.max(b) }
    MinU16(a: u32, b: u32) -> u32 { (a & 0xffff).min(b & 0xffff) }
    MinS16(a: u32, b: u32) -> u32 { u32::from((a as i16).min(b as i16) as u16) }
    MaxU16(a: u32, b: u32) -> u32 { (a & 0xffff).max(b & 0xffff) }
    MaxS16(a: u32, b: u32) -> u32 { u32::from((a as i16).max(b as i16) as u16) }

    /// Two integers of 16 bits in one register: no carry goes from one to the other.
    Add16x2(a: u32, b: u32) -> u32 { halves(a, b, u16::wrapping_add) }
    MinU16x2(a: u32, b: u32) -> u32 { halves(a, b, u16::min) }
    MaxU16x2(a: u32, b: u32) -> u32 { halves(a, b, u16::max) }
    MinS16x2(a: u32, b: u32) -> u32 { halves(a, b, |a, b| (a as i16).min(b as i16) as u16) }
    MaxS16x2(a: u32, b: u32) -> u32 { halves(a, b, |a, b| (a as i16).max(b as i16) as u16) }
    MinReluS16x2(a: u32, b: u32) -> u32 { halves(a, b, |a, b| (a as i16).min(b as i16).max(0) as u16) }
    MaxReluS16x2(a: u32, b: u32) -> u32 { halves(a, b, |a, b| (a as i16).max(b as i16).max(0) as u16) }

    And32(a: u32, b: u32) -> u32 { a & b }
    Or32(a: u32, b: u32) -> u32 { a | b }
    Xor32(a: u32, b: u32) -> u32 { a ^ b }
    Not32(a: u32) -> u32 { !a }
    And64(a: u64, b: u64) -> u64 { a & b }
    Or64(a: u64, b: u64) -> u64 { a | b }
    Xor64(a: u64, b: u64) -> u64 { a ^ b }
    Not64(a: u64) -> u64 { !a }
    Not16(a: u32) -> u32 { !a & 0xffff }
    Cnot16(a: u32) -> u32 { u32::from(a & 0xffff == 0) }
    Cnot32(a: u32) -> u32 { u32::from(a == 0) }
    Cnot64(a: u64) -> u64 { u64::from(a == 0) }

    // Shift amounts are unsigned 32-bit and clamped to the width.
    Shl32(a: u32, b: u32) -> u32 { if b > 31 { 0 } else { a << (b & 31) } }
    ShrU32(a: u32, b: u32) -> u32 { if b > 31 { 0 } else { a >> (b & 31) } }
    ShrS32(a: i32, b: u32) -> i32 { a >> b.min(31) }
    Shl64(a: u64, b: u32) -> u64 { if b > 63 { 0 } else { a << (b & 63) } }
    ShrU64(a: u64, b: u32) -> u64 { if b > 63 { 0 } else { a >> (b & 63) } }
    ShrS64(a: i64, b: u32) -> i64 { a >> b.min(63) }
    Shl16(a: u32, b: u32) -> u32 { if b > 15 { 0 } else { a << b & 0xffff } }
    ShrU16(a: u32, b: u32) -> u32 { if b > 15 { 0 } else { (a & 0xffff) >> b } }
    ShrS16(a: u32, b: u32) -> u32 { u32::from(((a as i16) >> b.min(15)) as u16) }
    ShfLClamp(a: u32, b: u32, c: u32) -> u32 {
        ((u64::from(b) << 32 | u64::from(a)) << c.min(32) >> 32) as u32
    }
    ShfRClamp(a: u32, b: u32, c: u32) -> u32 { ((u64::from(b) << 32 | u64::from(a)) >> c.min(32)) as u32 }
    ShfLWrap(a: u32, b: u32, c: u32) -> u32 { ((u64::from(b) << 32 | u64::from(a)) << (c & 31) >> 32) as u32 }
    ShfRWrap(a: u32, b: u32, c: u32) -> u32 { ((u64::from(b) << 32 | u64::from(a)) >> (c & 31)) as u32 }

    BfeU32(a: u32, b: u32, c: u32) -> u32 { bfe(u64::from(a), b, c, 32, false) as u32 }
    BfeS32(a: u32, b: u32, c: u32) -> u32 { bfe(u64::from(a), b, c, 32, true) as u32 }
    BfeU64(a: u64, b: u32, c: u32) -> u64 { bfe(a, b, c, 64, false) }
    BfeS64(a: u64, b: u32, c: u32) -> u64 { bfe(a, b, c, 64, true) }
    Popc32(a: u32) -> u32 { a.count_ones() }
    Popc64(a: u64) -> u32 { a.count_ones() }
    Clz32(a: u32) -> u32 { a.leading_zeros() }
    Clz64(a: u64) -> u32 { a.leading_zeros() }
    Brev32(a: u32) -> u32 { a.reverse_bits() }
    Brev64(a: u64) -> u64 { a.reverse_bits() }
    FindU32(a: u32) -> u32 { if a == 0 { u32::MAX } else { 31 - a.leading_zeros() } }
    FindS32(a: u32) -> u32 { let a = a ^ ((a as i32) >> 31) as u32; if a == 0 { u32::MAX } else { 31 - a.leading_zeros() } }
    FindU64(a: u64) -> u32 { if a == 0 { u32::MAX } else { 63 - a.leading_zeros() } }
    FindS64(a: u64) -> u32 { let a = a ^ ((a as i64) >> 63) as u64; if a == 0 { u32::MAX } else { 63 - a.leading_zeros() } }
    /// `.shiftamt`: how far to shift left so that the found bit is on top.
    FindShiftU32(a: u32) -> u32 { if a == 0 { u32::MAX } else { a.leading_zeros() } }
    FindShiftS32(a: u32) -> u32 { let a = a ^ ((a as i32) >> 31) as u32; if a == 0 { u32::MAX } else { a.leading_zeros() } }
    FindShiftU64(a: u64) -> u32 { if a == 0 { u32::MAX } else { a.leading_zeros() } }
    FindShiftS64(a: u64) -> u32 { let a = a ^ ((a as i64) >> 63) as u64; if a == 0 { u32::MAX } else { a.leading_zeros() } }
    /// `fns.b32`: the n-th set bit from a base, upwards for a positive n, downwards for a negative one.
    Fns(mask: u32, base: u32, n: i32) -> u32 { fns(mask, base, n) }
    BmskClamp(a: u32, b: u32) -> u32 {
        if a > 31 || b == 0 { 0 } else { (u32::MAX >> (32 - b.min(32))) << a }
    }
    BmskWrap(a: u32, b: u32) -> u32 {
        if b & 31 == 0 { 0 } else { (u32::MAX >> (32 - (b & 31))) << (a & 31) }
    }
    SzextClampU(a: u32, b: u32) -> u32 { if b > 31 { a } else { a & ((1 << b) - 1) } }
    SzextClampS(a: u32, b: u32) -> u32 { bfe(u64::from(a), 0, b.min(32), 32, true) as u32 }
    SzextWrapU(a: u32, b: u32) -> u32 { a & ((1u32 << (b & 31)) - 1) }
    SzextWrapS(a: u32, b: u32) -> u32 { bfe(u64::from(a), 0, b & 31, 32, true) as u32 }

    SadU32(a: u32, b: u32, c: u32) -> u32 { c.wrapping_add(a.abs_diff(b)) }
    SadS32(a: i32, b: i32, c: u32) -> u32 { c.wrapping_add(a.abs_diff(b)) }
    SadU16(a: u32, b: u32, c: u32) -> u32 { c.wrapping_add((a & 0xffff).abs_diff(b & 0xffff)) & 0xffff }
    SadS16(a: u32, b: u32, c: u32) -> u32 { c.wrapping_add(u32::from((a as i16).abs_diff(b as i16))) & 0xffff }
    SadU64(a: u64, b: u64, c: u64) -> u64 { c.wrapping_add(a.abs_diff(b)) }
    SadS64(a: i64, b: i64, c: u64) -> u64 { c.wrapping_add(a.abs_diff(b)) }

    PrmtF4e(a: u32, b: u32, c: u32) -> u32 { prmt(a, b, [0, 1, 2, 3].map(|n| n + (c & 3))) }
    PrmtB4e(a: u32, b: u32, c: u32) -> u32 { prmt(a, b, [0, 7, 6, 5].map(|n| (n + (c & 3)) & 7)) }
    PrmtRc8(a: u32, b: u32, c: u32) -> u32 { prmt(a, b, [c & 3; 4]) }
    PrmtEcl(a: u32, b: u32, c: u32) -> u32 { prmt(a, b, [0, 1, 2, 3].map(|n: u32| n.max(c & 3))) }
    PrmtEcr(a: u32, b: u32, c: u32) -> u32 { prmt(a, b, [0, 1, 2, 3].map(|n: u32| n.min(c & 3))) }
    PrmtRc16(a: u32, b: u32, c: u32) -> u32 { let n = (c & 1) * 2; prmt(a, b, [n, n + 1, n, n + 1]) }
    Prmt(a: u32, b: u32, c: u32) -> u32 { prmt(a, b, [c & 15, c >> 4 & 15, c >> 8 & 15, c >> 12 & 15]) }
}

/// An operation on the low halves of two registers and on their high halves.
#[inline(always)]
fn halves(a: u32, b: u32, of: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(of(a as u16, b as u16)) | u32::from(of((a >> 16) as u16, (b >> 16) as u16)) << 16
}

#[inline(always)]
fn bfe(a: u64, position: u32, length: u32, width: u32, signed: bool) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    if length == 0 {
        return 0;
    }
    let field = if position >= width { 0 } else { a >> position };
    if !signed {
        return if length >= 64 {
            field
        } else {
            field & ((1 << length) - 1)
        };
    }
    // The sign is the field's top bit, or the source's where the field reaches beyond it.
    let top = (position + length - 1).min(width - 1);
    let fill = if a >> top & 1 != 0 { u64::MAX } else { 0 };
    let kept = length.min(width.saturating_sub(position));
    if kept == 0 {
        return fill;
    }
    if kept >= 64 {
        return field;
    }
    let mask = (1u64 << kept) - 1;
    field & mask | fill & !mask
}

fn fns(mask: u32, base: u32, n: i32) -> u32 {
    let base = base & 31;
    if n == 0 {
        return if mask >> base & 1 != 0 { base } else { u32::MAX };
    }
    let mut left = n.unsigned_abs();
    let mut at = base as i32;
    while (0..32).contains(&at) {
        if mask >> at & 1 != 0 {
            left -= 1;
            if left == 0 {
                return at as u32;
            }
        }
        at += n.signum();
    }
    u32::MAX
}

#[inline(always)]
fn prmt(a: u32, b: u32, selectors: [u32; 4]) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let mut out = 0;
    for (n, s) in selectors.into_iter().enumerate() {
        let byte = (bytes >> ((s & 7) * 8)) as u8;
        // The selector's top bit asks for the byte's sign instead of the byte.
        let byte = if s & 8 != 0 {
            ((byte as i8) >> 7) as u8
        } else {
            byte
        };
        out |= u32::from(byte) << (n * 8);
    }
    out
}

/// Bit field insert of `a` into `b`: position in `c`, length in `e`; four sources.
#[inline(always)]
fn run_bfi<T: BitField>(c: &mut Ctx, i: &Inst) -> Flow {
    for lane in c.active() {
        let (a, b) = (c.lane::<T>(i.a, lane), c.lane::<T>(i.b, lane));
        let (position, length) = (c.lane::<u32>(i.c, lane) & 0xff, c.lane::<u32>(i.e, lane) & 0xff);
        c.put_lane(i.d, lane, T::insert(a, b, position, length));
    }
    Flow::Next
}

pub(crate) trait BitField: super::ctx::Lane {
    fn insert(a: Self, b: Self, position: u32, length: u32) -> Self;
}

impl BitField for u32 {
    #[inline(always)]
    fn insert(a: u32, b: u32, position: u32, length: u32) -> u32 {
        if length == 0 || position > 31 {
            return b;
        }
        let mask = (u32::MAX >> (32 - length.min(32))) << position;
        b & !mask | a << position & mask
    }
}

impl BitField for u64 {
    #[inline(always)]
    fn insert(a: u64, b: u64, position: u32, length: u32) -> u64 {
        if length == 0 || position > 63 {
            return b;
        }
        let mask = (u64::MAX >> (64 - length.min(64))) << position;
        b & !mask | a << position & mask
    }
}

/// `lop3` by its table in `aux`: bit `4a + 2b + c` of it is the result.
#[inline(always)]
fn run_lop3<O: super::ctx::Lane>(c: &mut Ctx, i: &Inst) -> Flow {
    let table: [u32; 8] = std::array::from_fn(|n| 0u32.wrapping_sub(i.aux >> n & 1));
    let full = c.full();
    for k in 0..CHUNKS {
        let (x, y, z) = (
            c.chunk::<u32>(i.a, k),
            c.chunk::<u32>(i.b, k),
            c.chunk::<u32>(i.c, k),
        );
        let mut d = [0u32; CHUNK];
        for n in 0..CHUNK {
            let (x, y, z) = (x[n], y[n], z[n]);
            let high = x & (y & (z & table[7] | !z & table[6]) | !y & (z & table[5] | !z & table[4]));
            let low = !x & (y & (z & table[3] | !z & table[2]) | !y & (z & table[1] | !z & table[0]));
            d[n] = high | low;
        }
        if full {
            c.put_all(i.d, k, d);
        } else {
            c.put_active(i.d, k, d);
        }
    }
    Flow::Next
}

/// Which bytes or halves `dp4a` and `dp2a` multiply: bits of `aux`.
pub(crate) const DOT_A_SIGNED: u32 = 1;
pub(crate) const DOT_B_SIGNED: u32 = 2;
/// `dp2a.hi`: the upper two bytes of b.
pub(crate) const DOT_HIGH: u32 = 4;
/// Two halves of a instead of four bytes.
pub(crate) const DOT_TWO: u32 = 8;

pub(crate) fn dot(c: &mut Ctx, i: &Inst) -> Flow {
    for lane in c.active() {
        let (a, b) = (c.lane::<u32>(i.a, lane), c.lane::<u32>(i.b, lane));
        let mut sum = c.lane::<u32>(i.c, lane);
        let byte = |v: u32, n: u32, signed: bool| {
            let byte = (v >> (n * 8)) as u8;
            if signed {
                i32::from(byte as i8)
            } else {
                i32::from(byte)
            }
        };
        let (sa, sb) = (i.aux & DOT_A_SIGNED != 0, i.aux & DOT_B_SIGNED != 0);
        if i.aux & DOT_TWO != 0 {
            for n in 0..2 {
                let half = (a >> (n * 16)) as u16;
                let half = if sa {
                    i32::from(half as i16)
                } else {
                    i32::from(half)
                };
                let of_b = if i.aux & DOT_HIGH != 0 { n + 2 } else { n };
                sum = sum.wrapping_add(half.wrapping_mul(byte(b, of_b, sb)) as u32);
            }
        } else {
            for n in 0..4 {
                sum = sum.wrapping_add((byte(a, n, sa) * byte(b, n, sb)) as u32);
            }
        }
        c.put_lane(i.d, lane, sum);
    }
    Flow::Next
}

/// What a carry-chain instruction does: bits of `aux`. The carry flags are the predicate at `e`.
pub(crate) const CARRY_SUBTRACT: u32 = 1;
pub(crate) const CARRY_IN: u32 = 2;
pub(crate) const CARRY_OUT: u32 = 4;
pub(crate) const CARRY_WIDE: u32 = 8;
/// Multiply a and b first, and add `c`: low half, or high half.
pub(crate) const CARRY_MUL_LO: u32 = 16;
pub(crate) const CARRY_MUL_HI: u32 = 32;
pub(crate) const CARRY_SIGNED: u32 = 64;

pub(crate) fn carry(c: &mut Ctx, i: &Inst) -> Flow {
    let flags = c.pred(i.e);
    let mut out = 0u32;
    let wide = i.aux & CARRY_WIDE != 0;
    let width = if wide { 64 } else { 32 };
    for lane in c.active() {
        let read = |slot: u32| {
            if wide {
                c.lane::<u64>(slot, lane)
            } else {
                u64::from(c.lane::<u32>(slot, lane))
            }
        };
        let (mut a, mut b) = (read(i.a), read(i.b));
        if i.aux & (CARRY_MUL_LO | CARRY_MUL_HI) != 0 {
            let signed = |v: u64| {
                if wide {
                    i128::from(v as i64)
                } else {
                    i128::from(v as u32 as i32)
                }
            };
            let product = if i.aux & CARRY_SIGNED != 0 {
                (signed(a) * signed(b)) as u128
            } else {
                u128::from(a) * u128::from(b)
            };
            let shifted = if i.aux & CARRY_MUL_HI != 0 {
                product >> width
            } else {
                product
            };
            a = if wide {
                shifted as u64
            } else {
                u64::from(shifted as u32)
            };
            b = read(i.c);
        }
        let carry_in = u128::from(i.aux & CARRY_IN != 0 && flags >> lane & 1 != 0);
        let sum = if i.aux & CARRY_SUBTRACT != 0 {
            u128::from(a).wrapping_sub(u128::from(b)).wrapping_sub(carry_in)
        } else {
            u128::from(a) + u128::from(b) + carry_in
        };
        // Of a sum the bit above is the carry, of a difference the borrow.
        out |= ((sum >> width) as u32 & 1) << lane;
        if wide {
            c.put_lane(i.d, lane, sum as u64);
        } else {
            c.put_lane(i.d, lane, sum as u32);
        }
    }
    if i.aux & CARRY_OUT != 0 {
        c.put_pred(i.e, out);
    }
    Flow::Next
}

vectorised!(pick_bfi, run_bfi, BitField);
vectorised!(pick_lop3, run_lop3, super::ctx::Lane);

pub(crate) fn bfi32(set: VectorSet) -> Exec {
    pick_bfi::<u32>(set)
}

pub(crate) fn bfi64(set: VectorSet) -> Exec {
    pick_bfi::<u64>(set)
}

pub(crate) fn lop3(set: VectorSet) -> Exec {
    pick_lop3::<u32>(set)
}
