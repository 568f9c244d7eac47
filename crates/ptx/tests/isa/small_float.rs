//! Floats of 8 bits and `.tf32`: the model searches all numbers of the format for the nearest.

use crate::instruction::instruction;
use crate::types::Ty::*;
use crate::want::{Want, value};

/// A number's value by the format's definition; `None` for infinities and NaN.
fn small(code: u64, e5m2: bool) -> Option<f64> {
    let (bits, bias) = if e5m2 { (2, 15) } else { (3, 7) };
    let (field, fraction) = ((code & 0x7f) >> bits, code & ((1 << bits) - 1));
    if e5m2 && field == 31 || code & 0x7f == 0x7f {
        return None;
    }
    let fraction = fraction as f64 / f64::from(1 << bits);
    let magnitude = match field {
        0 => fraction * 2f64.powi(1 - bias),
        _ => (1.0 + fraction) * 2f64.powi(field as i32 - bias),
    };
    Some(if code & 0x80 != 0 { -magnitude } else { magnitude })
}

/// The code of the nearest number, the even one of two; beyond the largest, the largest.
fn nearest(x: f64, e5m2: bool, relu: bool) -> u64 {
    if x.is_nan() {
        return 0x7f;
    }
    if relu && x.is_sign_negative() {
        return 0;
    }
    let finite = (0..0x80).filter_map(|code| Some((code, small(code, e5m2)?)));
    let largest = if e5m2 { 57344.0 } else { 448.0 };
    let magnitude = x.abs().min(largest);
    let (code, _) = finite
        .min_by(|(a, x), (b, y)| {
            let distance = |v: &f64| (v - magnitude).abs();
            distance(x).total_cmp(&distance(y)).then((a & 1).cmp(&(b & 1)))
        })
        .unwrap();
    code | if x.is_sign_negative() { 0x80 } else { 0 }
}

#[test]
fn to_eight_bits() {
    for (name, e5m2) in [("e4m3x2", false), ("e5m2x2", true)] {
        for (modifier, relu) in [("", false), (".relu", true)] {
            let text = format!("cvt.rn.satfinite{modifier}.{name}.f32 {{d}}, {{a}}, {{b}};");
            instruction(text, &[B16], &[F32, F32])
                .bits(|v| nearest(value(F32, v[0]), e5m2, relu) << 8 | nearest(value(F32, v[1]), e5m2, relu));
            let text = format!("cvt.rn.satfinite{modifier}.{name}.f16x2 {{d}}, {{a}};");
            instruction(text, &[B16], &[B32]).registers_only().bits(|v| {
                let half = |bits: u64| nearest(value(F16, bits & 0xffff), e5m2, relu);
                half(v[0] >> 16) << 8 | half(v[0])
            });
        }
    }
}

#[test]
fn from_eight_bits() {
    for (name, e5m2) in [("e4m3x2", false), ("e5m2x2", true)] {
        let text = format!("cvt.rn.f16x2.{name} {{d}}, {{a}};");
        instruction(text, &[B32], &[B16]).registers_only().check_all(|v| {
            let half = |code: u64| match small(code, e5m2) {
                // Every number of either format is one of binary16: search it.
                Some(x) => (0..0x1_0000)
                    .find(|h| value(F16, *h).to_bits() == x.to_bits())
                    .unwrap(),
                None if e5m2 && code & 0x7f == 0x7c => code << 8,
                None => 0x7fff,
            };
            vec![Want::Bits(half(v[0] >> 8 & 0xff) << 16 | half(v[0] & 0xff))]
        });
    }
}

#[test]
fn to_tf32() {
    for (rounding, relu) in [("rn", false), ("rna", false), ("rz", false), ("rn", true)] {
        let modifier = if relu { ".relu" } else { "" };
        instruction(
            format!("cvt.{rounding}{modifier}.tf32.f32 {{d}}, {{a}};"),
            &[B32],
            &[F32],
        )
        .check(|v| {
            let bits = v[0] as u32;
            let x = f32::from_bits(bits);
            if x.is_nan() {
                return Want::Bits(0x7fff_ffff);
            }
            if relu && x.is_sign_negative() {
                return Want::Bits(0);
            }
            // In multiples of the step between numbers of this exponent.
            let below = bits & !0x1fff;
            let rest = bits & 0x1fff;
            let up = match rounding {
                "rna" => rest >= 0x1000,
                "rz" => false,
                _ => rest > 0x1000 || rest == 0x1000 && below & 0x2000 != 0,
            };
            Want::Bits(u64::from(if up { below + 0x2000 } else { below }))
        });
    }
    instruction("cvt.rna.satfinite.tf32.f32 {d}, {a};", &[B32], &[F32]).check(|v| match v[0] as u32 {
        0x7f7f_ffff | 0x7f80_0000 => Want::Bits(0x7f7f_e000),
        _ => Want::Open,
    });
}
