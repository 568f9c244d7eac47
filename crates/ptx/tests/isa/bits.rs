//! Bit operations: logic, shifts, fields, counts, permutations.

use crate::instruction::instruction;
use crate::integer_model::*;
use crate::types::Ty::{self, *};
use crate::want::Want;

const WORDS: [Ty; 3] = [B16, B32, B64];

#[test]
fn logic() {
    type Logic = (&'static str, fn(u64, u64) -> u64);
    let operations: [Logic; 3] = [("and", |a, b| a & b), ("or", |a, b| a | b), ("xor", |a, b| a ^ b)];
    for (name, model) in operations {
        for ty in [Pred, B16, B32, B64] {
            let probe = instruction(
                format!("{name}.{} {{d}}, {{a}}, {{b}};", ty.name()),
                &[ty],
                &[ty, ty],
            );
            let probe = if ty == Pred { probe.registers_only() } else { probe };
            probe.bits(|v| model(v[0], v[1]));
        }
    }
}

#[test]
fn not_and_cnot() {
    for ty in WORDS {
        instruction(format!("not.{} {{d}}, {{a}};", ty.name()), &[ty], &[ty]).bits(|v| !v[0] & ty.mask());
        instruction(format!("cnot.{} {{d}}, {{a}};", ty.name()), &[ty], &[ty]).bits(|v| u64::from(v[0] == 0));
    }
    instruction("not.pred {d}, {a};", &[Pred], &[Pred])
        .registers_only()
        .bits(|v| v[0] ^ 1);
}

#[test]
fn lop3() {
    for table in (0..256)
        .step_by(15)
        .chain([0x80, 0x96, 0xca, 0xe8, 0xfe, 0x0f, 0xcc, 0xaa])
    {
        let text = format!("lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {table:#x};");
        instruction(text, &[B32], &[B32, B32, B32]).bits(|v| {
            (0..32).fold(0, |word, bit| {
                let row = (v[0] >> bit & 1) << 2 | (v[1] >> bit & 1) << 1 | v[2] >> bit & 1;
                word | (table >> row & 1) << bit
            })
        });
    }
}

/// The amount is a 32-bit operand whatever the type; past the width nothing (or the sign) is left.
#[test]
fn shifts() {
    for ty in WORDS {
        instruction(
            format!("shl.{} {{d}}, {{a}}, {{b}};", ty.name()),
            &[ty],
            &[ty, U32],
        )
        .bits(|v| shift_left(ty, v[0], v[1]));
    }
    for ty in [B16, U16, S16, B32, U32, S32, B64, U64, S64] {
        instruction(
            format!("shr.{} {{d}}, {{a}}, {{b}};", ty.name()),
            &[ty],
            &[ty, U32],
        )
        .bits(|v| shift_right(ty, v[0], v[1]));
    }
}

#[test]
fn funnel_shifts() {
    for (direction, left) in [("l", true), ("r", false)] {
        for (mode, wrap) in [("wrap", true), ("clamp", false)] {
            let text = format!("shf.{direction}.{mode}.b32 {{d}}, {{a}}, {{b}}, {{c}};");
            instruction(text, &[B32], &[B32, B32, U32]).bits(|v| funnel(left, wrap, v[0], v[1], v[2]));
        }
    }
}

#[test]
fn counts() {
    for ty in [B32, B64] {
        let n = ty.name();
        instruction(format!("popc.{n} {{d}}, {{a}};"), &[U32], &[ty]).bits(|v| u64::from(v[0].count_ones()));
        instruction(format!("clz.{n} {{d}}, {{a}};"), &[U32], &[ty])
            .bits(|v| u64::from(v[0].leading_zeros() - (64 - ty.bits())));
        instruction(format!("brev.{n} {{d}}, {{a}};"), &[ty], &[ty])
            .bits(|v| v[0].reverse_bits() >> (64 - ty.bits()));
    }
    for ty in [U32, S32, U64, S64] {
        let n = ty.name();
        instruction(format!("bfind.{n} {{d}}, {{a}};"), &[U32], &[ty]).bits(|v| find(ty, v[0], false));
        instruction(format!("bfind.shiftamt.{n} {{d}}, {{a}};"), &[U32], &[ty])
            .bits(|v| find(ty, v[0], true));
    }
}

#[test]
fn fields() {
    for ty in [U32, S32, U64, S64] {
        instruction(
            format!("bfe.{} {{d}}, {{a}}, {{b}}, {{c}};", ty.name()),
            &[ty],
            &[ty, U32, U32],
        )
        .bits(|v| extract(ty, v[0], v[1], v[2]));
    }
    for ty in [B32, B64] {
        instruction(
            format!("bfi.{} {{d}}, {{a}}, {{b}}, {{c}}, {{f}};", ty.name()),
            &[ty],
            &[ty, ty, U32, U32],
        )
        .bits(|v| insert(ty, v[0], v[1], v[2], v[3]));
    }
}

/// A mask of `b` ones from place `a`; a sign extended from `b` bits.
#[test]
fn masks() {
    for mode in ["clamp", "wrap"] {
        instruction(
            format!("bmsk.{mode}.b32 {{d}}, {{a}}, {{b}};"),
            &[B32],
            &[U32, U32],
        )
        .bits(|v| {
            let cut = |n: u64| if mode == "wrap" { n & 31 } else { n.min(32) };
            let (from, ones) = (cut(v[0]), cut(v[1]));
            (((1u64 << ones) - 1) << from) & 0xffff_ffff
        });
        for ty in [U32, S32] {
            instruction(
                format!("szext.{mode}.{} {{d}}, {{a}}, {{b}};", ty.name()),
                &[ty],
                &[ty, U32],
            )
            .bits(|v| {
                let width = if mode == "wrap" { v[1] & 31 } else { v[1].min(32) };
                let kept = v[0] & ((1 << width) - 1);
                match ty.signed() && width > 0 && kept >> (width - 1) == 1 {
                    true => (kept | u64::MAX << width) & 0xffff_ffff,
                    false => kept,
                }
            });
        }
    }
}

#[test]
fn permutations() {
    for mode in ["", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"] {
        let dot = if mode.is_empty() { "" } else { "." };
        instruction(
            format!("prmt.b32{dot}{mode} {{d}}, {{a}}, {{b}}, {{c}};"),
            &[B32],
            &[B32, B32, B32],
        )
        .bits(|v| permute(mode, v[0], v[1], v[2]));
    }
}

/// The n-th set bit from a base, upward or downward; all ones when there is none.
#[test]
fn find_nth_set() {
    instruction("fns.b32 {d}, {a}, {b}, {c};", &[B32], &[B32, U32, S32]).check(|v| {
        let (base, offset) = (v[1], S32.number(v[2]));
        if base > 31 {
            return Want::Open;
        }
        let set = |bit: &i128| v[0] >> *bit & 1 == 1;
        let base = i128::from(base);
        let found = match offset {
            0 => Some(base).filter(set),
            1.. => (base..32).filter(set).nth((offset - 1).min(64) as usize),
            _ => (0..=base).rev().filter(set).nth((-offset - 1).min(64) as usize),
        };
        Want::Bits(found.map_or(0xffff_ffff, |bit| bit as u64))
    });
}
