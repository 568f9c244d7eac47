//! `add` … `copysign`, `testp`.

use super::{D, Decoded, Decoder, Refusal, V};
use crate::engine::alu_float::*;
use crate::engine::alu_int::*;
use crate::engine::convert::{directed, directed_aux};
use crate::engine::map::{one, three, two};
use crate::inst::Exec;
use crate::types::Ty;

/// Picks the operation for a `.ftz`/`.sat` mode.
macro_rules! moded {
    ($pick:ident, $op:ident, $mode:expr, $set:expr) => {
        match $mode {
            0 => $pick::<$op<0>>($set),
            1 => $pick::<$op<1>>($set),
            2 => $pick::<$op<2>>($set),
            _ => $pick::<$op<3>>($set),
        }
    };
}

impl Decoder<'_, '_> {
    fn emit1(&mut self, exec: Exec, from: Ty, to: Ty) -> Decoded {
        self.expect_operands(2)?;
        let (d, a) = (self.target(0, to)?, self.source(1, from)?);
        self.emit(exec, d, [a, V::None, V::None], D);
        Ok(())
    }

    pub(super) fn emit2(&mut self, exec: Exec, a: Ty, b: Ty, to: Ty) -> Decoded {
        self.expect_operands(3)?;
        let (d, a, b) = (self.target(0, to)?, self.source(1, a)?, self.source(2, b)?);
        self.emit(exec, d, [a, b, V::None], D);
        Ok(())
    }

    pub(super) fn emit3(&mut self, exec: Exec, [a, b, c]: [Ty; 3], to: Ty) -> Decoded {
        self.expect_operands(4)?;
        let d = self.target(0, to)?;
        let sources = [self.source(1, a)?, self.source(2, b)?, self.source(3, c)?];
        self.emit(exec, d, sources, D);
        Ok(())
    }

    pub(super) fn emit_one(&mut self, exec: Exec, from: Ty, to: Ty) -> Decoded {
        self.emit1(exec, from, to)
    }

    fn mode(&self) -> u32 {
        u32::from(self.has("ftz")) * FTZ + u32::from(self.has("sat")) * SAT
    }

    pub(super) fn arithmetic(&mut self) -> Decoded {
        let op = self.at.op[0];
        if self.has("u16x2") || self.has("s16x2") {
            return self.halves(op);
        }
        let ty = self.ty()?;
        if self.has("cc") || matches!(op, "addc" | "subc" | "madc") {
            return self.carry_chain(op, ty);
        }
        match ty {
            Ty::F32 => self.f32_arithmetic(op),
            Ty::F64 => self.f64_arithmetic(op),
            Ty::F16 | Ty::Bf16 | Ty::F16x2 | Ty::Bf16x2 => self.half_arithmetic(op, ty),
            Ty::Pred | Ty::B128 => Err(Refusal::Unsupported),
            _ => self.integer(op, ty),
        }
    }

    /// Arithmetic in a directed rounding mode goes another way than the fast loops. False if this is not such
    /// arithmetic.
    fn directed(&mut self, op: &str, ty: Ty) -> Decoded<bool> {
        let Some(mode) = self.directed_mode() else {
            return Ok(false);
        };
        let aux = directed_aux(op, mode, ty == Ty::F64, self.mode());
        let aux = aux.ok_or_else(|| Refusal::Bad("the instruction has no rounding mode".into()))?;
        let sources = match op {
            "fma" | "mad" => 3,
            "rcp" | "sqrt" => 1,
            _ => 2,
        };
        self.expect_operands(1 + sources)?;
        let d = self.target(0, ty)?;
        let mut from = [V::None; 3];
        for (n, v) in from.iter_mut().take(sources).enumerate() {
            *v = self.source(1 + n, ty)?;
        }
        self.emit(directed, d, from, D).aux = aux;
        Ok(true)
    }

    fn f32_arithmetic(&mut self, op: &str) -> Decoded {
        use Ty::F32;
        let (set, mode) = (self.set, self.mode());
        if self.directed(op, F32)? {
            return Ok(());
        }
        let nan = self.has("NaN");
        match op {
            "add" => self.emit2(moded!(two, AddF32, mode, set), F32, F32, F32),
            "sub" => self.emit2(moded!(two, SubF32, mode, set), F32, F32, F32),
            "mul" => self.emit2(moded!(two, MulF32, mode, set), F32, F32, F32),
            "fma" | "mad" => self.emit3(moded!(three, FmaF32, mode, set), [F32; 3], F32),
            "div" => self.emit2(moded!(two, DivF32, mode, set), F32, F32, F32),
            "min" if nan => self.f32_extreme(op, moded!(two, MinNanF32, mode, set)),
            "max" if nan => self.f32_extreme(op, moded!(two, MaxNanF32, mode, set)),
            "min" => self.f32_extreme(op, moded!(two, MinF32, mode, set)),
            "max" => self.f32_extreme(op, moded!(two, MaxF32, mode, set)),
            "rcp" => self.emit1(moded!(one, RcpF32, mode, set), F32, F32),
            "sqrt" => self.emit1(moded!(one, SqrtF32, mode, set), F32, F32),
            "rsqrt" => self.emit1(moded!(one, RsqrtF32, mode, set), F32, F32),
            "abs" => self.emit1(moded!(one, AbsF32, mode, set), F32, F32),
            "neg" => self.emit1(moded!(one, NegF32, mode, set), F32, F32),
            "ex2" => self.emit1(moded!(one, Ex2F32, mode, set), F32, F32),
            "lg2" => self.emit1(moded!(one, Lg2F32, mode, set), F32, F32),
            "sin" => self.emit1(moded!(one, SinF32, mode, set), F32, F32),
            "cos" => self.emit1(moded!(one, CosF32, mode, set), F32, F32),
            "tanh" => self.emit1(one::<TanhF32>(set), F32, F32),
            "copysign" => self.emit2(two::<CopysignF32>(set), F32, F32, F32),
            "testp" => self.testp(F32),
            _ => Err("the instruction has no .f32 form".into()),
        }
    }

    fn f64_arithmetic(&mut self, op: &str) -> Decoded {
        use Ty::F64;
        let set = self.set;
        if self.directed(op, F64)? {
            return Ok(());
        }
        let approximate = self.has("approx");
        match op {
            "add" => self.emit2(two::<AddF64>(set), F64, F64, F64),
            "sub" => self.emit2(two::<SubF64>(set), F64, F64, F64),
            "mul" => self.emit2(two::<MulF64>(set), F64, F64, F64),
            "fma" | "mad" => self.emit3(three::<FmaF64>(set), [F64; 3], F64),
            "div" => self.emit2(two::<DivF64>(set), F64, F64, F64),
            "min" => self.emit2(two::<MinF64>(set), F64, F64, F64),
            "max" => self.emit2(two::<MaxF64>(set), F64, F64, F64),
            "rcp" if approximate => self.emit1(one::<RcpApproxF64>(set), F64, F64),
            "rcp" => self.emit1(one::<RcpF64>(set), F64, F64),
            "sqrt" => self.emit1(one::<SqrtF64>(set), F64, F64),
            "rsqrt" if self.has("ftz") => self.emit1(one::<RsqrtApproxF64>(set), F64, F64),
            "rsqrt" => self.emit1(one::<RsqrtF64>(set), F64, F64),
            "abs" => self.emit1(one::<AbsF64>(set), F64, F64),
            "neg" => self.emit1(one::<NegF64>(set), F64, F64),
            "copysign" => self.emit2(two::<CopysignF64>(set), F64, F64, F64),
            "testp" => self.testp(F64),
            _ => Err("the instruction has no .f64 form".into()),
        }
    }

    fn testp(&mut self, ty: Ty) -> Decoded {
        self.expect_operands(2)?;
        let kinds = [
            "finite",
            "infinite",
            "number",
            "notanumber",
            "normal",
            "subnormal",
        ];
        let Some(kind) = kinds.iter().position(|k| self.has(k)) else {
            return Err("`testp` names no property".into());
        };
        let (d, a) = (self.target(0, Ty::Pred)?, self.source(1, ty)?);
        let exec = if ty == Ty::F32 {
            test_property::<f32>
        } else {
            test_property::<f64>
        };
        self.emit(exec, d, [a, V::None, V::None], D).aux = kind as u32;
        Ok(())
    }

    fn integer(&mut self, op: &str, ty: Ty) -> Decoded {
        use Ty::*;
        let set = self.set;
        let (hi, wide) = (self.has("hi"), self.has("wide"));
        let signed = ty.signed();
        if self.has("sat") {
            return match (op, ty) {
                ("add", S32) => self.emit2(two::<AddSat32>(set), ty, ty, ty),
                ("sub", S32) => self.emit2(two::<SubSat32>(set), ty, ty, ty),
                ("mad", S32) if hi => self.emit3(three::<MadHiSat32>(set), [ty; 3], ty),
                _ => Err("`.sat` does not go with this instruction".into()),
            };
        }
        /// The operation for the type's width and signedness.
        macro_rules! sized {
            ($pick:ident, $u16:ident, $s16:ident, $u32:ident, $s32:ident, $u64:ident, $s64:ident) => {
                match (ty.bytes(), signed) {
                    (2, false) => $pick::<$u16>(set),
                    (2, true) => $pick::<$s16>(set),
                    (4, false) => $pick::<$u32>(set),
                    (4, true) => $pick::<$s32>(set),
                    (8, false) => $pick::<$u64>(set),
                    (8, true) => $pick::<$s64>(set),
                    _ => return Err("the instruction has no 8-bit form".into()),
                }
            };
        }
        let doubled = match ty {
            U16 => U32,
            S16 => S32,
            U32 => U64,
            _ => S64,
        };
        match op {
            "add" => self.emit2(sized!(two, Add16, Add16, Add32, Add32, Add64, Add64), ty, ty, ty),
            "sub" => self.emit2(sized!(two, Sub16, Sub16, Sub32, Sub32, Sub64, Sub64), ty, ty, ty),
            "mul" if wide => match (ty.bytes(), signed) {
                (2, false) => self.emit2(two::<MulWideU16>(set), ty, ty, doubled),
                (2, true) => self.emit2(two::<MulWideS16>(set), ty, ty, doubled),
                (4, false) => self.emit2(two::<MulWideU32>(set), ty, ty, doubled),
                (4, true) => self.emit2(two::<MulWideS32>(set), ty, ty, doubled),
                _ => Err("`.wide` takes 16-bit or 32-bit operands".into()),
            },
            "mul" if hi => {
                let exec = sized!(two, MulHiU16, MulHiS16, MulHiU32, MulHiS32, MulHiU64, MulHiS64);
                self.emit2(exec, ty, ty, ty)
            }
            "mul" => self.emit2(sized!(two, Mul16, Mul16, Mul32, Mul32, Mul64, Mul64), ty, ty, ty),
            "mad" if wide => match (ty.bytes(), signed) {
                (2, false) => self.emit3(three::<MadWideU16>(set), [ty, ty, doubled], doubled),
                (2, true) => self.emit3(three::<MadWideS16>(set), [ty, ty, doubled], doubled),
                (4, false) => self.emit3(three::<MadWideU32>(set), [ty, ty, doubled], doubled),
                (4, true) => self.emit3(three::<MadWideS32>(set), [ty, ty, doubled], doubled),
                _ => Err("`.wide` takes 16-bit or 32-bit operands".into()),
            },
            "mad" if hi => {
                let exec = sized!(three, MadHiU16, MadHiS16, MadHiU32, MadHiS32, MadHiU64, MadHiS64);
                self.emit3(exec, [ty; 3], ty)
            }
            "mad" => self.emit3(
                sized!(three, Mad16, Mad16, Mad32, Mad32, Mad64, Mad64),
                [ty; 3],
                ty,
            ),
            "div" => self.emit2(
                sized!(two, DivU16, DivS16, DivU32, DivS32, DivU64, DivS64),
                ty,
                ty,
                ty,
            ),
            "rem" => self.emit2(
                sized!(two, RemU16, RemS16, RemU32, RemS32, RemU64, RemS64),
                ty,
                ty,
                ty,
            ),
            "abs" => self.emit1(sized!(one, Abs16, Abs16, Abs32, Abs32, Abs64, Abs64), ty, ty),
            "neg" => self.emit1(sized!(one, Neg16, Neg16, Neg32, Neg32, Neg64, Neg64), ty, ty),
            "min" if self.has("relu") => match ty {
                S32 => self.emit2(two::<MinReluS32>(set), ty, ty, ty),
                _ => Err(Refusal::Unsupported),
            },
            "max" if self.has("relu") => match ty {
                S32 => self.emit2(two::<MaxReluS32>(set), ty, ty, ty),
                _ => Err(Refusal::Unsupported),
            },
            "min" => self.emit2(
                sized!(two, MinU16, MinS16, MinU32, MinS32, MinU64, MinS64),
                ty,
                ty,
                ty,
            ),
            "max" => self.emit2(
                sized!(two, MaxU16, MaxS16, MaxU32, MaxS32, MaxU64, MaxS64),
                ty,
                ty,
                ty,
            ),
            "sad" => self.emit3(
                sized!(three, SadU16, SadS16, SadU32, SadS32, SadU64, SadS64),
                [ty; 3],
                ty,
            ),
            "mul24" => {
                let exec = match (hi, signed) {
                    (false, false) => two::<Mul24LoU>(set),
                    (false, true) => two::<Mul24LoS>(set),
                    (true, false) => two::<Mul24HiU>(set),
                    (true, true) => two::<Mul24HiS>(set),
                };
                self.emit2(exec, ty, ty, ty)
            }
            "mad24" => {
                let exec = match (hi, signed) {
                    (false, false) => three::<Mad24LoU>(set),
                    (false, true) => three::<Mad24LoS>(set),
                    (true, false) => three::<Mad24HiU>(set),
                    (true, true) => three::<Mad24HiS>(set),
                };
                self.emit3(exec, [ty; 3], ty)
            }
            _ => Err(Refusal::Bad(format!("the instruction has no {ty:?} form"))),
        }
    }

    /// `.u16x2` and `.s16x2`: two integers in one register, as the intrinsics for dynamic programming write them.
    fn halves(&mut self, op: &str) -> Decoded {
        let set = self.set;
        let exec = match (op, self.has("s16x2"), self.has("relu")) {
            ("add", _, false) => two::<Add16x2>(set),
            ("min", false, false) => two::<MinU16x2>(set),
            ("min", true, false) => two::<MinS16x2>(set),
            ("min", true, true) => two::<MinReluS16x2>(set),
            ("max", false, false) => two::<MaxU16x2>(set),
            ("max", true, false) => two::<MaxS16x2>(set),
            ("max", true, true) => two::<MaxReluS16x2>(set),
            _ => return Err(Refusal::Unsupported),
        };
        self.emit2(exec, Ty::B32, Ty::B32, Ty::B32)
    }

    fn carry_chain(&mut self, op: &str, ty: Ty) -> Decoded {
        let product = matches!(op, "mad" | "madc");
        self.expect_operands(if product { 4 } else { 3 })?;
        let mut aux = 0;
        if ty.bytes() == 8 {
            aux |= CARRY_WIDE;
        } else if ty.bytes() != 4 {
            return Err("carry chains are 32-bit or 64-bit".into());
        }
        if !ty.integer() {
            return Err("carry chains are of integers".into());
        }
        if matches!(op, "sub" | "subc") {
            aux |= CARRY_SUBTRACT;
        }
        if matches!(op, "addc" | "subc" | "madc") {
            aux |= CARRY_IN;
        }
        if self.has("cc") {
            aux |= CARRY_OUT;
        }
        if product {
            aux |= if self.has("hi") {
                CARRY_MUL_HI
            } else {
                CARRY_MUL_LO
            };
        }
        if ty.signed() {
            aux |= CARRY_SIGNED;
        }
        let d = self.target(0, ty)?;
        let c = if product { self.source(3, ty)? } else { V::None };
        let sources = [self.source(1, ty)?, self.source(2, ty)?, c];
        let draft = self.emit(carry, d, sources, D);
        draft.e = V::Carry;
        draft.aux = aux;
        Ok(())
    }
}
