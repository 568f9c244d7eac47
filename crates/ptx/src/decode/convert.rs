//! `cvt`.

use super::{D, Decoded, Decoder, Refusal, V};
use crate::engine::convert::*;
use crate::engine::map::one;
use crate::engine::small_float;
use crate::inst::Exec;
use crate::rounding::Mode;
use crate::types::Ty;

/// Whether each value of one integer type is one of the other's. The PTX ISA forbids `.sat` there, and ptxas refuses it.
fn holds_all_of(to: Ty, from: Ty) -> bool {
    match (to.signed(), from.signed()) {
        (true, true) | (false, false) => to.bytes() >= from.bytes(),
        (true, false) => to.bytes() > from.bytes(),
        (false, true) => false,
    }
}

impl Decoder<'_, '_> {
    /// Rounding mode and whether it is to an integral value.
    pub(super) fn rounding_mode(&self) -> Option<(Mode, bool)> {
        self.mods.iter().find_map(|m| {
            Some(match *m {
                "rn" => (Mode::Nearest, false),
                "rna" => (Mode::NearestAway, false),
                "rz" => (Mode::Zero, false),
                "rm" => (Mode::Down, false),
                "rp" => (Mode::Up, false),
                "rni" => (Mode::Nearest, true),
                "rzi" => (Mode::Zero, true),
                "rmi" => (Mode::Down, true),
                "rpi" => (Mode::Up, true),
                _ => return None,
            })
        })
    }

    pub(super) fn directed_mode(&self) -> Option<Mode> {
        self.rounding_mode()
            .map(|(mode, _)| mode)
            .filter(|m| *m != Mode::Nearest)
    }

    pub(super) fn convert(&mut self) -> Decoded {
        let types = self.types();
        if self.mods.iter().any(|m| {
            matches!(*m, "pack" | "rs" | "scaled")
                || m.starts_with("e3")
                || m.starts_with("e2")
                || m.starts_with("ue8")
        }) {
            return Err(Refusal::Unsupported);
        }
        if self.has("tf32") || self.has("e4m3x2") || self.has("e5m2x2") {
            return self.convert_small();
        }
        // Of halves and their pairs only: beside them there is no such modifier.
        if self.has("satfinite") {
            return Err(Refusal::Unsupported);
        }
        let [to, from] = types[..] else {
            return Err("`cvt` names two types".into());
        };
        let given = self.rounding_mode();
        let (mode, integral) = given.unwrap_or((Mode::Nearest, false));
        let (sat, ftz, relu) = (self.has("sat"), self.has("ftz"), self.has("relu"));
        if matches!(to, Ty::F16x2 | Ty::Bf16x2) {
            if from != Ty::F32 {
                return Err(Refusal::Unsupported);
            }
            self.expect_operands(3)?;
            let half = if to == Ty::F16x2 { Ty::F16 } else { Ty::Bf16 };
            let how = Conversion {
                from,
                to: half,
                mode,
                sat,
                ftz: false,
                relu,
                integral: false,
                from_wide: false,
                to_wide: false,
            };
            let (d, a, b) = (self.target(0, to)?, self.source(1, from)?, self.source(2, from)?);
            let imm = how.encode().ok_or(Refusal::Unsupported)?;
            self.emit(pair, d, [a, b, V::None], D).imm = imm;
            return Ok(());
        }
        self.expect_operands(2)?;
        let (target, source) = (self.operand(0)?.clone(), self.operand(1)?.clone());
        let (d, to_wide) = self.loose_target(&target, to)?;
        let (a, from_wide) = self.loose_source(&source, from)?;
        // Untyped integers convert as unsigned ones.
        let typed = |t: Ty| match t {
            Ty::B8 => Ty::U8,
            Ty::B16 => Ty::U16,
            Ty::B32 => Ty::U32,
            Ty::B64 => Ty::U64,
            t => t,
        };
        let (to, from) = (typed(to), typed(from));
        if from.float() && to.integer() && given.is_none() {
            return Err("a conversion to an integer names a rounding mode".into());
        }
        if sat && from.integer() && to.integer() && holds_all_of(to, from) {
            let why = format!("`.sat` changes nothing from {from:?} to {to:?}, and is not allowed there");
            return Err(why.into());
        }
        // Between floating-point types of one size, a plain rounding mode has nothing to round.
        let integral = integral && from.float();
        let how = Conversion {
            from,
            to,
            mode,
            sat,
            ftz,
            relu,
            integral,
            from_wide,
            to_wide,
        };
        let imm = how.encode().ok_or(Refusal::Unsupported)?;
        let exec = match self.fast(&how) {
            Some(exec) => exec,
            None => slow,
        };
        self.emit(exec, d, [a, V::None, V::None], D).imm = imm;
        Ok(())
    }

    /// From and to floats of 8 bits, two at a time, and to `.tf32`.
    fn convert_small(&mut self) -> Decoded {
        let types = self.types();
        let mut aux = if self.has("e5m2x2") { small_float::E5M2 } else { 0 };
        if self.has("relu") {
            aux |= small_float::RELU;
        }
        if self.has("satfinite") {
            aux |= small_float::FINITE;
        }
        if self.has("tf32") {
            let rounding = self
                .rounding_mode()
                .and_then(|(mode, _)| small_float::tf32_rounding(mode));
            let ([Ty::F32], Some(rounding)) = (&types[..], rounding) else {
                return Err("`.tf32` is made of `.f32` with `.rn`, `.rna` or `.rz`".into());
            };
            self.expect_operands(2)?;
            let (d, a) = (self.target(0, Ty::B32)?, self.source(1, Ty::F32)?);
            self.emit(small_float::to_tf32, d, [a, V::None, V::None], D).aux = aux | rounding;
            return Ok(());
        }
        let small = |m: &str| matches!(m, "e4m3x2" | "e5m2x2");
        let narrows = self.mods.last().is_some_and(|m| !small(m));
        match (&types[..], narrows) {
            ([Ty::F32 | Ty::F16x2], true) if !self.has("satfinite") => {
                Err("a conversion to 8 bits has `.satfinite`".into())
            }
            ([Ty::F32], true) => {
                self.expect_operands(3)?;
                let d = self.target(0, Ty::B16)?;
                let (a, b) = (self.source(1, Ty::F32)?, self.source(2, Ty::F32)?);
                self.emit(small_float::from_singles, d, [a, b, V::None], D).aux = aux;
                Ok(())
            }
            ([Ty::F16x2], _) => {
                self.expect_operands(2)?;
                let (exec, to, from): (Exec, Ty, Ty) = if narrows {
                    (small_float::from_halves, Ty::B16, Ty::F16x2)
                } else {
                    (small_float::to_halves, Ty::F16x2, Ty::B16)
                };
                let (d, a) = (self.target(0, to)?, self.source(1, from)?);
                self.emit(exec, d, [a, V::None, V::None], D).aux = aux;
                Ok(())
            }
            _ => Err(Refusal::Unsupported),
        }
    }

    /// A vector loop for the conversion, if there is one that gives the same bits.
    fn fast(&self, how: &Conversion) -> Option<Exec> {
        use Ty::*;
        let set = self.set;
        let ftz = u32::from(how.ftz);
        if how.relu {
            return None;
        }
        let exact = how.from_wide == (how.from.bytes() == 8) && how.to_wide == (how.to.bytes() == 8);
        if how.to.integer() && how.from.integer() && !how.sat {
            return Some(match (how.from, how.to, how.from_wide, how.to_wide) {
                (U32, U32 | S32 | U64 | S64, false, true) => one::<Widen>(set),
                (S32, S64 | U64, false, true) => one::<WidenS>(set),
                (U32 | S32 | U64 | S64, U32 | S32, true, false) => one::<Narrow>(set),
                (U32 | S32, U32 | S32, false, false) => crate::engine::map::moved::<u32>(set),
                (U64 | S64, U64 | S64, true, true) => crate::engine::map::moved::<u64>(set),
                (U8, U8 | U16 | S16 | U32 | S32, false, false)
                | (U32 | S32 | U16 | S16, U8, false, false) => one::<Take8>(set),
                (U16, U16 | U32 | S32, false, false) | (U32 | S32, U16, false, false) => one::<Take16>(set),
                (S8, S8 | S16 | S32 | U32, false, false) | (U32 | S32 | U16, S8, false, false) => {
                    one::<Take8S>(set)
                }
                (S16, S16 | S32 | U32, false, false) | (U32 | S32, S16, false, false) => one::<Take16S>(set),
                _ => return None,
            });
        }
        if !exact {
            return None;
        }
        let nearest = how.mode == Mode::Nearest && !how.integral;
        Some(match (how.from, how.to) {
            (S32, F32) if nearest && !how.sat => one::<F32FromS32>(set),
            (U32, F32) if nearest && !how.sat => one::<F32FromU32>(set),
            (S32, F64) if !how.sat => one::<F64FromS32>(set),
            (U32, F64) if !how.sat => one::<F64FromU32>(set),
            (S64, F64) if nearest && !how.sat => one::<F64FromS64>(set),
            (U64, F64) if nearest && !how.sat => one::<F64FromU64>(set),
            // Flushing first changes nothing when rounding towards zero.
            (F32, S32) if how.mode == Mode::Zero => one::<S32FromF32>(set),
            (F32, U32) if how.mode == Mode::Zero => one::<U32FromF32>(set),
            (F64, S32) if how.mode == Mode::Zero => one::<S32FromF64>(set),
            (F64, U32) if how.mode == Mode::Zero => one::<U32FromF64>(set),
            (F64, S64) if how.mode == Mode::Zero => one::<S64FromF64>(set),
            (F32, F64) if !how.sat => {
                if how.ftz {
                    one::<F64FromF32<1>>(set)
                } else {
                    one::<F64FromF32<0>>(set)
                }
            }
            (F64, F32) if nearest => match ftz | u32::from(how.sat) << 1 {
                0 => one::<F32FromF64<0>>(set),
                1 => one::<F32FromF64<1>>(set),
                2 => one::<F32FromF64<2>>(set),
                _ => one::<F32FromF64<3>>(set),
            },
            (F32, F32) if !how.integral => match ftz | u32::from(how.sat) << 1 {
                0 => one::<SameF32<0>>(set),
                1 => one::<SameF32<1>>(set),
                2 => one::<SameF32<2>>(set),
                _ => one::<SameF32<3>>(set),
            },
            (F32, F32) if !how.sat && !how.ftz => match how.mode {
                Mode::Down => one::<FloorF32>(set),
                Mode::Up => one::<CeilF32>(set),
                Mode::Zero => one::<TruncF32>(set),
                Mode::Nearest => one::<RoundF32>(set),
                Mode::NearestAway => return None,
            },
            (F64, F64) if !how.sat && how.integral => match how.mode {
                Mode::Down => one::<FloorF64>(set),
                Mode::Up => one::<CeilF64>(set),
                Mode::Zero => one::<TruncF64>(set),
                Mode::Nearest => one::<RoundF64>(set),
                Mode::NearestAway => return None,
            },
            _ => return None,
        })
    }
}
