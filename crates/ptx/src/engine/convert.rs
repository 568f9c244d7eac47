//! `cvt`. The pairs that compilers emit all the time have vector loops; the rest goes lane by lane through `rounding`.

use super::alu_float::{FTZ, SAT, give};
use super::compare::flush;
use super::ctx::Ctx;
use super::map::ops;
use crate::inst::{Flow, Inst};
use crate::rounding::{self, Format, Mode};
use crate::types::Ty;

ops! {
    Widen(a: u32) -> u64 { u64::from(a) }
    WidenS(a: i32) -> i64 { i64::from(a) }
    Narrow(a: u64) -> u32 { a as u32 }
    Take8(a: u32) -> u32 { a & 0xff }
    Take16(a: u32) -> u32 { a & 0xffff }
    Take8S(a: u32) -> i32 { i32::from(a as i8) }
    Take16S(a: u32) -> i32 { i32::from(a as i16) }
    F32FromS32(a: i32) -> f32 { a as f32 }
    F32FromU32(a: u32) -> f32 { a as f32 }
    S32FromF32(a: f32) -> i32 { a as i32 }
    U32FromF32(a: f32) -> u32 { a as u32 }
    F64FromF32<const M: u32>(a: f32) -> f64 { f64::from(if M & FTZ != 0 { flush::<true>(a) } else { a }) }
    F32FromF64<const M: u32>(a: f64) -> f32 { give::<M>(a as f32) }
    F64FromS32(a: i32) -> f64 { f64::from(a) }
    F64FromU32(a: u32) -> f64 { f64::from(a) }
    F64FromS64(a: i64) -> f64 { a as f64 }
    F64FromU64(a: u64) -> f64 { a as f64 }
    // A NaN gives the top bit where a 64-bit type is on either side, zero elsewhere.
    S32FromF64(a: f64) -> i32 { if a.is_nan() { i32::MIN } else { a as i32 } }
    U32FromF64(a: f64) -> u32 { if a.is_nan() { 1 << 31 } else { a as u32 } }
    S64FromF64(a: f64) -> i64 { if a.is_nan() { i64::MIN } else { a as i64 } }
    /// `cvt.sat.f32.f32` and `cvt.ftz.f32.f32`.
    SameF32<const M: u32>(a: f32) -> f32 { give::<M>(if M & FTZ != 0 { flush::<true>(a) } else { a }) }
    FloorF32(a: f32) -> f32 { quiet32(a.floor()) }
    CeilF32(a: f32) -> f32 { quiet32(a.ceil()) }
    TruncF32(a: f32) -> f32 { quiet32(a.trunc()) }
    RoundF32(a: f32) -> f32 { quiet32(a.round_ties_even()) }
    FloorF64(a: f64) -> f64 { quiet64(a.floor()) }
    CeilF64(a: f64) -> f64 { quiet64(a.ceil()) }
    TruncF64(a: f64) -> f64 { quiet64(a.trunc()) }
    RoundF64(a: f64) -> f64 { quiet64(a.round_ties_even()) }
}

/// A NaN as an instruction gives it: with the bit set that says that it is quiet. Functions that stand in for instructions of
/// newer processors hand one on as it is.
#[inline(always)]
fn quiet32(value: f32) -> f32 {
    f32::from_bits(value.to_bits() | u32::from(value.is_nan()) << 22)
}

#[inline(always)]
fn quiet64(value: f64) -> f64 {
    f64::from_bits(value.to_bits() | u64::from(value.is_nan()) << 51)
}

/// The types and modes of a conversion, in `Inst::imm`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conversion {
    pub from: Ty,
    pub to: Ty,
    pub mode: Mode,
    pub sat: bool,
    pub ftz: bool,
    pub relu: bool,
    /// `.rni` …: to an integral value.
    pub integral: bool,
    pub from_wide: bool,
    pub to_wide: bool,
}

const TYPES: [Ty; 12] = [
    Ty::U8,
    Ty::U16,
    Ty::U32,
    Ty::U64,
    Ty::S8,
    Ty::S16,
    Ty::S32,
    Ty::S64,
    Ty::F16,
    Ty::Bf16,
    Ty::F32,
    Ty::F64,
];
const MODES: [Mode; 5] = [Mode::Nearest, Mode::NearestAway, Mode::Zero, Mode::Down, Mode::Up];

impl Conversion {
    /// As one number; `None` for types that do not convert.
    pub fn encode(self) -> Option<u64> {
        let ty = |t: Ty| TYPES.iter().position(|x| *x == t);
        let mode = MODES.iter().position(|m| *m == self.mode)?;
        let flags = [
            self.sat,
            self.ftz,
            self.relu,
            self.integral,
            self.from_wide,
            self.to_wide,
        ];
        let flags = flags
            .iter()
            .enumerate()
            .fold(0, |m, (n, f)| m | u64::from(*f) << n);
        Some(ty(self.from)? as u64 | (ty(self.to)? as u64) << 4 | (mode as u64) << 8 | flags << 12)
    }

    fn decode(word: u64) -> Conversion {
        let flag = |n: u64| word >> (12 + n) & 1 != 0;
        Conversion {
            from: TYPES[(word & 15) as usize % TYPES.len()],
            to: TYPES[(word >> 4 & 15) as usize % TYPES.len()],
            mode: MODES[(word >> 8 & 15) as usize % MODES.len()],
            sat: flag(0),
            ftz: flag(1),
            relu: flag(2),
            integral: flag(3),
            from_wide: flag(4),
            to_wide: flag(5),
        }
    }
}

pub(crate) fn format(ty: Ty) -> Option<Format> {
    Some(match ty {
        Ty::F16 => rounding::F16,
        Ty::Bf16 => rounding::BF16,
        Ty::F32 => rounding::F32,
        Ty::F64 => rounding::F64,
        _ => return None,
    })
}

/// Cuts a register's bits to a type: the integer's value.
fn integer(bits: u64, ty: Ty) -> i128 {
    match ty {
        Ty::U8 => i128::from(bits as u8),
        Ty::U16 => i128::from(bits as u16),
        Ty::U32 => i128::from(bits as u32),
        Ty::U64 => i128::from(bits),
        Ty::S8 => i128::from(bits as i8),
        Ty::S16 => i128::from(bits as i16),
        Ty::S32 => i128::from(bits as i32),
        _ => i128::from(bits as i64),
    }
}

fn clamp(value: i128, ty: Ty) -> i128 {
    let bits = ty.bytes() * 8;
    if ty.signed() {
        value.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    } else {
        value.clamp(0, (1 << bits) - 1)
    }
}

fn flushed(bits: u64, ty: Ty) -> u64 {
    if ty == Ty::F32 {
        u64::from(flush::<true>(f32::from_bits(bits as u32)).to_bits())
    } else {
        bits
    }
}

/// One lane's conversion: register bits to register bits.
pub(crate) fn convert(bits: u64, how: &Conversion) -> u64 {
    let bits = if how.ftz { flushed(bits, how.from) } else { bits };
    match (format(how.from), format(how.to)) {
        (None, None) => {
            let value = integer(bits, how.from);
            let value = if how.sat { clamp(value, how.to) } else { value };
            // Cut to the type, then extended to the register by the type's sign.
            integer(value as u64, how.to) as u64
        }
        (None, Some(to)) => {
            let out = rounding::from_integer(integer(bits, how.from), to, how.mode);
            finish(out, how)
        }
        (Some(from), None) => {
            let bits = bits & mask(how.from);
            // A NaN gives the top bit where a 64-bit type is on either side, zero elsewhere; all else is clamped.
            match rounding::to_integer(bits, from, how.mode) {
                Some(value) => clamp(value, how.to) as u64,
                None if how.from == Ty::F64 || how.to.bytes() == 8 => {
                    integer(1 << (how.to.bytes() * 8 - 1), how.to) as u64
                }
                None => 0,
            }
        }
        (Some(from), Some(to)) => {
            let bits = bits & mask(how.from);
            let out = if from == to && how.integral {
                rounding::to_integral(bits, to, how.mode)
            } else if from == to {
                bits
            } else {
                rounding::convert(bits, from, to, how.mode)
            };
            finish(out, how)
        }
    }
}

fn mask(ty: Ty) -> u64 {
    if ty.bytes() == 8 {
        u64::MAX
    } else {
        (1 << (ty.bytes() * 8)) - 1
    }
}

/// `.sat`, `.relu` and `.ftz` of a floating-point result.
fn finish(out: u64, how: &Conversion) -> u64 {
    let Some(to) = format(how.to) else { return out };
    let out = if how.ftz { flushed(out, how.to) } else { out };
    let negative = out >> (how.to.bytes() * 8 - 1) & 1 != 0;
    let one = rounding::from_integer(1, to, Mode::Nearest);
    match rounding::unpack(out, to) {
        rounding::Parts::Nan if how.sat => 0,
        rounding::Parts::Nan => out,
        _ if negative && (how.sat || how.relu) => 0,
        _ if how.sat && out > one => one,
        _ => out,
    }
}

pub(crate) fn slow(c: &mut Ctx, i: &Inst) -> Flow {
    let how = Conversion::decode(i.imm);
    for lane in c.active() {
        let bits = if how.from_wide {
            c.lane::<u64>(i.a, lane)
        } else {
            u64::from(c.lane::<u32>(i.a, lane))
        };
        let out = convert(bits, &how);
        if how.to_wide {
            c.put_lane(i.d, lane, out);
        } else {
            c.put_lane(i.d, lane, out as u32);
        }
    }
    Flow::Next
}

/// `cvt.f16x2.f32 d, a, b`: a above, b below. `imm` is the conversion of one half.
pub(crate) fn pair(c: &mut Ctx, i: &Inst) -> Flow {
    let how = Conversion::decode(i.imm);
    for lane in c.active() {
        let high = convert(u64::from(c.lane::<u32>(i.a, lane)), &how);
        let low = convert(u64::from(c.lane::<u32>(i.b, lane)), &how);
        c.put_lane(i.d, lane, (high << 16 | low & 0xffff) as u32);
    }
    Flow::Next
}

/// Directed rounding of f32 and f64 arithmetic: `aux` is the operation (0 add, 1 sub, 2 mul, 3 fma, 4 div, 5 rcp,
/// 6 sqrt), its mode times 16, `WIDE64`, `FTZ` and `SAT` shifted by 16.
pub(crate) const WIDE64: u32 = 1 << 12;

pub(crate) fn directed_aux(op: &str, mode: Mode, wide: bool, ftz_sat: u32) -> Option<u32> {
    let op = ["add", "sub", "mul", "fma", "div", "rcp", "sqrt", "mad"]
        .iter()
        .position(|o| *o == op)?;
    let op = if op == 7 { 3 } else { op as u32 };
    let mode = MODES.iter().position(|m| *m == mode)? as u32;
    Some(op | mode << 4 | if wide { WIDE64 } else { 0 } | ftz_sat << 16)
}

pub(crate) fn directed(c: &mut Ctx, i: &Inst) -> Flow {
    let wide = i.aux & WIDE64 != 0;
    let mode = MODES[(i.aux >> 4 & 15) as usize % MODES.len()];
    let (format, sign) = if wide {
        (rounding::F64, 1u64 << 63)
    } else {
        (rounding::F32, 1u64 << 31)
    };
    let flags = i.aux >> 16;
    for lane in c.active() {
        let read = |slot: u32| {
            if slot == super::control::NONE {
                return 0;
            }
            if wide {
                return c.lane::<u64>(slot, lane);
            }
            let bits = u64::from(c.lane::<u32>(slot, lane));
            if flags & FTZ != 0 {
                flushed(bits, Ty::F32)
            } else {
                bits
            }
        };
        let (x, y, z) = (read(i.a), read(i.b), read(i.c));
        let out = match i.aux & 15 {
            0 => rounding::add(x, y, format, mode),
            1 => rounding::add(x, y ^ sign, format, mode),
            2 => rounding::mul(x, y, format, mode),
            3 => rounding::fma(x, y, z, format, mode),
            4 => rounding::div(x, y, format, mode),
            5 => rounding::div(rounding::from_integer(1, format, mode), x, format, mode),
            _ => rounding::sqrt(x, format, mode),
        };
        if wide {
            c.put_lane(i.d, lane, out);
        } else {
            let out = f32::from_bits(out as u32);
            let out = match flags & 3 {
                0 => out,
                FTZ => give::<FTZ>(out),
                SAT => give::<SAT>(out),
                _ => give::<{ FTZ | SAT }>(out),
            };
            c.put_lane(i.d, lane, out);
        }
    }
    Flow::Next
}
