//! `setp`, `set`, `selp`, `slct`.

use super::half::is_half;
use super::{D, Decoded, Decoder, E, Refusal, V};
use crate::engine::compare::*;
use crate::engine::map::{self, Cmp, select, set, setp, setp_full};
use crate::engine::select::slct;
use crate::inst::{Exec, VectorSet};
use crate::parse::ast::Operand;
use crate::types::Ty;

/// Which of the three loops a comparison goes into.
#[derive(Clone, Copy)]
enum Form {
    Plain,
    Full,
    Set,
}

fn pick<O: Cmp>(form: Form, vectors: VectorSet) -> Exec {
    match form {
        Form::Plain => setp::<O>(vectors),
        Form::Full => setp_full::<O>(vectors),
        Form::Set => set::<O>(vectors),
    }
}

fn comparison(op: &str, ty: Ty, ftz: bool, form: Form, v: VectorSet) -> Option<Exec> {
    macro_rules! by {
        ($o:ident) => {
            pick::<$o>(form, v)
        };
        ($o:ident, ftz) => {
            if ftz {
                pick::<$o<true>>(form, v)
            } else {
                pick::<$o<false>>(form, v)
            }
        };
    }
    Some(match (ty, op) {
        (Ty::F32, "eq") => by!(EqF32, ftz),
        (Ty::F32, "ne") => by!(NeF32, ftz),
        (Ty::F32, "lt") => by!(LtF32, ftz),
        (Ty::F32, "le") => by!(LeF32, ftz),
        (Ty::F32, "gt") => by!(GtF32, ftz),
        (Ty::F32, "ge") => by!(GeF32, ftz),
        (Ty::F32, "equ") => by!(EquF32, ftz),
        (Ty::F32, "neu") => by!(NeuF32, ftz),
        (Ty::F32, "ltu") => by!(LtuF32, ftz),
        (Ty::F32, "leu") => by!(LeuF32, ftz),
        (Ty::F32, "gtu") => by!(GtuF32, ftz),
        (Ty::F32, "geu") => by!(GeuF32, ftz),
        (Ty::F32, "num") => by!(NumF32),
        (Ty::F32, "nan") => by!(NanF32),
        (Ty::F64, "eq") => by!(EqF64),
        (Ty::F64, "ne") => by!(NeF64),
        (Ty::F64, "lt") => by!(LtF64),
        (Ty::F64, "le") => by!(LeF64),
        (Ty::F64, "gt") => by!(GtF64),
        (Ty::F64, "ge") => by!(GeF64),
        (Ty::F64, "equ") => by!(EquF64),
        (Ty::F64, "neu") => by!(NeuF64),
        (Ty::F64, "ltu") => by!(LtuF64),
        (Ty::F64, "leu") => by!(LeuF64),
        (Ty::F64, "gtu") => by!(GtuF64),
        (Ty::F64, "geu") => by!(GeuF64),
        (Ty::F64, "num") => by!(NumF64),
        (Ty::F64, "nan") => by!(NanF64),
        _ if !ty.integer() => return None,
        _ => {
            let signed = ty.signed();
            // `lo ls hi hs` are the unsigned comparisons by another name.
            let (op, signed) = match op {
                "lo" => ("lt", false),
                "ls" => ("le", false),
                "hi" => ("gt", false),
                "hs" => ("ge", false),
                _ => (op, signed),
            };
            match (ty.bytes(), op, signed) {
                (2, "eq", _) => by!(Eq16),
                (2, "ne", _) => by!(Ne16),
                (2, "lt", true) => by!(LtS16),
                (2, "le", true) => by!(LeS16),
                (2, "gt", true) => by!(GtS16),
                (2, "ge", true) => by!(GeS16),
                (2, "lt", false) => by!(LtU16),
                (2, "le", false) => by!(LeU16),
                (2, "gt", false) => by!(GtU16),
                (2, "ge", false) => by!(GeU16),
                (4, "eq", _) => by!(Eq32),
                (4, "ne", _) => by!(Ne32),
                (4, "lt", true) => by!(LtS32),
                (4, "le", true) => by!(LeS32),
                (4, "gt", true) => by!(GtS32),
                (4, "ge", true) => by!(GeS32),
                (4, "lt", false) => by!(LtU32),
                (4, "le", false) => by!(LeU32),
                (4, "gt", false) => by!(GtU32),
                (4, "ge", false) => by!(GeU32),
                (8, "eq", _) => by!(Eq64),
                (8, "ne", _) => by!(Ne64),
                (8, "lt", true) => by!(LtS64),
                (8, "le", true) => by!(LeS64),
                (8, "gt", true) => by!(GtS64),
                (8, "ge", true) => by!(GeS64),
                (8, "lt", false) => by!(LtU64),
                (8, "le", false) => by!(LeU64),
                (8, "gt", false) => by!(GtU64),
                (8, "ge", false) => by!(GeU64),
                _ => return None,
            }
        }
    })
}

impl Decoder<'_, '_> {
    pub(super) fn comparison(&mut self) -> Decoded {
        match self.at.op[0] {
            "setp" => self.setp(),
            "set" => self.set_register(),
            "selp" => self.selp(),
            _ => self.slct(),
        }
    }

    /// Comparison operator and how it combines.
    fn operator(&self) -> Decoded<(String, u32)> {
        let Some(op) = self.mods.first() else {
            return Err("no comparison is named".into());
        };
        let combine = if self.has("and") {
            map::COMBINE_AND
        } else if self.has("or") {
            map::COMBINE_OR
        } else if self.has("xor") {
            map::COMBINE_XOR
        } else {
            map::COMBINE_NONE
        };
        Ok(((*op).to_owned(), combine))
    }

    fn compared(&self, op: &str, ty: Ty, form: Form) -> Decoded<Exec> {
        comparison(op, ty, self.has("ftz"), form, self.set)
            .ok_or_else(|| Refusal::Bad(format!("`.{op}` does not compare {ty:?}")))
    }

    fn setp(&mut self) -> Decoded {
        let (op, combine) = self.operator()?;
        let ty = self.ty()?;
        self.expect_operands(if combine == map::COMBINE_NONE { 3 } else { 4 })?;
        if is_half(ty) {
            return self.half_setp(&op, ty, combine);
        }
        let (p, q) = match self.operand(0)?.clone() {
            Operand::Pair(p, q) => (self.target_of(&p, Ty::Pred)?, Some(self.target_of(&q, Ty::Pred)?)),
            p => (self.target_of(&p, Ty::Pred)?, None),
        };
        let (a, b) = (self.source(1, ty)?, self.source(2, ty)?);
        if combine == map::COMBINE_NONE && q.is_none() {
            let exec = self.compared(&op, ty, Form::Plain)?;
            self.emit(exec, p, [a, b, V::None], D);
            return Ok(());
        }
        let exec = self.compared(&op, ty, Form::Full)?;
        let (c, not_c) = self.combining(combine)?;
        let draft = self.emit(exec, p, [a, b, c], D | E);
        draft.e = q.unwrap_or(V::TrashPred);
        draft.aux = combine;
        draft.not_c = not_c;
        Ok(())
    }

    pub(super) fn combining(&mut self, combine: u32) -> Decoded<(V, bool)> {
        if combine == map::COMBINE_NONE {
            return Ok((V::None, false));
        }
        let operand = self.operand(3)?.clone();
        self.predicate(&operand)
    }

    fn set_register(&mut self) -> Decoded {
        let (op, combine) = self.operator()?;
        let types = self.types();
        let [to, from] = types[..] else {
            return Err("`set` names two types".into());
        };
        self.expect_operands(if combine == map::COMBINE_NONE { 3 } else { 4 })?;
        if is_half(from) {
            return self.half_set(&op, to, from, combine);
        }
        let one: u64 = match to {
            Ty::U32 | Ty::S32 | Ty::B32 => 0xffff_ffff,
            Ty::U16 | Ty::S16 => 0xffff,
            Ty::F32 => u64::from(1f32.to_bits()),
            Ty::F16 => 0x3c00,
            Ty::Bf16 => 0x3f80,
            _ => return Err(Refusal::Unsupported),
        };
        let exec = self.compared(&op, from, Form::Set)?;
        let d = self.target(0, to)?;
        let (a, b) = (self.source(1, from)?, self.source(2, from)?);
        let (c, not_c) = self.combining(combine)?;
        let draft = self.emit(exec, d, [a, b, c], D);
        draft.aux = combine;
        draft.not_c = not_c;
        draft.imm = one;
        Ok(())
    }

    fn selp(&mut self) -> Decoded {
        self.expect_operands(4)?;
        let ty = self.ty()?;
        if ty == Ty::Pred {
            return Err("`selp` selects registers".into());
        }
        let d = self.target(0, ty)?;
        let (a, b) = (self.source(1, ty)?, self.source(2, ty)?);
        let operand = self.operand(3)?.clone();
        let (c, not_c) = self.predicate(&operand)?;
        let exec = if ty.bytes() == 8 {
            select::<u64>(self.set)
        } else {
            select::<u32>(self.set)
        };
        self.emit(exec, d, [a, b, c], D).not_c = not_c;
        Ok(())
    }

    fn slct(&mut self) -> Decoded {
        self.expect_operands(4)?;
        let types = self.types();
        let [ty, by] = types[..] else {
            return Err("`slct` names two types".into());
        };
        if !matches!(by, Ty::S32 | Ty::F32) {
            return Err("`slct` selects by .s32 or .f32".into());
        }
        let d = self.target(0, ty)?;
        let sources = [self.source(1, ty)?, self.source(2, ty)?, self.source(3, by)?];
        let exec = slct(ty.bytes() == 8, by == Ty::F32, self.has("ftz"));
        self.emit(exec, d, sources, D);
        Ok(())
    }
}
