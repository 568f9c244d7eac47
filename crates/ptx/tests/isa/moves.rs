//! mov, packing and unpacking, address tests.

use crate::instruction::instruction;
use crate::types::Ty::*;
use crate::want::Want;

#[test]
fn mov() {
    for ty in [B16, U16, S16, B32, U32, S32, F32, B64, U64, S64, F64] {
        instruction(format!("mov.{} {{d}}, {{a}};", ty.name()), &[ty], &[ty]).bits(|v| v[0]);
    }
    instruction("mov.pred {d}, {a};", &[Pred], &[Pred])
        .registers_only()
        .bits(|v| v[0]);
    instruction("mov.b32 {d}, {a};", &[F32], &[B32])
        .registers_only()
        .bits(|v| v[0]);
    instruction("mov.b64 {d}, {a};", &[B64], &[F64])
        .registers_only()
        .bits(|v| v[0]);
}

#[test]
fn packing() {
    instruction("mov.b32 {d}, { {a}, {b} };", &[B32], &[B16, B16])
        .registers_only()
        .bits(|v| v[0] | v[1] << 16);
    instruction("mov.b64 {d}, { {a}, {b} };", &[B64], &[B32, F32])
        .registers_only()
        .bits(|v| v[0] | v[1] << 32);
    instruction(
        "mov.b64 {d}, { {a}, {b}, {c}, {f} };",
        &[B64],
        &[B16, B16, B16, B16],
    )
    .registers_only()
    .bits(|v| v[0] | v[1] << 16 | v[2] << 32 | v[3] << 48);
}

#[test]
fn unpacking() {
    let parts =
        |bits: u32, value: u64| vec![Want::Bits(value & ((1 << bits) - 1)), Want::Bits(value >> bits)];
    instruction("mov.b32 { {d}, {e} }, {a};", &[B16, B16], &[B32])
        .registers_only()
        .check_all(|v| parts(16, v[0]));
    instruction("mov.b64 { {d}, {e} }, {a};", &[B32, B32], &[B64])
        .registers_only()
        .check_all(|v| parts(32, v[0]));
    instruction("mov.b64 { {d}, {e} }, {a};", &[F32, B32], &[F64])
        .registers_only()
        .check_all(|v| {
            vec![
                crate::soft::float(F32, v[0] & 0xffff_ffff),
                Want::Bits(v[0] >> 32),
            ]
        });
    // A part that is not needed.
    instruction("mov.b64 { _, {d} }, {a};", &[B32], &[B64])
        .registers_only()
        .bits(|v| v[0] >> 32);
    instruction("mov.b64 { {d}, _ }, {a};", &[B32], &[B64])
        .registers_only()
        .bits(|v| v[0] & 0xffff_ffff);
}

/// Constant expressions are folded by the assembler: ours must know their operators.
#[test]
fn constant_expressions() {
    let expressions: [(&str, u64); 9] = [
        ("(1 << 4) + 3", 19),
        ("7 * 6 - 2", 40),
        ("0x10 | 0b101", 21),
        ("~0 & 0xff", 0xff),
        ("010", 8),
        ("100 / 7 % 4", 2),
        ("(3 > 2) ? 11 : 12", 11),
        ("!0 + (5 == 5)", 2),
        ("-1", 0xffff_ffff),
    ];
    for (text, value) in expressions {
        instruction(format!("mov.u32 {{d}}, {text};"), &[U32], &[U32])
            .registers_only()
            .bits(|_| value);
    }
}

/// Every way to write a number.
#[test]
fn literals() {
    let numbers: [(&str, u64); 10] = [
        ("19", 19),
        ("0x1F", 31),
        ("0X1f", 31),
        ("0b101", 5),
        ("010", 8),
        ("7U", 7),
        ("-1", 0xffff_ffff),
        ("4294967295", 0xffff_ffff),
        ("WARP_SZ", 32),
        ("~0", 0xffff_ffff),
    ];
    for (text, value) in numbers {
        instruction(format!("mov.u32 {{d}}, {text};"), &[U32], &[U32])
            .registers_only()
            .bits(|_| value);
    }
    let floats: [(&str, f32); 4] = [
        ("1.5", 1.5),
        ("0f3F800000", 1.0),
        ("-2.25e3", -2250.0),
        ("0d4000000000000000", 2.0),
    ];
    for (text, value) in floats {
        instruction(format!("mov.f32 {{d}}, {text};"), &[F32], &[F32])
            .registers_only()
            .bits(|_| u64::from(value.to_bits()));
    }
}
