//! Arithmetic and comparison of `.f16`, `.bf16` and their pairs.

use super::{D, Decoded, Decoder, E, Refusal, V};
use crate::engine::half::{
    self, Abs, Add, BRAIN, Binary16, Brain16, COMBINE_SHIFT, COMPARISON_SHIFT, COMPARISONS, Ex2, FTZ, Fma,
    In, Max, Min, Mul, NAN, Neg, PACKED, RELU, SAT, Sub, Tanh, XORSIGN,
};
use crate::engine::map;
use crate::inst::Exec;
use crate::parse::ast::Operand;
use crate::types::Ty;

/// Whether the type is one or two numbers of half precision.
pub(super) fn is_half(ty: Ty) -> bool {
    matches!(ty, Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2)
}

fn brain(ty: Ty) -> bool {
    matches!(ty, Ty::Bf16 | Ty::Bf16x2)
}

fn packed(ty: Ty) -> bool {
    matches!(ty, Ty::F16x2 | Ty::Bf16x2)
}

impl Decoder<'_, '_> {
    fn half_flags(&self, ty: Ty) -> u32 {
        [
            ("ftz", FTZ),
            ("sat", SAT),
            ("relu", RELU),
            ("NaN", NAN),
            ("xorsign", XORSIGN),
        ]
        .into_iter()
        .filter(|(word, _)| self.has(word))
        .fold(if packed(ty) { PACKED } else { 0 }, |flags, (_, flag)| {
            flags | flag
        })
    }

    pub(super) fn half_arithmetic(&mut self, op: &str, ty: Ty) -> Decoded {
        if self.has("oob") || self.types().len() != 1 {
            return Err(Refusal::Unsupported);
        }
        if self.directed_mode().is_some() {
            return Err("the type is rounded to nearest".into());
        }
        macro_rules! exec {
            ($op:ident) => {
                if brain(ty) {
                    half::half::<In<Brain16, $op>>(self.set)
                } else {
                    half::half::<In<Binary16, $op>>(self.set)
                }
            };
        }
        let (exec, sources): (Exec, usize) = match op {
            "add" => (exec!(Add), 2),
            "sub" => (exec!(Sub), 2),
            "mul" => (exec!(Mul), 2),
            "fma" => (exec!(Fma), 3),
            "min" => (exec!(Min), 2),
            "max" => (exec!(Max), 2),
            "abs" => (exec!(Abs), 1),
            "neg" => (exec!(Neg), 1),
            "ex2" => (exec!(Ex2), 1),
            "tanh" => (exec!(Tanh), 1),
            _ => return Err("the instruction has no form of half precision".into()),
        };
        if matches!(op, "min" | "max") && self.at.operands.len() == 4 {
            return Err(Refusal::Unsupported);
        }
        self.expect_operands(1 + sources)?;
        let d = self.target(0, ty)?;
        let mut from = [V::None; 3];
        for (n, v) in from.iter_mut().take(sources).enumerate() {
            *v = self.source(1 + n, ty)?;
        }
        let aux = self.half_flags(ty);
        self.emit(exec, d, from, D).aux = aux;
        Ok(())
    }

    /// Flags of a comparison: the operator, the type, and how a predicate joins.
    fn half_comparison(&self, op: &str, ty: Ty, combine: u32) -> Decoded<u32> {
        let Some(comparison) = COMPARISONS.iter().position(|c| *c == op) else {
            return Err(Refusal::Bad(format!("`.{op}` does not compare {ty:?}")));
        };
        Ok((comparison as u32) << COMPARISON_SHIFT
            | combine << COMBINE_SHIFT
            | if brain(ty) { BRAIN } else { 0 }
            | self.half_flags(ty) & (FTZ | PACKED))
    }

    /// `setp`: of pairs the second predicate is the high half's.
    pub(super) fn half_setp(&mut self, op: &str, ty: Ty, combine: u32) -> Decoded {
        let aux = self.half_comparison(op, ty, combine)?;
        let (p, q) = match self.operand(0)?.clone() {
            Operand::Pair(p, q) => (self.target_of(&p, Ty::Pred)?, self.target_of(&q, Ty::Pred)?),
            _ if packed(ty) => return Err("`setp` of pairs gives two predicates".into()),
            p => (self.target_of(&p, Ty::Pred)?, V::TrashPred),
        };
        let (a, b) = (self.source(1, ty)?, self.source(2, ty)?);
        let (c, not_c) = self.combining(combine)?;
        let draft = self.emit(half::set_predicate, p, [a, b, c], D | E);
        draft.e = q;
        draft.aux = aux;
        draft.not_c = not_c;
        Ok(())
    }

    pub(super) fn half_set(&mut self, op: &str, to: Ty, from: Ty, combine: u32) -> Decoded {
        let aux = self.half_comparison(op, from, combine)?;
        let one = match to {
            Ty::F16 | Ty::F16x2 => 0x3c00_3c00,
            Ty::Bf16 | Ty::Bf16x2 => 0x3f80_3f80,
            Ty::U16 | Ty::S16 | Ty::U32 | Ty::S32 => 0xffff_ffffu64,
            _ => return Err(Refusal::Unsupported),
        };
        if packed(from) && to.bytes() != 4 {
            return Err("`set` of pairs gives 32 bits".into());
        }
        let d = self.target(0, to)?;
        let (a, b) = (self.source(1, from)?, self.source(2, from)?);
        let (c, not_c) = self.combining(combine)?;
        let draft = self.emit(half::set_register, d, [a, b, c], D);
        draft.aux = aux;
        draft.not_c = not_c;
        draft.imm = if to.bytes() == 2 { one & 0xffff } else { one };
        Ok(())
    }

    /// `.xorsign.abs` and the third operand of `min` and `max` of singles.
    pub(super) fn f32_extreme(&mut self, op: &str, plain: Exec) -> Decoded {
        let count = self.at.operands.len();
        if !matches!(count, 3 | 4) {
            return Err("expected a destination and two or three operands".into());
        }
        let signed = self.has("xorsign");
        let (exec, mut aux): (Exec, u32) = if signed {
            (half::signed_extreme, 0)
        } else {
            (plain, 0)
        };
        if signed {
            aux = self.half_flags(Ty::F32) & (FTZ | NAN) | if op == "max" { PACKED } else { 0 };
        }
        let d = self.target(0, Ty::F32)?;
        let (mut a, mut b) = (self.source(1, Ty::F32)?, self.source(2, Ty::F32)?);
        if count == 4 {
            // Nothing else comes in between, so the register that no instruction reads can hold it.
            self.emit(exec, V::Trash, [a, b, V::None], D).aux = aux;
            (a, b) = (V::Trash, self.source(3, Ty::F32)?);
        }
        self.emit(exec, d, [a, b, V::None], D).aux = aux;
        Ok(())
    }
}

/// How a comparison is joined with a predicate fits its bits.
const _: () = assert!(map::COMBINE_XOR < 4);
