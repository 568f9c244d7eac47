//! Minimum and maximum of floats: the rules for NaN, zeros and denormals.

use crate::instruction::instruction;
use crate::soft::{float, flushed};
use crate::types::Ty::{self, *};
use crate::want::{Want, value};

/// A NaN loses to a number unless `nan` says it wins; -0.0 lies below +0.0.
pub fn extreme(ty: Ty, least: bool, nan: bool, a: u64, b: u64) -> Want {
    let (x, y) = (value(ty, a), value(ty, b));
    match (x.is_nan(), y.is_nan()) {
        (true, true) => return Want::Nan,
        (true, _) | (_, true) if nan => return Want::Nan,
        (true, false) => return float(ty, b),
        (false, true) => return float(ty, a),
        _ => {}
    }
    let below = x.total_cmp(&y).is_lt();
    float(ty, if below == least { a } else { b })
}

#[test]
fn min_and_max() {
    for ty in [F32, F64] {
        for (name, least) in [("min", true), ("max", false)] {
            instruction(
                format!("{name}.{} {{d}}, {{a}}, {{b}};", ty.name()),
                &[ty],
                &[ty, ty],
            )
            .check(|v| extreme(ty, least, false, v[0], v[1]));
        }
    }
}

#[test]
fn min_and_max_of_singles_with_modifiers() {
    for (name, least) in [("min", true), ("max", false)] {
        for (modifier, ftz, nan) in [
            (".ftz", true, false),
            (".NaN", false, true),
            (".ftz.NaN", true, true),
        ] {
            let flush = |bits: u64| if ftz { flushed(F32, bits) } else { bits };
            instruction(
                format!("{name}{modifier}.f32 {{d}}, {{a}}, {{b}};"),
                &[F32],
                &[F32, F32],
            )
            .check(|v| extreme(F32, least, nan, flush(v[0]), flush(v[1])));
        }
    }
}

/// `.xorsign.abs` compares magnitudes and multiplies the signs; a third operand is another step.
#[test]
fn min_and_max_of_magnitudes_and_of_three() {
    let magnitude = |bits: u64| bits & 0x7fff_ffff;
    for (name, least) in [("min", true), ("max", false)] {
        instruction(
            format!("{name}.xorsign.abs.f32 {{d}}, {{a}}, {{b}};"),
            &[F32],
            &[F32, F32],
        )
        .check(
            |v| match extreme(F32, least, false, magnitude(v[0]), magnitude(v[1])) {
                Want::Bits(bits) => Want::Bits(bits | (v[0] ^ v[1]) & 1 << 31),
                other => other,
            },
        );
        instruction(
            format!("{name}.f32 {{d}}, {{a}}, {{b}}, {{c}};"),
            &[F32],
            &[F32, F32, F32],
        )
        .check(|v| match extreme(F32, least, false, v[0], v[1]) {
            Want::Bits(bits) => extreme(F32, least, false, bits, v[2]),
            _ => float(F32, v[2]),
        });
    }
}
