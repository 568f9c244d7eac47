//! Integer arithmetic as the ISA defines it, on values widened to 128 bits.

use crate::types::Ty;
use crate::want::Want;

/// `value` cut to the width of `ty`.
pub fn cut(ty: Ty, value: i128) -> u64 {
    value as u64 & ty.mask()
}

/// `value` clamped to what `ty` can hold.
pub fn clamped(ty: Ty, value: i128) -> u64 {
    let (least, most) = ty.span();
    cut(ty, value.clamp(least, most))
}

/// The upper half of a product of two values of `ty`, sign kept.
pub fn upper(ty: Ty, a: u64, b: u64) -> i128 {
    if ty.signed() || ty.bits() < 64 {
        (ty.number(a) * ty.number(b)) >> ty.bits()
    } else {
        ((u128::from(a) * u128::from(b)) >> 64) as i128
    }
}

/// Quotient; by zero the ISA leaves it open.
pub fn quotient(ty: Ty, a: u64, b: u64) -> Want {
    match ty.number(b) {
        0 => Want::Open,
        divisor => Want::Bits(cut(ty, ty.number(a) / divisor)),
    }
}

/// Remainder, with the sign of the dividend; by zero the ISA leaves it open.
pub fn remainder(ty: Ty, a: u64, b: u64) -> Want {
    match ty.number(b) {
        0 => Want::Open,
        divisor => Want::Bits(cut(ty, ty.number(a) % divisor)),
    }
}

/// Bit-field extract: `length` bits from `position`, each its low byte; signed types repeat the field's top bit.
pub fn extract(ty: Ty, a: u64, position: u64, length: u64) -> u64 {
    let (position, length) = (position as u32 & 0xff, length as u32 & 0xff);
    let top = ty.bits() - 1;
    // Beyond the value itself only its sign repeats; an unsigned value has none.
    let fill = ty.signed() && length != 0 && a >> (position + length - 1).min(top) & 1 == 1;
    let mut result = 0;
    for bit in 0..=top {
        let set = match bit < length && position + bit <= top {
            true => a >> (position + bit) & 1 == 1,
            false => fill,
        };
        result |= u64::from(set) << bit;
    }
    result
}

/// Bit-field insert: the low `length` bits of `a` into `b` at `position`.
pub fn insert(ty: Ty, a: u64, b: u64, position: u64, length: u64) -> u64 {
    let (position, length) = (position as u32 & 0xff, length as u32 & 0xff);
    let mut result = b;
    for bit in 0..length {
        if position + bit < ty.bits() {
            let place = position + bit;
            result = result & !(1 << place) | (a >> bit & 1) << place;
        }
    }
    result
}

/// Number of the most significant bit that is not a copy of the sign; all ones when there is none.
pub fn find(ty: Ty, a: u64, shift_amount: bool) -> u64 {
    let a = if ty.signed() && ty.number(a) < 0 {
        !a & ty.mask()
    } else {
        a
    };
    match a.checked_ilog2() {
        None => u64::from(u32::MAX),
        Some(place) if shift_amount => u64::from(ty.bits() - 1 - place),
        Some(place) => u64::from(place),
    }
}

/// Shift, with amounts past the width emptying the value (or leaving its sign).
pub fn shift_right(ty: Ty, a: u64, by: u64) -> u64 {
    cut(ty, ty.number(a) >> by.min(127))
}

pub fn shift_left(ty: Ty, a: u64, by: u64) -> u64 {
    if by >= u64::from(ty.bits()) {
        0
    } else {
        (a << by) & ty.mask()
    }
}

/// The upper or lower word of `high:low` shifted, the amount wrapped or clamped at 32.
pub fn funnel(left: bool, wrap: bool, low: u64, high: u64, by: u64) -> u64 {
    let by = if wrap { by & 31 } else { by.min(32) };
    let both = high << 32 | low;
    // 64 bits: a shift by 32 is still in range.
    if left {
        (both << by) >> 32
    } else {
        (both >> by) & 0xffff_ffff
    }
}

/// Byte permute. Without a mode: four selectors of a nibble each, whose top bit repeats the byte's sign.
pub fn permute(mode: &str, a: u64, b: u64, control: u64) -> u64 {
    let byte = |number: u64| ((b << 32 | a) >> (8 * (number & 7))) & 0xff;
    let turn = control & 3;
    let picks: [u64; 4] = match mode {
        "f4e" => [0, 1, 2, 3].map(|k| turn + k),
        "b4e" => [0u64, 1, 2, 3].map(|k| turn.wrapping_sub(k) & 7),
        "rc8" => [turn; 4],
        "ecl" => [0, 1, 2, 3].map(|k: u64| k.max(turn)),
        "ecr" => [0, 1, 2, 3].map(|k: u64| k.min(turn)),
        "rc16" => {
            if turn & 1 == 0 {
                [0, 1, 0, 1]
            } else {
                [2, 3, 2, 3]
            }
        }
        _ => {
            let picked = [0, 1, 2, 3].map(|k| {
                let selector = control >> (4 * k);
                let byte = byte(selector);
                if selector & 8 == 0 {
                    byte
                } else if byte & 0x80 != 0 {
                    0xff
                } else {
                    0
                }
            });
            return picked.iter().rev().fold(0, |word, byte| word << 8 | byte);
        }
    };
    picks.iter().rev().fold(0, |word, pick| word << 8 | byte(*pick))
}
