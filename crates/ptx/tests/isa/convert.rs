//! cvt: every pair of types, every rounding, with and without saturation and flushing.

use rustc_apfloat::Round;

use crate::instruction::instruction;
use crate::integer_model::{clamped, cut};
use crate::soft::{self, ROUNDINGS, flushed};
use crate::types::Ty::{self, *};
use crate::want::{Want, value};

const INTEGERS: [Ty; 8] = [U8, S8, U16, S16, U32, S32, U64, S64];
const FLOATS: [Ty; 3] = [F16, F32, F64];

/// `rni` and its like round to a whole number.
fn integral() -> impl Iterator<Item = (String, Round)> {
    ROUNDINGS
        .into_iter()
        .map(|(name, round)| (format!("{name}i"), round))
}

#[test]
fn between_integers() {
    for from in INTEGERS {
        for to in INTEGERS {
            let (d, a) = (to.name(), from.name());
            instruction(format!("cvt.{d}.{a} {{d}}, {{a}};"), &[to], &[from])
                .bits(|v| cut(to, from.number(v[0])));
            if !holds_all_of(to, from) {
                instruction(format!("cvt.sat.{d}.{a} {{d}}, {{a}};"), &[to], &[from])
                    .bits(|v| clamped(to, from.number(v[0])));
            }
        }
    }
}

/// Whether each value of one type is one of the other's: there the PTX ISA forbids `.sat`.
fn holds_all_of(to: Ty, from: Ty) -> bool {
    let ((least, most), (from_least, from_most)) = (to.span(), from.span());
    least <= from_least && from_most <= most
}

/// ptxas refuses 26 kernels of this suite, and the ISA forbids 26 pairs.
#[test]
fn saturation_where_there_is_nothing_to_saturate_is_refused() {
    let mut refused = 0;
    for from in INTEGERS {
        for to in INTEGERS {
            let text = format!(
                ".version 8.5\n.target sm_90\n.address_size 64\n.visible .entry k() {{\n\
                 .reg .b64 %d; .reg .b64 %a; mov.b64 %a, 1; cvt.sat.{}.{} %d, %a; ret;\n}}\n",
                to.name(),
                from.name()
            );
            let outcome = divvy_ptx::Module::parse(text.as_bytes());
            assert_eq!(outcome.is_err(), holds_all_of(to, from), "{text}");
            refused += u32::from(outcome.is_err());
        }
    }
    assert_eq!(refused, 26);
}

/// A narrow result in a wide register is extended as its own type; a narrow source reads the low bits of its register.
#[test]
fn narrow_types_in_wide_registers() {
    for (wide, bits) in [(B32, "b32"), (B64, "b64")] {
        for to in [U8, S8, U16, S16] {
            let text = format!("cvt.{}.u32 {{d}}, {{a}};", to.name());
            instruction(text, &[wide], &[U32]).bits(|v| cut(wide, to.number(v[0])));
            let text = format!("cvt.s64.{} {{d}}, {{a}};", to.name());
            instruction(text, &[B64], &[wide])
                .registers_only()
                .bits(|v| cut(B64, to.number(v[0])));
            let text = format!("cvt.rn.f32.{} {{d}}, {{a}};", to.name());
            instruction(text, &[F32], &[wide])
                .registers_only()
                .bits(|v| soft::from_integer(F32, Round::NearestTiesToEven, to.number(v[0])));
            let text = format!("cvt.rzi.{}.f32 {{d}}, {{a}};", to.name());
            instruction(text, &[wide], &[F32]).check(|v| match soft::float(F32, v[0]) {
                Want::Nan => Want::Bits(0),
                _ => Want::Bits(cut(
                    wide,
                    to.number(soft::to_integer(F32, to, Round::TowardZero, v[0])),
                )),
            });
        }
        assert!(bits.starts_with('b'));
    }
}

#[test]
fn integer_to_float() {
    for from in INTEGERS {
        for to in FLOATS {
            for (name, round) in ROUNDINGS {
                let text = format!("cvt.{name}.{}.{} {{d}}, {{a}};", to.name(), from.name());
                instruction(text, &[to], &[from]).bits(|v| soft::from_integer(to, round, from.number(v[0])));
            }
        }
    }
    instruction("cvt.rn.sat.f32.s32 {d}, {a};", &[F32], &[S32]).check(|v| {
        Want::Bits(soft::from_integer(
            F32,
            Round::NearestTiesToEven,
            S32.number(v[0]),
        ))
        .saturated(F32)
    });
}

/// Out of range is clamped. A NaN gives 0, or the top bit where a 64-bit type is on either side.
#[test]
fn float_to_integer() {
    for from in FLOATS {
        for to in INTEGERS {
            for (name, round) in integral() {
                for sat in ["", ".sat"] {
                    let text = format!("cvt.{name}{sat}.{}.{} {{d}}, {{a}};", to.name(), from.name());
                    instruction(text, &[to], &[from])
                        .registers_only()
                        .check(|v| to_integer(from, to, round, v[0]));
                }
            }
        }
    }
    for to in INTEGERS {
        let text = format!("cvt.rpi.ftz.{}.f32 {{d}}, {{a}};", to.name());
        instruction(text, &[to], &[F32])
            .check(|v| to_integer(F32, to, Round::TowardPositive, flushed(F32, v[0])));
    }
}

fn to_integer(from: Ty, to: Ty, round: Round, bits: u64) -> Want {
    if !value(from, bits).is_nan() {
        return Want::Bits(soft::to_integer(from, to, round, bits));
    }
    match from == F64 || to.bits() == 64 {
        true => Want::Bits(1 << (to.bits() - 1)),
        false => Want::Bits(0),
    }
}

#[test]
fn between_floats() {
    for from in FLOATS {
        for to in FLOATS {
            if to.bits() < from.bits() {
                for (name, round) in ROUNDINGS {
                    // Into half precision only nearest-even and toward zero exist on every target.
                    if to == F16 && !matches!(name, "rn" | "rz") {
                        continue;
                    }
                    let text = format!("cvt.{name}.{}.{} {{d}}, {{a}};", to.name(), from.name());
                    instruction(text, &[to], &[from])
                        .registers_only()
                        .check(|v| soft::float(to, soft::convert(from, to, round, None, v[0])));
                }
            } else if from != to {
                let text = format!("cvt.{}.{} {{d}}, {{a}};", to.name(), from.name());
                let nearest = Round::NearestTiesToEven;
                instruction(text, &[to], &[from])
                    .registers_only()
                    .check(|v| soft::float(to, soft::convert(from, to, nearest, None, v[0])));
            }
        }
    }
}

#[test]
fn to_whole_floats() {
    for ty in [F32, F64] {
        for (name, round) in integral() {
            let n = ty.name();
            instruction(format!("cvt.{name}.{n}.{n} {{d}}, {{a}};"), &[ty], &[ty])
                .check(|v| soft::float(ty, soft::convert(ty, ty, round, Some(round), v[0])));
            instruction(format!("cvt.{name}.sat.{n}.{n} {{d}}, {{a}};"), &[ty], &[ty])
                .check(|v| soft::float(ty, soft::convert(ty, ty, round, Some(round), v[0])).saturated(ty));
        }
    }
    instruction("cvt.rni.ftz.f32.f32 {d}, {a};", &[F32], &[F32]).check(|v| {
        let nearest = Round::NearestTiesToEven;
        soft::float(
            F32,
            soft::convert(F32, F32, nearest, Some(nearest), flushed(F32, v[0])),
        )
    });
}

#[test]
fn saturated_and_flushed_floats() {
    let nearest = Round::NearestTiesToEven;
    for ty in [F32, F64] {
        let n = ty.name();
        instruction(format!("cvt.sat.{n}.{n} {{d}}, {{a}};"), &[ty], &[ty])
            .check(|v| soft::float(ty, v[0]).saturated(ty));
    }
    instruction("cvt.ftz.sat.f32.f32 {d}, {a};", &[F32], &[F32])
        .check(|v| soft::float(F32, flushed(F32, v[0])).saturated(F32));
    instruction("cvt.ftz.f64.f32 {d}, {a};", &[F64], &[F32])
        .check(|v| soft::float(F64, soft::convert(F32, F64, nearest, None, flushed(F32, v[0]))));
    instruction("cvt.rn.ftz.f32.f64 {d}, {a};", &[F32], &[F64])
        .check(|v| soft::float(F32, flushed(F32, soft::convert(F64, F32, nearest, None, v[0]))));
    instruction("cvt.rn.sat.f32.f64 {d}, {a};", &[F32], &[F64])
        .check(|v| soft::float(F32, soft::convert(F64, F32, nearest, None, v[0])).saturated(F32));
}

#[test]
fn bfloat() {
    let nearest = Round::NearestTiesToEven;
    instruction("cvt.rn.bf16.f32 {d}, {a};", &[BF16], &[F32])
        .registers_only()
        .check(|v| soft::float(BF16, soft::convert(F32, BF16, nearest, None, v[0])));
    instruction("cvt.f32.bf16 {d}, {a};", &[F32], &[BF16])
        .registers_only()
        .check(|v| soft::float(F32, soft::convert(BF16, F32, nearest, None, v[0])));
}
