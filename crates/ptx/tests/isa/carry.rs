//! Carry chains: sums, differences and products longer than a register.

use crate::instruction::instruction;
use crate::types::Ty::{self, *};
use crate::want::Want;

/// Twice the register's width in one number, cut into its two results.
fn halves(ty: Ty, value: u128) -> Vec<Want> {
    vec![
        Want::Bits(value as u64 & ty.mask()),
        Want::Bits((value >> ty.bits()) as u64 & ty.mask()),
    ]
}

fn join(ty: Ty, low: u64, high: u64) -> u128 {
    u128::from(high) << ty.bits() | u128::from(low)
}

#[test]
fn sums_and_differences() {
    for ty in [U32, S32, U64, S64, B32] {
        let n = if ty == B32 { "u32" } else { ty.name() };
        let operands = [ty, ty, ty, ty];
        let text = format!("{{g}}add.cc.{n} {{d}}, {{a}}, {{b}};\n {{g}}addc.{n} {{e}}, {{c}}, {{f}};");
        instruction(text, &[ty, ty], &operands)
            .check_all(|v| halves(ty, join(ty, v[0], v[2]).wrapping_add(join(ty, v[1], v[3]))));
        let text = format!("{{g}}sub.cc.{n} {{d}}, {{a}}, {{b}};\n {{g}}subc.{n} {{e}}, {{c}}, {{f}};");
        instruction(text, &[ty, ty], &operands)
            .check_all(|v| halves(ty, join(ty, v[0], v[2]).wrapping_sub(join(ty, v[1], v[3]))));
    }
}

/// The carry goes through a middle word, and out of the last one.
#[test]
fn chains_of_three() {
    for (first, next, sign) in [("add", "addc", 1i128), ("sub", "subc", -1)] {
        let text = format!(
            "{{g}}{first}.cc.u32 {{d}}, {{a}}, {{b}};\n {{g}}{next}.cc.u32 {{e}}, {{c}}, {{f}};\n \
             {{g}}{next}.u32 {{d}}, 0, 0;"
        );
        instruction(text, &[U32, U32], &[U32, U32, U32, U32])
            .registers_only()
            .check_all(|v| {
                let sum = join(U32, v[0], v[2]) as i128 + sign * join(U32, v[1], v[3]) as i128;
                vec![
                    Want::Bits((sum >> 64) as u64 & 0xffff_ffff),
                    Want::Bits((sum >> 32) as u64 & 0xffff_ffff),
                ]
            });
    }
}

/// A product's halves added to two words: `mad.lo.cc` hands its carry to `madc.hi`.
#[test]
fn products() {
    for ty in [U32, U64] {
        let n = ty.name();
        let text = format!(
            "{{g}}mad.lo.cc.{n} {{d}}, {{a}}, {{b}}, {{c}};\n {{g}}madc.hi.{n} {{e}}, {{a}}, {{b}}, {{f}};"
        );
        instruction(text, &[ty, ty], &[ty, ty, ty, ty])
            .registers_only()
            .check_all(|v| {
                halves(
                    ty,
                    (u128::from(v[0]) * u128::from(v[1])).wrapping_add(join(ty, v[2], v[3])),
                )
            });
        let text = format!(
            "{{g}}add.cc.{n} {{e}}, {{a}}, {{b}};\n {{g}}madc.lo.cc.{n} {{d}}, {{a}}, {{b}}, {{c}};\n \
             {{g}}addc.{n} {{e}}, {{f}}, 0;"
        );
        instruction(text, &[ty, ty], &[ty, ty, ty, ty])
            .registers_only()
            .check_all(|v| {
                let carry = (u128::from(v[0]) + u128::from(v[1])) >> ty.bits();
                let product = u128::from(v[0].wrapping_mul(v[1]) & ty.mask());
                let sum = product + u128::from(v[2]) + carry;
                let last = u128::from(v[3]) + (sum >> ty.bits());
                vec![
                    Want::Bits(sum as u64 & ty.mask()),
                    Want::Bits(last as u64 & ty.mask()),
                ]
            });
    }
    let text = "{g}mad.hi.cc.s32 {d}, {a}, {b}, {c};\n {g}addc.s32 {e}, {f}, 0;";
    instruction(text, &[S32, S32], &[S32, S32, S32, S32])
        .registers_only()
        .check_all(|v| {
            let high = ((S32.number(v[0]) * S32.number(v[1])) >> 32) as u32;
            let sum = u64::from(high) + v[2];
            vec![
                Want::Bits(sum & 0xffff_ffff),
                Want::Bits((v[3] + (sum >> 32)) & 0xffff_ffff),
            ]
        });
}
