//! What a host model says of one result, and whether the engine's bits agree.

use crate::types::Ty;

/// The result that the ISA allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Want {
    /// These bits and no others.
    Bits(u64),
    /// Any not-a-number: PTX leaves payloads to the hardware.
    Nan,
    /// Either zero.
    Zero,
    /// A float from the first to the second value, both included.
    Between(f64, f64),
    /// The ISA leaves the value open; only a crash would be wrong.
    Open,
}

impl Want {
    /// Whether `got` in type `ty` is allowed.
    pub fn allows(self, ty: Ty, got: u64) -> bool {
        match self {
            Want::Bits(bits) => bits & ty.mask() == got,
            Want::Nan => value(ty, got).is_nan(),
            Want::Zero => value(ty, got) == 0.0,
            Want::Between(low, high) => low <= value(ty, got) && value(ty, got) <= high,
            Want::Open => true,
        }
    }

    /// Anything within `relative` of `exact`, or one denormal step of `ty`; NaN and infinities exactly.
    pub fn near(ty: Ty, exact: f64, relative: f64) -> Want {
        if exact.is_nan() {
            return Want::Nan;
        }
        let (least, most) = match ty {
            Ty::F32 => (f64::from(f32::from_bits(1)), f64::from(f32::MAX)),
            _ => (f64::from_bits(1), f64::MAX),
        };
        if exact.is_infinite() {
            return Want::Between(exact, exact);
        }
        let slack = (exact.abs() * relative).max(least);
        let bound = |edge: f64| {
            if edge.abs() > most {
                f64::INFINITY.copysign(edge)
            } else {
                edge
            }
        };
        Want::Between(bound(exact - slack), bound(exact + slack))
    }

    /// The result as `.sat` leaves it for a float: clamped to 0..=1, NaN to zero.
    pub fn saturated(self, ty: Ty) -> Want {
        match self {
            Want::Nan => Want::Zero,
            Want::Bits(bits) if value(ty, bits) <= 0.0 => Want::Zero,
            Want::Bits(bits) if value(ty, bits) >= 1.0 => Want::Bits(bits_of(ty, 1.0)),
            other => other,
        }
    }
}

/// A float's value, widened exactly. Integers count as themselves.
pub fn value(ty: Ty, bits: u64) -> f64 {
    match ty {
        Ty::F16 => half(bits as u16),
        Ty::BF16 => f64::from(f32::from_bits((bits as u32) << 16)),
        Ty::F32 => f64::from(f32::from_bits(bits as u32)),
        Ty::F64 => f64::from_bits(bits),
        _ => ty.number(bits) as f64,
    }
}

/// The bits of `value` in `ty`, rounded to nearest.
pub fn bits_of(ty: Ty, value: f64) -> u64 {
    match ty {
        Ty::F32 => u64::from((value as f32).to_bits()),
        Ty::F64 => value.to_bits(),
        Ty::F16 if value == 1.0 => 0x3c00,
        Ty::BF16 if value == 1.0 => 0x3f80,
        _ => panic!("no bits of {value} in {ty:?}"),
    }
}

fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let fraction = f64::from(bits & 0x3ff);
    match bits >> 10 & 31 {
        0 => sign * fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => sign * f64::INFINITY,
        31 => f64::NAN,
        exponent => sign * (1024.0 + fraction) * 2f64.powi(i32::from(exponent) - 25),
    }
}
