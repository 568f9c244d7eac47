//! Comparison and selection: setp, set, selp, slct, testp, and the predicates they combine.

use crate::instruction::instruction;
use crate::soft::flushed;
use crate::types::Ty::{self, *};
use crate::want::{Want, bits_of, value};

const SIGNED: [&str; 6] = ["eq", "ne", "lt", "le", "gt", "ge"];
const UNSIGNED: [&str; 10] = ["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"];
pub const FLOAT: [&str; 14] = [
    "eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
];

fn comparisons(ty: Ty) -> &'static [&'static str] {
    match ty {
        B16 | B32 | B64 => &SIGNED[..2],
        U16 | U32 | U64 => &UNSIGNED,
        S16 | S32 | S64 => &SIGNED,
        _ => &FLOAT,
    }
}

const ALL: [Ty; 11] = [B16, B32, B64, U16, U32, U64, S16, S32, S64, F32, F64];

/// Whether `a` stands to `b` as `comparison` says; the unordered forms are true of a NaN.
pub fn holds(ty: Ty, comparison: &str, a: u64, b: u64) -> bool {
    use std::cmp::Ordering::*;
    let order = match ty.float() {
        true => value(ty, a).partial_cmp(&value(ty, b)),
        false => Some(ty.number(a).cmp(&ty.number(b))),
    };
    let base = comparison.strip_suffix('u').unwrap_or(comparison);
    let Some(order) = order else {
        return comparison == "nan" || base != comparison;
    };
    match base {
        "eq" => order == Equal,
        "ne" => order != Equal,
        "lt" | "lo" => order == Less,
        "le" | "ls" => order != Greater,
        "gt" | "hi" => order == Greater,
        "ge" | "hs" => order != Less,
        "num" => true,
        "nan" => false,
        _ => panic!("no comparison {comparison}"),
    }
}

#[test]
fn setp_every_comparison() {
    for ty in ALL {
        for comparison in comparisons(ty) {
            let text = format!("setp.{comparison}.{} {{d}}, {{a}}, {{b}};", ty.name());
            instruction(text, &[Pred], &[ty, ty]).bits(|v| u64::from(holds(ty, comparison, v[0], v[1])));
        }
    }
}

#[test]
fn setp_flushing_denormals() {
    for comparison in FLOAT {
        let text = format!("setp.{comparison}.ftz.f32 {{d}}, {{a}}, {{b}};");
        instruction(text, &[Pred], &[F32, F32])
            .bits(|v| u64::from(holds(F32, comparison, flushed(F32, v[0]), flushed(F32, v[1]))));
    }
}

/// Both results, and the combination with a third predicate, as it is and negated.
#[test]
fn setp_pairs_and_combinations() {
    type Combine = (&'static str, fn(bool, bool) -> bool);
    let combines: [Combine; 3] = [("and", |a, b| a & b), ("or", |a, b| a | b), ("xor", |a, b| a ^ b)];
    for (ty, comparison) in [
        (S32, "lt"),
        (U64, "hs"),
        (U16, "ne"),
        (F32, "geu"),
        (F64, "lt"),
        (F32, "nan"),
    ] {
        let n = ty.name();
        let pair = |first: bool, second: bool| vec![Want::Bits(first.into()), Want::Bits(second.into())];
        instruction(
            format!("setp.{comparison}.{n} {{d}}|{{e}}, {{a}}, {{b}};"),
            &[Pred, Pred],
            &[ty, ty],
        )
        .check_all(|v| {
            let holds = holds(ty, comparison, v[0], v[1]);
            pair(holds, !holds)
        });
        for (name, combine) in combines {
            for (bang, negated) in [("", false), ("!", true)] {
                let text = format!("setp.{comparison}.{name}.{n} {{d}}|{{e}}, {{a}}, {{b}}, {bang}{{c}};");
                instruction(text, &[Pred, Pred], &[ty, ty, Pred])
                    .registers_only()
                    .check_all(|v| {
                        let holds = holds(ty, comparison, v[0], v[1]);
                        let third = (v[2] == 1) != negated;
                        pair(combine(holds, third), combine(!holds, third))
                    });
                let text = format!("setp.{comparison}.{name}.{n} {{d}}, {{a}}, {{b}}, {bang}{{c}};");
                instruction(text, &[Pred], &[ty, ty, Pred])
                    .registers_only()
                    .bits(|v| combine(holds(ty, comparison, v[0], v[1]), (v[2] == 1) != negated).into());
            }
        }
    }
}

/// `set` answers with all ones in an integer, with 1.0 in a float.
#[test]
fn set() {
    for ty in ALL {
        for comparison in comparisons(ty) {
            for (result, truth) in [(U32, 0xffff_ffff), (S32, 0xffff_ffff), (F32, bits_of(F32, 1.0))] {
                let text = format!(
                    "set.{comparison}.{}.{} {{d}}, {{a}}, {{b}};",
                    result.name(),
                    ty.name()
                );
                instruction(text, &[result], &[ty, ty]).bits(|v| {
                    if holds(ty, comparison, v[0], v[1]) {
                        truth
                    } else {
                        0
                    }
                });
            }
        }
    }
    instruction(
        "set.lt.and.u32.s32 {d}, {a}, {b}, {c};",
        &[U32],
        &[S32, S32, Pred],
    )
    .registers_only()
    .bits(|v| {
        if holds(S32, "lt", v[0], v[1]) && v[2] == 1 {
            0xffff_ffff
        } else {
            0
        }
    });
    instruction("set.gt.ftz.u32.f32 {d}, {a}, {b};", &[U32], &[F32, F32]).bits(|v| {
        if holds(F32, "gt", flushed(F32, v[0]), flushed(F32, v[1])) {
            0xffff_ffff
        } else {
            0
        }
    });
}

#[test]
fn selp() {
    for ty in ALL {
        instruction(
            format!("selp.{} {{d}}, {{a}}, {{b}}, {{c}};", ty.name()),
            &[ty],
            &[ty, ty, Pred],
        )
        .registers_only()
        .bits(|v| if v[2] == 1 { v[0] } else { v[1] });
    }
    instruction("selp.b32 {d}, 7, 0x80000000, {a};", &[B32], &[Pred])
        .registers_only()
        .bits(|v| if v[0] == 1 { 7 } else { 0x8000_0000 });
}

#[test]
fn slct() {
    for ty in ALL {
        let n = ty.name();
        instruction(
            format!("slct.{n}.s32 {{d}}, {{a}}, {{b}}, {{c}};"),
            &[ty],
            &[ty, ty, S32],
        )
        .bits(|v| if S32.number(v[2]) >= 0 { v[0] } else { v[1] });
        instruction(
            format!("slct.{n}.f32 {{d}}, {{a}}, {{b}}, {{c}};"),
            &[ty],
            &[ty, ty, F32],
        )
        .bits(|v| if value(F32, v[2]) >= 0.0 { v[0] } else { v[1] });
        instruction(
            format!("slct.ftz.{n}.f32 {{d}}, {{a}}, {{b}}, {{c}};"),
            &[ty],
            &[ty, ty, F32],
        )
        .bits(|v| {
            if value(F32, flushed(F32, v[2])) >= 0.0 {
                v[0]
            } else {
                v[1]
            }
        });
    }
}

#[test]
fn testp() {
    for ty in [F32, F64] {
        let normal = if ty == F32 {
            f64::from(f32::MIN_POSITIVE)
        } else {
            f64::MIN_POSITIVE
        };
        type Question = (&'static str, fn(f64, f64) -> bool);
        let questions: [Question; 6] = [
            ("finite", |v, _| v.is_finite()),
            ("infinite", |v, _| v.is_infinite()),
            ("number", |v, _| !v.is_nan()),
            ("notanumber", |v, _| v.is_nan()),
            ("normal", |v, normal| v.is_finite() && v.abs() >= normal),
            ("subnormal", |v, normal| v != 0.0 && v.abs() < normal),
        ];
        for (name, answer) in questions {
            instruction(
                format!("testp.{name}.{} {{d}}, {{a}};", ty.name()),
                &[Pred],
                &[ty],
            )
            .bits(|v| answer(value(ty, v[0]), normal).into());
        }
    }
}

/// An instruction guarded by a negated predicate, and one that reads the predicate it is guarded by.
#[test]
fn negated_guards() {
    instruction(
        "mov.b32 {d}, {a};\n @!{c} mov.b32 {d}, {b};",
        &[B32],
        &[B32, B32, Pred],
    )
    .registers_only()
    .check(|v| Want::Bits(if v[2] == 1 { v[0] } else { v[1] }));
    instruction(
        "mov.pred {d}, {b};\n @{d} setp.gt.s32 {d}, {a}, 0;",
        &[Pred],
        &[S32, Pred],
    )
    .registers_only()
    .check(|v| Want::Bits(u64::from(v[1] == 1 && S32.number(v[0]) > 0)));
}
