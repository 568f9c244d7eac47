//! The approximate functions, within the errors that the ISA documents.

use crate::instruction::{Instruction, instruction};
use crate::soft::{Mode, Operation, arithmetic, flushed};
use crate::types::Ty::{self, *};
use crate::want::{Want, value};

/// Nearest rounding, nothing else.
const NEAREST: Mode = Mode {
    round: rustc_apfloat::Round::NearestTiesToEven,
    ftz: false,
    sat: false,
};

/// `name` over one single, plain and flushing: `model` takes the operand's value.
fn unary(name: &str, plain: bool, model: impl Fn(f64) -> Want) {
    let probe = |modifier: &str| -> Instruction {
        instruction(
            format!("{name}.approx{modifier}.f32 {{d}}, {{a}};"),
            &[F32],
            &[F32],
        )
    };
    if plain {
        probe("").check(|v| model(value(F32, v[0])));
    }
    probe(".ftz").check(|v| or_zero(F32, model(value(F32, flushed(F32, v[0])))));
}

/// A result that may be denormal may be flushed.
fn or_zero(ty: Ty, want: Want) -> Want {
    let normal = f64::from(f32::MIN_POSITIVE);
    match want {
        Want::Between(low, high) if ty == F32 && low.abs().min(high.abs()) < normal => {
            Want::Between(low.min(0.0), high.max(0.0))
        }
        other => other,
    }
}

#[test]
fn rcp() {
    unary("rcp", true, |x| Want::near(F32, 1.0 / x, 2f64.powi(-23)));
}

#[test]
fn sqrt() {
    unary("sqrt", true, |x| Want::near(F32, x.sqrt(), 2f64.powi(-22)));
}

#[test]
fn rsqrt() {
    unary("rsqrt", true, |x| {
        Want::near(F32, 1.0 / x.sqrt(), 2f64.powf(-22.4))
    });
    instruction("rsqrt.approx.f64 {d}, {a};", &[F64], &[F64])
        .check(|v| Want::near(F64, 1.0 / value(F64, v[0]).sqrt(), 2f64.powi(-50)));
}

/// The coarse double forms look at the upper word only and flush.
#[test]
fn coarse_doubles() {
    for (name, model) in [
        ("rcp", (|x| 1.0 / x) as fn(f64) -> f64),
        ("rsqrt", |x| 1.0 / x.sqrt()),
    ] {
        instruction(format!("{name}.approx.ftz.f64 {{d}}, {{a}};"), &[F64], &[F64]).check(|v| {
            let upper = v[0] & 0xffff_ffff_0000_0000;
            // A NaN that only the lower word tells from infinity.
            if value(F64, v[0]).is_nan() && !value(F64, upper).is_nan() {
                return Want::Open;
            }
            let exact = model(value(F64, flushed(F64, upper)));
            match Want::near(F64, exact, 2f64.powi(-19)) {
                // 1 / huge is denormal: kept or flushed.
                Want::Between(low, high) if exact.abs() < 2.0 * f64::MIN_POSITIVE => {
                    Want::Between(low.min(0.0), high.max(0.0))
                }
                want => want,
            }
        });
    }
}

/// `.approx` may answer 0 for divisors above 2^126 (infinity over such: NaN); `.full` holds everywhere.
#[test]
fn div() {
    for (form, two_ulp) in [
        ("approx", 2f64.powi(-22)),
        ("full", 2f64.powi(-22)),
        ("approx.ftz", 2f64.powi(-22)),
        ("full.ftz", 2f64.powi(-22)),
    ] {
        instruction(
            format!("div.{form}.f32 {{d}}, {{a}}, {{b}};"),
            &[F32],
            &[F32, F32],
        )
        .check(|v| {
            let ftz = form.ends_with("ftz");
            let operands: Vec<u64> = v
                .iter()
                .map(|b| if ftz { flushed(F32, *b) } else { *b })
                .collect();
            let (x, y) = (value(F32, operands[0]), value(F32, operands[1]));
            let large = form.starts_with("approx") && y.is_finite() && y.abs() > 2f64.powi(126);
            let small = form.starts_with("approx") && y != 0.0 && y.abs() < 2f64.powi(-126);
            if large && !x.is_finite() || small {
                return Want::Open;
            }
            match arithmetic(F32, Operation::Div, NEAREST, &operands) {
                Want::Bits(bits) => {
                    let want = Want::near(F32, value(F32, bits), two_ulp);
                    let flat = large || y.abs() > 2f64.powi(126);
                    let want = if ftz || flat { or_zero(F32, want) } else { want };
                    match want {
                        Want::Between(low, high) if flat => Want::Between(low.min(0.0), high.max(0.0)),
                        other => other,
                    }
                }
                other => other,
            }
        });
    }
}

/// Absolute error within one turn; beyond it no promise; infinity has no sine.
#[test]
fn sin_and_cos() {
    for (name, model) in [("sin", f64::sin as fn(f64) -> f64), ("cos", f64::cos)] {
        unary(name, true, |x| {
            let exact = model(x);
            let slack = 2f64.powf(-20.5);
            match x.abs() {
                _ if !x.is_finite() => Want::Nan,
                turn if turn <= std::f64::consts::PI => Want::Between(exact - slack, exact + slack),
                _ => Want::Open,
            }
        });
    }
}

#[test]
fn lg2() {
    unary("lg2", true, |x| {
        let exact = x.log2();
        match x {
            _ if 0.5 < x && x < 2.0 => Want::Between(exact - 2f64.powi(-22), exact + 2f64.powi(-22)),
            _ => Want::near(F32, exact, 2f64.powi(-22)),
        }
    });
}

#[test]
fn ex2() {
    unary("ex2", true, |x| Want::near(F32, x.exp2(), 2f64.powi(-22)));
}

#[test]
fn tanh() {
    instruction("tanh.approx.f32 {d}, {a};", &[F32], &[F32])
        .check(|v| Want::near(F32, value(F32, v[0]).tanh(), 2f64.powi(-10)));
}
