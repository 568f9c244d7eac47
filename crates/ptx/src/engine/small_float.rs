//! Conversions from and to the floats of 8 bits, two in a register, and to `.tf32`.

use super::ctx::Ctx;
use super::half::{Binary16, Format, narrow};
use crate::inst::{Flow, Inst};
use crate::rounding::Mode;

/// Of `aux`: the format is e5m2, and e4m3 otherwise.
pub(crate) const E5M2: u32 = 1;
/// Of `aux`: negative results become zero.
pub(crate) const RELU: u32 = 2;
/// Of `aux`: what is too large becomes the largest finite number.
pub(crate) const FINITE: u32 = 4;
/// Of `aux`: the rounding of `.tf32`, two bits: 0 to nearest even, 1 to nearest away from zero, 2 towards zero.
pub(crate) const ROUNDING_SHIFT: u32 = 4;

/// NaN in both formats.
const QUIET: u32 = 0x7f;

/// To nearest even, with the largest finite number for what is above it.
fn encode(x: f64, flags: u32) -> u32 {
    let (fraction, least, most) = if flags & E5M2 != 0 {
        (2, -14, 0x7b)
    } else {
        (3, -6, 0x7e)
    };
    if x.is_nan() {
        return QUIET;
    }
    if x.is_sign_negative() && flags & RELU != 0 {
        return 0;
    }
    // Above the largest number of either format, and far below what would overflow here.
    let magnitude = x.abs().min(1e6);
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(least);
    let unit = f64::from_bits(((exponent - fraction + 1023) as u64) << 52);
    let steps = (magnitude / unit).round_ties_even() as i32;
    // A carry out of the fraction raises the exponent, as it should.
    let code = ((exponent - least) << fraction) + steps;
    code.min(most) as u32 | u32::from(x.is_sign_negative()) << 7
}

/// As bits of binary16, which holds every number of both formats.
pub(super) fn decode(code: u32, flags: u32) -> u32 {
    if flags & E5M2 != 0 {
        let wide = code << 8;
        return if wide & 0x7fff > 0x7c00 { 0x7fff } else { wide };
    }
    if code & 0x7f == 0x7f {
        return 0x7fff;
    }
    let (field, fraction) = (code >> 3 & 15, f64::from(code & 7));
    let magnitude = if field == 0 {
        fraction / 512.0
    } else {
        (8.0 + fraction) * f64::from(1u32 << field) / 1024.0
    };
    u32::from(narrow::<Binary16>(magnitude)) | (code & 0x80) << 8
}

/// `cvt.e4m3x2.f32 d, a, b`: a above, b below.
pub(crate) fn from_singles(c: &mut Ctx, i: &Inst) -> Flow {
    for lane in c.active() {
        let high = encode(f64::from(c.lane::<f32>(i.a, lane)), i.aux);
        let low = encode(f64::from(c.lane::<f32>(i.b, lane)), i.aux);
        c.put_lane(i.d, lane, high << 8 | low);
    }
    Flow::Next
}

/// `cvt.e4m3x2.f16x2 d, a`.
pub(crate) fn from_halves(c: &mut Ctx, i: &Inst) -> Flow {
    for lane in c.active() {
        let a = c.lane::<u32>(i.a, lane);
        let [high, low] = [a >> 16, a].map(|half| encode(Binary16::widen(half as u16), i.aux));
        c.put_lane(i.d, lane, high << 8 | low);
    }
    Flow::Next
}

/// `cvt.f16x2.e4m3x2 d, a`.
pub(crate) fn to_halves(c: &mut Ctx, i: &Inst) -> Flow {
    for lane in c.active() {
        let a = c.lane::<u32>(i.a, lane);
        let [high, low] = [a >> 8 & 0xff, a & 0xff].map(|code| {
            let half = decode(code, i.aux);
            let negative = half & 0x8000 != 0;
            if negative && i.aux & RELU != 0 { 0 } else { half }
        });
        c.put_lane(i.d, lane, high << 16 | low);
    }
    Flow::Next
}

/// The rounding of `.tf32` in `aux`.
pub(crate) fn tf32_rounding(mode: Mode) -> Option<u32> {
    Some(match mode {
        Mode::Nearest => 0,
        Mode::NearestAway => 1 << ROUNDING_SHIFT,
        Mode::Zero => 2 << ROUNDING_SHIFT,
        Mode::Down | Mode::Up => return None,
    })
}

/// `cvt.tf32.f32`: a single with ten bits of fraction, the 13 below them zero.
pub(crate) fn to_tf32(c: &mut Ctx, i: &Inst) -> Flow {
    for lane in c.active() {
        let bits = c.lane::<u32>(i.a, lane);
        let (sign, magnitude) = (bits & 1 << 31, bits & 0x7fff_ffff);
        let rounded = match i.aux >> ROUNDING_SHIFT & 3 {
            0 => magnitude + 0xfff + (magnitude >> 13 & 1),
            1 => magnitude + 0x1000,
            _ => magnitude,
        } & !0x1fff;
        let out = if magnitude > 0x7f80_0000 {
            0x7fff_ffff
        } else if sign != 0 && i.aux & RELU != 0 {
            0
        } else if rounded >= 0x7f80_0000 && i.aux & FINITE != 0 {
            sign | 0x7f7f_e000
        } else {
            sign | rounded
        };
        c.put_lane(i.d, lane, out);
    }
    Flow::Next
}
