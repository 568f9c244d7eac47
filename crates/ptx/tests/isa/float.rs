//! Float arithmetic, exactly: every rounding, flushing and saturation of the operations that round once.

use crate::instruction::instruction;
use crate::soft::{Mode, Operation, ROUNDINGS, arithmetic, float, flushed};
use crate::types::Ty::{self, *};
use crate::want::{Want, value};

/// Runs `operation` under every rounding and modifier that the type has. `default` is the name without a rounding,
/// which rounds to nearest, where that exists.
fn every_mode(ty: Ty, name: &str, default: bool, operation: Operation, count: usize) {
    let operands = ["{a}", "{b}", "{c}"][..count].join(", ");
    let n = ty.name();
    let flushes: &[bool] = if ty == F32 { &[false, true] } else { &[false] };
    let saturates: &[bool] = match (ty, operation) {
        (F32, Operation::Add | Operation::Sub | Operation::Mul | Operation::Fma) => &[false, true],
        _ => &[false],
    };
    let mut roundings: Vec<_> = ROUNDINGS
        .iter()
        .map(|(suffix, round)| (format!(".{suffix}"), *round))
        .collect();
    if default {
        roundings.push((String::new(), ROUNDINGS[0].1));
    }
    for (suffix, round) in roundings {
        for &ftz in flushes {
            for &sat in saturates {
                let mode = Mode { round, ftz, sat };
                let (ftz, sat) = (if ftz { ".ftz" } else { "" }, if sat { ".sat" } else { "" });
                instruction(
                    format!("{name}{suffix}{ftz}{sat}.{n} {{d}}, {operands};"),
                    &[ty],
                    &vec![ty; count],
                )
                .check(|v| arithmetic(ty, operation, mode, v));
            }
        }
    }
}

#[test]
fn add() {
    every_mode(F32, "add", true, Operation::Add, 2);
    every_mode(F64, "add", true, Operation::Add, 2);
}

#[test]
fn sub() {
    every_mode(F32, "sub", true, Operation::Sub, 2);
    every_mode(F64, "sub", true, Operation::Sub, 2);
}

#[test]
fn mul() {
    every_mode(F32, "mul", true, Operation::Mul, 2);
    every_mode(F64, "mul", true, Operation::Mul, 2);
}

#[test]
fn fma() {
    every_mode(F32, "fma", false, Operation::Fma, 3);
    every_mode(F64, "fma", false, Operation::Fma, 3);
}

/// From sm_20 on `mad` of floats is `fma`.
#[test]
fn mad() {
    every_mode(F32, "mad", false, Operation::Fma, 3);
    every_mode(F64, "mad", false, Operation::Fma, 3);
}

#[test]
fn div() {
    every_mode(F32, "div", false, Operation::Div, 2);
    every_mode(F64, "div", false, Operation::Div, 2);
}

#[test]
fn sqrt() {
    every_mode(F32, "sqrt", false, Operation::Sqrt, 1);
    every_mode(F64, "sqrt", false, Operation::Sqrt, 1);
}

#[test]
fn rcp() {
    every_mode(F32, "rcp", false, Operation::Rcp, 1);
    every_mode(F64, "rcp", false, Operation::Rcp, 1);
}

#[test]
fn abs_and_neg() {
    for ty in [F32, F64] {
        let sign = 1 << (ty.bits() - 1);
        let n = ty.name();
        instruction(format!("abs.{n} {{d}}, {{a}};"), &[ty], &[ty]).check(|v| float(ty, v[0] & !sign));
        instruction(format!("neg.{n} {{d}}, {{a}};"), &[ty], &[ty]).check(|v| float(ty, v[0] ^ sign));
    }
    instruction("abs.ftz.f32 {d}, {a};", &[F32], &[F32])
        .check(|v| float(F32, flushed(F32, v[0] & !(1 << 31))));
    instruction("neg.ftz.f32 {d}, {a};", &[F32], &[F32]).check(|v| float(F32, flushed(F32, v[0] ^ 1 << 31)));
}

/// The sign of the first operand on the magnitude of the second.
#[test]
fn copysign() {
    for ty in [F32, F64] {
        let sign = 1 << (ty.bits() - 1);
        instruction(
            format!("copysign.{} {{d}}, {{a}}, {{b}};", ty.name()),
            &[ty],
            &[ty, ty],
        )
        .check(|v| float(ty, v[0] & sign | v[1] & !sign));
    }
}

/// The model itself: rounding to nearest is what this machine's own arithmetic does, on all special values.
#[test]
fn the_model_agrees_with_the_host() {
    let mode = Mode {
        round: ROUNDINGS[0].1,
        ftz: false,
        sat: false,
    };
    for a in F32.special() {
        for b in F32.special() {
            let (x, y) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
            let host = [x + y, x - y, x * y, x / y, x.mul_add(y, x), x.sqrt(), 1.0 / x];
            for (operation, host) in OPERATIONS.into_iter().zip(host) {
                let model = arithmetic(F32, operation, mode, &[a, b, a]);
                assert_eq!(
                    model,
                    float(F32, host.to_bits().into()),
                    "{operation:?} of {x:e} and {y:e}"
                );
            }
        }
    }
    for a in F64.special() {
        for b in F64.special() {
            let (x, y) = (f64::from_bits(a), f64::from_bits(b));
            let host = [x + y, x - y, x * y, x / y, x.mul_add(y, x), x.sqrt(), 1.0 / x];
            for (operation, host) in OPERATIONS.into_iter().zip(host) {
                let model = arithmetic(F64, operation, mode, &[a, b, a]);
                assert_eq!(
                    model,
                    float(F64, host.to_bits()),
                    "{operation:?} of {x:e} and {y:e}"
                );
            }
        }
    }
}

const OPERATIONS: [Operation; 7] = [
    Operation::Add,
    Operation::Sub,
    Operation::Mul,
    Operation::Div,
    Operation::Fma,
    Operation::Sqrt,
    Operation::Rcp,
];

/// The directed roundings bracket the exact value: a square root's square, a quotient's product.
#[test]
fn the_model_rounds_as_directed() {
    let at = |at: usize, operation, operands: &[u64]| {
        let mode = Mode {
            round: ROUNDINGS[at].1,
            ftz: false,
            sat: false,
        };
        match arithmetic(F32, operation, mode, operands) {
            Want::Bits(bits) => value(F32, bits),
            other => panic!("{other:?}"),
        }
    };
    for bits in (1..0x7f80_0000u64).step_by(7_654_321) {
        let [down, up] = [2, 3].map(|round| at(round, Operation::Sqrt, &[bits]));
        // Both squares are exact in double precision.
        assert!(
            down * down <= value(F32, bits) && value(F32, bits) <= up * up,
            "root of {bits:x}"
        );
        assert!(
            down == up || (up as f32).to_bits() - (down as f32).to_bits() == 1,
            "root of {bits:x}"
        );
        assert!(
            [down, up].contains(&at(0, Operation::Sqrt, &[bits])) && at(1, Operation::Sqrt, &[bits]) == down
        );
    }
    let third = |round: usize| at(round, Operation::Rcp, &[0x4040_0000]) as f32;
    assert_eq!(
        [0, 1, 2, 3].map(|round| third(round).to_bits()),
        [0x3eaa_aaab, 0x3eaa_aaaa, 0x3eaa_aaaa, 0x3eaa_aaab]
    );
}
