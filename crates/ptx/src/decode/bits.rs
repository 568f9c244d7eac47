//! Bit operations and predicate logic.

use super::{D, Decoded, Decoder, Refusal, V};
use crate::engine::alu_int::*;
use crate::engine::map::{one, three, two};
use crate::engine::moves;
use crate::parse::ast::Operand;
use crate::types::Ty;

impl Decoder<'_, '_> {
    pub(super) fn bit_operation(&mut self) -> Decoded {
        let ty = self.ty()?;
        let op = self.at.op[0];
        let set = self.set;
        if ty == Ty::Pred {
            return self.predicate_logic(op);
        }
        if !ty.integer() {
            return Err(Refusal::Bad(format!("the instruction has no {ty:?} form")));
        }
        let (wide, signed) = (ty.bytes() == 8, ty.signed());
        let narrow16 = ty.bytes() == 2;
        let u32_ = Ty::U32;
        macro_rules! sized {
            ($pick:ident, $n:ident, $w:ident) => {
                if wide {
                    $pick::<$w>(set)
                } else {
                    $pick::<$n>(set)
                }
            };
        }
        match op {
            "and" => self.emit2(sized!(two, And32, And64), ty, ty, ty),
            "or" => self.emit2(sized!(two, Or32, Or64), ty, ty, ty),
            "xor" => self.emit2(sized!(two, Xor32, Xor64), ty, ty, ty),
            "not" if narrow16 => self.emit_one(one::<Not16>(set), ty, ty),
            "not" => self.emit_one(sized!(one, Not32, Not64), ty, ty),
            "cnot" if narrow16 => self.emit_one(one::<Cnot16>(set), ty, ty),
            "cnot" => self.emit_one(sized!(one, Cnot32, Cnot64), ty, ty),
            "shl" if narrow16 => self.emit2(two::<Shl16>(set), ty, u32_, ty),
            "shl" => self.emit2(sized!(two, Shl32, Shl64), ty, u32_, ty),
            "shr" if narrow16 && signed => self.emit2(two::<ShrS16>(set), ty, u32_, ty),
            "shr" if narrow16 => self.emit2(two::<ShrU16>(set), ty, u32_, ty),
            "shr" if signed => self.emit2(sized!(two, ShrS32, ShrS64), ty, u32_, ty),
            "shr" => self.emit2(sized!(two, ShrU32, ShrU64), ty, u32_, ty),
            "shf" => {
                let exec = match (self.has("l"), self.has("wrap")) {
                    (true, false) => three::<ShfLClamp>(set),
                    (false, false) => three::<ShfRClamp>(set),
                    (true, true) => three::<ShfLWrap>(set),
                    (false, true) => three::<ShfRWrap>(set),
                };
                self.emit3(exec, [ty, ty, u32_], ty)
            }
            "bfe" => {
                let exec = match (wide, signed) {
                    (false, false) => three::<BfeU32>(set),
                    (false, true) => three::<BfeS32>(set),
                    (true, false) => three::<BfeU64>(set),
                    (true, true) => three::<BfeS64>(set),
                };
                self.emit3(exec, [ty, u32_, u32_], ty)
            }
            "bfi" => {
                self.expect_operands(5)?;
                let d = self.target(0, ty)?;
                let sources = [self.source(1, ty)?, self.source(2, ty)?, self.source(3, u32_)?];
                let length = self.source(4, u32_)?;
                self.emit(if wide { bfi64(set) } else { bfi32(set) }, d, sources, D)
                    .e = length;
                Ok(())
            }
            "bfind" => {
                let exec = match (self.has("shiftamt"), wide, signed) {
                    (false, false, false) => one::<FindU32>(set),
                    (false, false, true) => one::<FindS32>(set),
                    (false, true, false) => one::<FindU64>(set),
                    (false, true, true) => one::<FindS64>(set),
                    (true, false, false) => one::<FindShiftU32>(set),
                    (true, false, true) => one::<FindShiftS32>(set),
                    (true, true, false) => one::<FindShiftU64>(set),
                    (true, true, true) => one::<FindShiftS64>(set),
                };
                self.emit_one(exec, ty, u32_)
            }
            "popc" => self.emit_one(sized!(one, Popc32, Popc64), ty, u32_),
            "clz" => self.emit_one(sized!(one, Clz32, Clz64), ty, u32_),
            "brev" => self.emit_one(sized!(one, Brev32, Brev64), ty, ty),
            "prmt" => {
                let exec = match self.mods.last() {
                    Some(&"f4e") => three::<PrmtF4e>(set),
                    Some(&"b4e") => three::<PrmtB4e>(set),
                    Some(&"rc8") => three::<PrmtRc8>(set),
                    Some(&"ecl") => three::<PrmtEcl>(set),
                    Some(&"ecr") => three::<PrmtEcr>(set),
                    Some(&"rc16") => three::<PrmtRc16>(set),
                    _ => three::<Prmt>(set),
                };
                self.emit3(exec, [ty; 3], ty)
            }
            "fns" => self.emit3(three::<Fns>(set), [ty; 3], ty),
            "bmsk" if self.has("wrap") => self.emit2(two::<BmskWrap>(set), ty, ty, ty),
            "bmsk" => self.emit2(two::<BmskClamp>(set), ty, ty, ty),
            "szext" => {
                let exec = match (self.has("wrap"), signed) {
                    (false, false) => two::<SzextClampU>(set),
                    (false, true) => two::<SzextClampS>(set),
                    (true, false) => two::<SzextWrapU>(set),
                    (true, true) => two::<SzextWrapS>(set),
                };
                self.emit2(exec, ty, u32_, ty)
            }
            "lop3" => self.lop3(ty),
            "dp4a" | "dp2a" => {
                let types = self.types();
                let [a, b] = types[..] else {
                    return Err("`dp4a` and `dp2a` name two types".into());
                };
                let aux = u32::from(a.signed()) * DOT_A_SIGNED
                    + u32::from(b.signed()) * DOT_B_SIGNED
                    + u32::from(self.has("hi")) * DOT_HIGH
                    + u32::from(op == "dp2a") * DOT_TWO;
                self.expect_operands(4)?;
                let d = self.target(0, u32_)?;
                let sources = [
                    self.source(1, u32_)?,
                    self.source(2, u32_)?,
                    self.source(3, u32_)?,
                ];
                self.emit(dot, d, sources, D).aux = aux;
                Ok(())
            }
            _ => Err(Refusal::Unsupported),
        }
    }

    fn lop3(&mut self, ty: Ty) -> Decoded {
        if ty.bytes() != 4 || self.at.operands.len() != 5 {
            // `lop3.BoolOp` with a predicate has not been seen from a compiler.
            return Err(Refusal::Unsupported);
        }
        let Operand::Int(table) = self.operand(4)?.clone() else {
            return Err("the table of `lop3` is a constant".into());
        };
        let d = self.target(0, ty)?;
        let sources = [self.source(1, ty)?, self.source(2, ty)?, self.source(3, ty)?];
        self.emit(lop3(self.set), d, sources, D).aux = table as u32 & 0xff;
        Ok(())
    }

    fn predicate_logic(&mut self, op: &str) -> Decoded {
        let kind = match op {
            "and" => moves::PRED_AND,
            "or" => moves::PRED_OR,
            "xor" => moves::PRED_XOR,
            "not" => moves::PRED_NOT,
            _ => return Err(Refusal::Bad(format!("`{op}` has no .pred form"))),
        };
        self.expect_operands(if kind == moves::PRED_NOT { 2 } else { 3 })?;
        self.predicates(kind)
    }

    /// A predicate operation over operand 1 and, if there is one, 2.
    pub(super) fn predicates(&mut self, kind: u32) -> Decoded {
        let d = self.target(0, Ty::Pred)?;
        let a = self.operand(1)?.clone();
        let (a, not_a) = self.predicate(&a)?;
        let (b, not_b) = match self.at.operands.get(2).cloned() {
            Some(b) => self.predicate(&b)?,
            None => (V::None, false),
        };
        let draft = self.emit(moves::predicate_logic, d, [a, b, V::None], D);
        draft.aux = kind;
        draft.imm = u64::from(not_a) | u64::from(not_b) << 1;
        Ok(())
    }
}
