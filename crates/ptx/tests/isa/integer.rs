//! Integer arithmetic: sums, products, quotients, in every type.

use crate::instruction::instruction;
use crate::integer_model::*;
use crate::types::Ty::{self, *};

const ALL: [Ty; 6] = [U16, S16, U32, S32, U64, S64];

/// The type of twice the width.
fn wide(ty: Ty) -> Ty {
    match ty {
        U16 => U32,
        S16 => S32,
        U32 => U64,
        _ => S64,
    }
}

#[test]
fn add_and_sub() {
    for ty in ALL {
        let n = ty.name();
        instruction(format!("add.{n} {{d}}, {{a}}, {{b}};"), &[ty], &[ty, ty])
            .bits(|v| cut(ty, ty.number(v[0]) + ty.number(v[1])));
        instruction(format!("sub.{n} {{d}}, {{a}}, {{b}};"), &[ty], &[ty, ty])
            .bits(|v| cut(ty, ty.number(v[0]) - ty.number(v[1])));
    }
    instruction("add.sat.s32 {d}, {a}, {b};", &[S32], &[S32, S32])
        .bits(|v| clamped(S32, S32.number(v[0]) + S32.number(v[1])));
    instruction("sub.sat.s32 {d}, {a}, {b};", &[S32], &[S32, S32])
        .bits(|v| clamped(S32, S32.number(v[0]) - S32.number(v[1])));
}

#[test]
fn mul() {
    for ty in ALL {
        let n = ty.name();
        instruction(format!("mul.lo.{n} {{d}}, {{a}}, {{b}};"), &[ty], &[ty, ty])
            .bits(|v| v[0].wrapping_mul(v[1]) & ty.mask());
        instruction(format!("mul.hi.{n} {{d}}, {{a}}, {{b}};"), &[ty], &[ty, ty])
            .bits(|v| cut(ty, upper(ty, v[0], v[1])));
    }
    for ty in [U16, S16, U32, S32] {
        instruction(
            format!("mul.wide.{} {{d}}, {{a}}, {{b}};", ty.name()),
            &[wide(ty)],
            &[ty, ty],
        )
        .bits(|v| cut(wide(ty), ty.number(v[0]) * ty.number(v[1])));
    }
}

#[test]
fn mad() {
    for ty in ALL {
        let n = ty.name();
        instruction(
            format!("mad.lo.{n} {{d}}, {{a}}, {{b}}, {{c}};"),
            &[ty],
            &[ty, ty, ty],
        )
        .bits(|v| v[0].wrapping_mul(v[1]).wrapping_add(v[2]) & ty.mask());
        instruction(
            format!("mad.hi.{n} {{d}}, {{a}}, {{b}}, {{c}};"),
            &[ty],
            &[ty, ty, ty],
        )
        .bits(|v| cut(ty, upper(ty, v[0], v[1]) + ty.number(v[2])));
    }
    instruction("mad.hi.sat.s32 {d}, {a}, {b}, {c};", &[S32], &[S32, S32, S32])
        .bits(|v| clamped(S32, upper(S32, v[0], v[1]) + S32.number(v[2])));
    for ty in [U16, S16, U32, S32] {
        let sum = wide(ty);
        instruction(
            format!("mad.wide.{} {{d}}, {{a}}, {{b}}, {{c}};", ty.name()),
            &[sum],
            &[ty, ty, sum],
        )
        .bits(|v| cut(sum, ty.number(v[0]) * ty.number(v[1]) + sum.number(v[2])));
    }
}

/// The low 24 bits of each operand, and bits 0..32 or 16..48 of the product.
#[test]
fn mul24_and_mad24() {
    for ty in [U32, S32] {
        let low = move |v: u64| {
            if ty.signed() {
                i128::from((v as i32) << 8 >> 8)
            } else {
                i128::from(v & 0xff_ffff)
            }
        };
        for (part, shift) in [("lo", 0), ("hi", 16)] {
            let n = ty.name();
            instruction(format!("mul24.{part}.{n} {{d}}, {{a}}, {{b}};"), &[ty], &[ty, ty])
                .bits(|v| cut(ty, (low(v[0]) * low(v[1])) >> shift));
            instruction(
                format!("mad24.{part}.{n} {{d}}, {{a}}, {{b}}, {{c}};"),
                &[ty],
                &[ty, ty, ty],
            )
            .bits(|v| cut(ty, ((low(v[0]) * low(v[1])) >> shift) + ty.number(v[2])));
        }
    }
}

#[test]
fn div_and_rem() {
    for ty in ALL {
        let n = ty.name();
        instruction(format!("div.{n} {{d}}, {{a}}, {{b}};"), &[ty], &[ty, ty])
            .check(|v| quotient(ty, v[0], v[1]));
        instruction(format!("rem.{n} {{d}}, {{a}}, {{b}};"), &[ty], &[ty, ty])
            .check(|v| remainder(ty, v[0], v[1]));
    }
}

#[test]
fn abs_and_neg() {
    for ty in [S16, S32, S64] {
        let n = ty.name();
        instruction(format!("abs.{n} {{d}}, {{a}};"), &[ty], &[ty]).bits(|v| cut(ty, ty.number(v[0]).abs()));
        instruction(format!("neg.{n} {{d}}, {{a}};"), &[ty], &[ty]).bits(|v| cut(ty, -ty.number(v[0])));
    }
}

#[test]
fn min_and_max() {
    for ty in ALL {
        let n = ty.name();
        instruction(format!("min.{n} {{d}}, {{a}}, {{b}};"), &[ty], &[ty, ty])
            .bits(|v| cut(ty, ty.number(v[0]).min(ty.number(v[1]))));
        instruction(format!("max.{n} {{d}}, {{a}}, {{b}};"), &[ty], &[ty, ty])
            .bits(|v| cut(ty, ty.number(v[0]).max(ty.number(v[1]))));
    }
}

/// The types of two integers in a register: each half is a number of its own.
#[test]
fn halves() {
    type Of = fn(i128, i128) -> i128;
    let operations: [(&str, Of); 3] = [("add", |a, b| a + b), ("min", i128::min), ("max", i128::max)];
    let each = |ty: Ty, v: &[u64], of: &dyn Fn(i128, i128) -> i128| {
        [0, 16]
            .map(|at| cut(ty, of(ty.number(v[0] >> at), ty.number(v[1] >> at))) << at)
            .into_iter()
            .sum()
    };
    for (name, of) in operations {
        for ty in [U16, S16] {
            let text = format!("{name}.{}x2 {{d}}, {{a}}, {{b}};", ty.name());
            instruction(text, &[B32], &[B32, B32])
                .registers_only()
                .bits(|v| each(ty, v, &of));
        }
        // Compilers write the modifier first, CUDA's headers last.
        for text in [format!("{name}.relu.s16x2"), format!("{name}.s16x2.relu")] {
            if name != "add" {
                instruction(format!("{text} {{d}}, {{a}}, {{b}};"), &[B32], &[B32, B32])
                    .registers_only()
                    .bits(|v| each(S16, v, &|a, b| of(a, b).max(0)));
            }
        }
    }
}

/// `.relu` of single integers: what is below zero becomes zero.
#[test]
fn min_and_max_with_relu() {
    for text in ["relu.s32", "s32.relu"] {
        instruction(format!("min.{text} {{d}}, {{a}}, {{b}};"), &[S32], &[S32, S32])
            .registers_only()
            .bits(|v| cut(S32, S32.number(v[0]).min(S32.number(v[1])).max(0)));
        instruction(format!("max.{text} {{d}}, {{a}}, {{b}};"), &[S32], &[S32, S32])
            .registers_only()
            .bits(|v| cut(S32, S32.number(v[0]).max(S32.number(v[1])).max(0)));
    }
}

#[test]
fn sad() {
    for ty in ALL {
        let n = ty.name();
        instruction(
            format!("sad.{n} {{d}}, {{a}}, {{b}}, {{c}};"),
            &[ty],
            &[ty, ty, ty],
        )
        .bits(|v| cut(ty, (ty.number(v[0]) - ty.number(v[1])).abs() + ty.number(v[2])));
    }
}

/// Dot products of bytes, and of halves with bytes, added to a word.
#[test]
fn dot_products() {
    let lane = |ty: Ty, word: u64, at: u32| -> i128 {
        let bits = ty.bits();
        ty.number(word >> (at * bits))
    };
    for (left, right) in [("u32", "u32"), ("u32", "s32"), ("s32", "u32"), ("s32", "s32")] {
        let byte = |n: &str| if n == "u32" { U8 } else { S8 };
        let half = |n: &str| if n == "u32" { U16 } else { S16 };
        let sum = if left == "u32" && right == "u32" { U32 } else { S32 };
        instruction(
            format!("dp4a.{left}.{right} {{d}}, {{a}}, {{b}}, {{c}};"),
            &[sum],
            &[B32, B32, sum],
        )
        .bits(|v| {
            let dot: i128 = (0..4)
                .map(|k| lane(byte(left), v[0], k) * lane(byte(right), v[1], k))
                .sum();
            cut(sum, dot + sum.number(v[2]))
        });
        for (part, from) in [("lo", 0), ("hi", 2)] {
            let text = format!("dp2a.{part}.{left}.{right} {{d}}, {{a}}, {{b}}, {{c}};");
            instruction(text, &[sum], &[B32, B32, sum]).bits(|v| {
                let dot: i128 = (0..2)
                    .map(|k| lane(half(left), v[0], k) * lane(byte(right), v[1], from + k))
                    .sum();
                cut(sum, dot + sum.number(v[2]))
            });
        }
    }
}
