//! Half precision, one and two in a register, against a model in software.

use crate::compare::{FLOAT, holds};
use crate::instruction::{Instruction, instruction};
use crate::minmax::extreme;
use crate::soft::{Mode, Operation, ROUNDINGS, arithmetic, float, flushed};
use crate::types::Ty::{self, *};
use crate::want::{Want, value};

const HALVES: [Ty; 2] = [F16, BF16];

/// Runs `text` with the type's name, then with its pair's, whose halves the model judges one by one.
fn both(ty: Ty, text: &str, count: usize, model: impl Fn(&[u64]) -> Want + Copy) {
    let operands = ["{a}", "{b}", "{c}"][..count].join(", ");
    instruction(
        format!("{text}.{} {{d}}, {operands};", ty.name()),
        &[ty],
        &vec![ty; count],
    )
    .registers_only()
    .check(model);
    pair(format!("{text}.{}x2 {{d}}, {operands};", ty.name()), count).check(|v| {
        let half = |shift: u32| {
            let lanes: Vec<u64> = v.iter().map(|word| word >> shift & 0xffff).collect();
            match model(&lanes) {
                Want::Bits(bits) => Some(bits),
                Want::Nan => Some(0x7fff),
                _ => None,
            }
        };
        match (half(16), half(0)) {
            (Some(high), Some(low)) => Want::Bits(high << 16 | low),
            _ => Want::Open,
        }
    });
}

fn pair(text: String, count: usize) -> Instruction {
    instruction(text, &[B32], &vec![B32; count]).registers_only()
}

/// The ISA's `.relu`: NaN stays, what is below zero becomes zero.
fn relu(ty: Ty, want: Want) -> Want {
    match want {
        Want::Bits(bits) if bits >> (ty.bits() - 1) & 1 == 1 => Want::Bits(0),
        other => other,
    }
}

/// `.sat`, with the positive zero that the engine gives.
fn saturated(ty: Ty, want: Want) -> Want {
    match want.saturated(ty) {
        Want::Zero => Want::Bits(0),
        other => other,
    }
}

#[test]
fn arithmetic_that_rounds_once() {
    for ty in HALVES {
        for (name, operation, count) in [
            ("add.rn", Operation::Add, 2),
            ("sub.rn", Operation::Sub, 2),
            ("mul.rn", Operation::Mul, 2),
            ("fma.rn", Operation::Fma, 3),
        ] {
            let mode = Mode {
                round: ROUNDINGS[0].1,
                ftz: false,
                sat: false,
            };
            let plain = move |v: &[u64]| arithmetic(ty, operation, mode, v);
            both(ty, name, count, plain);
            if operation as u32 == Operation::Fma as u32 {
                both(ty, "fma.rn.relu", 3, move |v| relu(ty, plain(v)));
            } else {
                both(ty, &name[..3], count, plain);
            }
            if ty == F16 {
                let flushing = move |v: &[u64]| arithmetic(ty, operation, Mode { ftz: true, ..mode }, v);
                both(ty, &format!("{name}.ftz"), count, flushing);
                both(ty, &format!("{name}.sat"), count, move |v| {
                    saturated(ty, plain(v))
                });
                both(ty, &format!("{name}.ftz.sat"), count, move |v| {
                    saturated(ty, flushing(v))
                });
            }
        }
    }
}

#[test]
fn signs_and_extremes() {
    for ty in HALVES {
        both(ty, "abs", 1, move |v| sign_of_nan_open(ty, v[0] & 0x7fff));
        both(ty, "neg", 1, move |v| sign_of_nan_open(ty, v[0] ^ 0x8000));
        for (name, least) in [("min", true), ("max", false)] {
            both(ty, name, 2, move |v| extreme(ty, least, false, v[0], v[1]));
            both(ty, &format!("{name}.NaN"), 2, move |v| {
                extreme(ty, least, true, v[0], v[1])
            });
            both(ty, &format!("{name}.xorsign.abs"), 2, move |v| {
                match extreme(ty, least, false, v[0] & 0x7fff, v[1] & 0x7fff) {
                    Want::Bits(bits) => Want::Bits(bits | (v[0] ^ v[1]) & 0x8000),
                    other => other,
                }
            });
        }
    }
    both(F16, "abs.ftz", 1, |v| {
        sign_of_nan_open(F16, flushed(F16, v[0] & 0x7fff))
    });
}

/// The bits, and anything at all where they are a NaN.
fn sign_of_nan_open(ty: Ty, bits: u64) -> Want {
    if value(ty, bits).is_nan() {
        Want::Open
    } else {
        Want::Bits(bits)
    }
}

/// Within the error that the ISA allows: 2^-9.9 for binary16, 2^-7 for bfloat16's exponential, 2^-8 for its tangent.
#[test]
fn exponentials_and_tangents() {
    for (ty, exponential, error) in [(F16, "ex2.approx", 0.00105), (BF16, "ex2.approx.ftz", 0.0079)] {
        for (text, function) in [
            (exponential, f64::exp2 as fn(f64) -> f64),
            ("tanh.approx", f64::tanh),
        ] {
            let largest = if ty == F16 { 65504.0 } else { f64::from(f32::MAX) };
            let least = if ty == F16 {
                2f64.powi(-24)
            } else {
                2f64.powi(-126)
            };
            instruction(format!("{text}.{} {{d}}, {{a}};", ty.name()), &[ty], &[ty])
                .registers_only()
                .check(|v| {
                    let exact = function(value(ty, v[0]));
                    let slack = (exact.abs() * error).max(least);
                    if exact.is_nan() {
                        Want::Nan
                    } else if exact > largest {
                        Want::Between(largest, f64::INFINITY)
                    } else {
                        Want::Between(exact - slack, exact + slack)
                    }
                });
        }
    }
}

#[test]
fn comparisons() {
    for ty in HALVES {
        let n = ty.name();
        for op in FLOAT {
            instruction(format!("setp.{op}.{n} {{d}}, {{a}}, {{b}};"), &[Pred], &[ty, ty])
                .registers_only()
                .bits(|v| u64::from(holds(ty, op, v[0], v[1])));
            let halves = |v: &[u64]| [0, 16].map(|s| holds(ty, op, v[0] >> s & 0xffff, v[1] >> s & 0xffff));
            instruction(
                format!("setp.{op}.{n}x2 {{d}}|{{e}}, {{a}}, {{b}};"),
                &[Pred, Pred],
                &[B32, B32],
            )
            .registers_only()
            .check_all(|v| halves(v).map(|yes| Want::Bits(u64::from(yes))).to_vec());
            let one = if ty == F16 { 0x3c00 } else { 0x3f80 };
            for (to, full) in [(n.to_string() + "x2", one), (String::from("u32"), 0xffff)] {
                pair(format!("set.{op}.{to}.{n}x2 {{d}}, {{a}}, {{b}};"), 2).bits(|v| {
                    let [low, high] = halves(v).map(|yes| if yes { full } else { 0 });
                    high << 16 | low
                });
            }
        }
        instruction(format!("set.gt.u32.{n} {{d}}, {{a}}, {{b}};"), &[U32], &[ty, ty])
            .registers_only()
            .bits(|v| {
                if holds(ty, "gt", v[0], v[1]) {
                    0xffff_ffff
                } else {
                    0
                }
            });
        instruction(
            format!("set.leu.and.{n}.{n} {{d}}, {{a}}, {{b}}, {{c}};"),
            &[ty],
            &[ty, ty, Pred],
        )
        .registers_only()
        .bits(|v| {
            let one = if ty == F16 { 0x3c00 } else { 0x3f80 };
            if holds(ty, "leu", v[0], v[1]) && v[2] == 1 {
                one
            } else {
                0
            }
        });
    }
    instruction("setp.lt.ftz.f16 {d}, {a}, {b};", &[Pred], &[F16, F16])
        .registers_only()
        .bits(|v| u64::from(holds(F16, "lt", flushed(F16, v[0]), flushed(F16, v[1]))));
    assert_eq!(float(F16, 0x3c00), Want::Bits(0x3c00));
}
