//! Instructions that compute a register from registers, all lanes at once.

use super::asm::Map::{M0F, M0F38};
use super::asm::Pp::{F3, None as P0, P66};
use super::asm::{CTX, Cond, RAX, Rm, V};
use super::cache::Step;
use super::emit::Emitter;
use super::frame::ctx;
use super::home::{copy, join, truncate, upper};
use super::lanes::step_of;
use super::stub::Stub;
use super::table::Op;
use crate::engine::ctx::Ctx;
use crate::engine::memory::{GLOBAL, SPACE};
use crate::inst::Inst;
use std::mem::offset_of;

const K3: u8 = 3;
const XOR: V = V(P66, M0F, 0xef, false);
const MULTIPLY32: V = V(P66, M0F38, 0x40, false);
const ADD32: V = V(P66, M0F, 0xfe, false);
const ADD64: V = V(P66, M0F, 0xd4, true);

impl Emitter<'_> {
    /// Any of the operations that neither branch nor touch memory or predicates.
    pub fn data(&mut self, inst: &Inst, what: Op, guarded: bool) {
        // Where lanes are not active, one lane's value says nothing of the others at home.
        let step = if guarded || !self.full {
            None
        } else {
            let step = |slot: u32, wide: bool| self.lies(slot, wide);
            step_of(inst, what, &step, &|slot| self.facts.number(slot))
        };
        let Some(step) = step else {
            if let Some((wide, regs)) = self.computed(inst, what) {
                self.put(inst, wide, regs, guarded);
            }
            return;
        };
        self.one = true;
        self.check_extension(inst, what);
        let result = self.computed(inst, what);
        self.one = false;
        let Some((wide, regs)) = result else { return };
        // What holds whichever lanes wrote it when, without a check.
        let step_always = |slot: u32, _: bool| self.facts.step(slot, self.pc);
        let always = step_of(inst, what, &step_always, &|slot| self.facts.number(slot));
        if always.is_some() && (step == 0 || !what.extends()) {
            self.facts.note(inst.d, self.pc, step);
        }
        self.cache.put_one(inst.d, wide, regs[0], step, true);
    }

    /// How a register lies, by what is held or what is known.
    fn lies(&self, slot: u32, wide: bool) -> Option<Step> {
        let held = self.cache.held.iter().find(|h| h.slot == slot && h.wide == wide);
        held.and_then(|held| held.step)
            .or_else(|| self.facts.step(slot, self.pc))
    }

    fn computed(&mut self, inst: &Inst, what: Op) -> Option<(bool, [u8; 4])> {
        Some(match what {
            Op::Move(wide) => {
                let a = self.read(inst.a, wide);
                (wide, self.each(wide, |e, p, d| copy(&mut e.asm, d, a[p])))
            }
            Op::One(v) => {
                let a = self.read(inst.a, v.3);
                (v.3, self.each(v.3, |e, p, d| e.asm.v2(v, d, Rm::Reg(a[p]))))
            }
            Op::OneImm(v, imm) => {
                let a = self.read(inst.a, v.3);
                let regs = self.each(v.3, |e, p, d| e.asm.v2_imm(v, d, Rm::Reg(a[p]), imm));
                (v.3, regs)
            }
            Op::Two(v) => {
                let (a, b) = (self.read(inst.a, v.3), self.read(inst.b, v.3));
                let regs = self.each(v.3, |e, p, d| e.asm.v3(v, d, a[p], Rm::Reg(b[p])));
                (v.3, regs)
            }
            Op::ShiftWide(v) => {
                let (a, b) = (self.read(inst.a, true), self.read(inst.b, false));
                let extend = V(P66, M0F38, 0x35, false);
                let regs = self.each(true, |e, p, d| {
                    e.extended(0, b, p, extend);
                    e.asm.v3(v, d, a[p], Rm::Reg(0));
                });
                (true, regs)
            }
            Op::Mad(wide) => {
                let (a, b) = (self.read(inst.a, wide), self.read(inst.b, wide));
                let c = self.read(inst.c, wide);
                let (multiply, add) = (V(P66, M0F38, 0x40, wide), if wide { ADD64 } else { ADD32 });
                let regs = self.each(wide, |e, p, d| {
                    e.asm.v3(multiply, d, a[p], Rm::Reg(b[p]));
                    e.asm.v3(add, d, d, Rm::Reg(c[p]));
                });
                (wide, regs)
            }
            Op::Fma(wide) => {
                let (a, b) = (self.read(inst.a, wide), self.read(inst.b, wide));
                let c = self.read(inst.c, wide);
                // vfmadd213. Of two NaNs the target's goes on: the second factor is the target in the interpreter too.
                let v = V(P66, M0F38, 0xa8, wide);
                let regs = self.each(wide, |e, p, d| {
                    copy(&mut e.asm, d, b[p]);
                    e.asm.v3(v, d, a[p], Rm::Reg(c[p]));
                });
                (wide, regs)
            }
            Op::Neg(wide) => {
                let a = self.read(inst.a, wide);
                let subtract = V(P66, M0F, if wide { 0xfb } else { 0xfa }, wide);
                self.asm.v3(XOR, 0, 0, Rm::Reg(0));
                (
                    wide,
                    self.each(wide, |e, p, d| e.asm.v3(subtract, d, 0, Rm::Reg(a[p]))),
                )
            }
            Op::Not(wide) => (wide, self.with_constant(inst, wide, XOR, self.pool.ones)),
            Op::FloatAbs(wide) => {
                let at = if wide {
                    self.pool.wide_magnitude
                } else {
                    self.pool.magnitude
                };
                (wide, self.with_constant(inst, wide, V(P66, M0F, 0xdb, wide), at))
            }
            Op::FloatNeg(wide) => {
                let at = if wide { self.pool.wide_sign } else { self.pool.sign };
                (wide, self.with_constant(inst, wide, V(P66, M0F, 0xef, wide), at))
            }
            Op::MulWide { signed, add } => {
                let (a, b) = (self.read(inst.a, false), self.read(inst.b, false));
                let c = if add { self.read(inst.c, true) } else { [0; 4] };
                let extend = V(P66, M0F38, if signed { 0x25 } else { 0x35 }, false);
                let multiply = if signed {
                    V(P66, M0F38, 0x28, true)
                } else {
                    V(P66, M0F, 0xf4, true)
                };
                let regs = self.each(true, |e, p, d| {
                    e.extended(0, a, p, extend);
                    e.extended(1, b, p, extend);
                    e.asm.v3(multiply, d, 0, Rm::Reg(1));
                    if add {
                        e.asm.v3(ADD64, d, d, Rm::Reg(c[p]));
                    }
                });
                (true, regs)
            }
            Op::MulHalves => {
                let (a, b) = (self.read(inst.a, false), self.read(inst.b, false));
                let (and, low) = (V(P66, M0F, 0xdb, false), self.pool.low);
                let regs = self.each(false, |e, p, d| {
                    e.asm.v3(and, 0, a[p], Rm::Each(low));
                    e.asm.v3(and, 1, b[p], Rm::Each(low));
                    e.asm.v3(MULTIPLY32, d, 0, Rm::Reg(1));
                });
                (false, regs)
            }
            Op::Extend(v) => {
                let a = self.read(inst.a, false);
                (true, self.each(true, |e, p, d| e.extended(d, a, p, v)))
            }
            Op::Truncate => {
                let a = self.read(inst.a, true);
                let regs = self.each(false, |e, p, d| {
                    truncate(&mut e.asm, 0, a[2 * p]);
                    truncate(&mut e.asm, 1, a[2 * p + 1]);
                    join(&mut e.asm, d, 0, 1);
                });
                (false, regs)
            }
            Op::Demote => {
                let a = self.read(inst.a, true);
                let regs = self.each(false, |e, p, d| e.demoted(d, a[2 * p], a[2 * p + 1]));
                (false, regs)
            }
            Op::Reciprocal(wide) => {
                let a = self.read(inst.a, wide);
                let divide = V(if wide { P66 } else { P0 }, M0F, 0x5e, wide);
                self.ones(wide);
                (
                    wide,
                    self.each(wide, |e, p, d| e.asm.v3(divide, d, 0, Rm::Reg(a[p]))),
                )
            }
            Op::ReciprocalRoot => {
                let a = self.read(inst.a, false);
                self.ones(true);
                let (root, divide) = (V(P66, M0F, 0x51, true), V(P66, M0F, 0x5e, true));
                let regs = self.each(false, |e, p, d| {
                    for half in 0..2u8 {
                        e.extended(1 + half, a, 2 * p + usize::from(half), V(P0, M0F, 0x5a, false));
                        e.asm.v2(root, 1 + half, Rm::Reg(1 + half));
                        e.asm.v3(divide, 1 + half, 0, Rm::Reg(1 + half));
                    }
                    e.demoted(d, 1, 2);
                });
                (false, regs)
            }
            Op::ToSigned => (false, self.saturated(inst)),
            Op::ToUnsigned => {
                let a = self.read(inst.a, false);
                // NaN and what is below zero give zero: the maximum's second operand.
                self.asm.v3(XOR, 0, 0, Rm::Reg(0));
                let regs = self.each(false, |e, p, d| {
                    e.asm.v3(V(P0, M0F, 0x5f, false), 1, a[p], Rm::Reg(0));
                    e.asm.v2(V(P0, M0F, 0x78, false), d, Rm::Reg(1));
                });
                (false, regs)
            }
            Op::Minimum(v) => (false, self.minimum(inst, v)),
            Op::Select(wide) => {
                let (a, b) = (self.read(inst.a, wide), self.read(inst.b, wide));
                self.mask_of(inst.c);
                let blend = V(P66, M0F38, 0x64, wide);
                let regs = self.each(wide, |e, p, d| {
                    let k = e.mask_part(p, wide);
                    e.asm.v3_masked(blend, d, k, b[p], Rm::Reg(a[p]));
                });
                (wide, regs)
            }
            Op::ToGeneric => {
                debug_assert_eq!(inst.aux & SPACE, GLOBAL);
                let a = self.read(inst.a, true);
                (true, self.each(true, |e, p, d| copy(&mut e.asm, d, a[p])))
            }
            // The emitter has its own ways for these.
            Op::Nop
            | Op::Branch
            | Op::BranchIf
            | Op::Compare(..)
            | Op::PredicateLogic
            | Op::PredicateConstant
            | Op::AddInMemory
            | Op::End(_)
            | Op::Barrier
            | Op::Load(_)
            | Op::Store(_) => return None,
        })
    }

    /// A number of 32 bits that becomes one of 64 lies as before if no lane's is beyond the end of 32 bits. Where one
    /// is, the interpreter goes on.
    fn check_extension(&mut self, inst: &Inst, what: Op) {
        let (signed, operands) = match what {
            Op::MulWide { signed, .. } => (signed, &[inst.a, inst.b][..]),
            Op::Extend(v) => (v.2 == 0x25, &[inst.a][..]),
            _ => return,
        };
        for slot in operands {
            let held = self.peek(*slot, false);
            let Some(step) = self.lies(*slot, false).filter(|step| *step != 0) else {
                continue;
            };
            let unlike = self.asm.label();
            self.asm.lowest(RAX, held.regs[0], false);
            let last = 31 * step.unsigned_abs() as i32;
            if step > 0 {
                self.asm.add_imm(RAX, last, false);
            } else {
                self.asm.sub_imm(RAX, last, false);
            }
            let beyond = if signed { Cond::Overflow } else { Cond::Below };
            self.asm.jump_if(beyond, unlike);
            self.stubs.push(Stub::Unlike {
                from: unlike,
                pc: self.pc,
                dirty: self.unsaved(),
                issued: self.issued - 1,
            });
        }
    }

    /// A result, part by part.
    fn each(&mut self, wide: bool, mut part: impl FnMut(&mut Self, usize, u8)) -> [u8; 4] {
        let regs = self.room(wide, self.one);
        let parts = match (self.one, wide) {
            (true, _) => 1,
            (_, true) => 4,
            _ => 2,
        };
        for (n, d) in regs.into_iter().enumerate().take(parts) {
            part(self, n, d);
        }
        regs
    }

    fn with_constant(&mut self, inst: &Inst, wide: bool, v: V, at: u32) -> [u8; 4] {
        let a = self.read(inst.a, wide);
        self.each(wide, |e, p, d| e.asm.v3(v, d, a[p], Rm::Each(at)))
    }

    /// Eight lanes of 32 bits, part `p` of four, to 64 bits.
    fn extended(&mut self, d: u8, a: [u8; 4], p: usize, v: V) {
        if p.is_multiple_of(2) {
            self.asm.v2(v, d, Rm::Reg(a[p / 2]));
        } else {
            // The target is free until the result is there.
            upper(&mut self.asm, d, a[p / 2]);
            self.asm.v2(v, d, Rm::Reg(d));
        }
    }

    /// Sixteen lanes of f64 to f32.
    fn demoted(&mut self, d: u8, low: u8, high: u8) {
        let demote = V(P66, M0F, 0x5a, true);
        self.asm.v2(demote, 3, Rm::Reg(low));
        self.asm.v2(demote, 4, Rm::Reg(high));
        join(&mut self.asm, d, 3, 4);
    }

    /// 1.0 in every lane of vector register 0.
    fn ones(&mut self, wide: bool) {
        self.asm.v3(XOR, 0, 0, Rm::Reg(0));
        let (v, at) = if wide {
            (V(P66, M0F, 0xeb, true), self.pool.wide_one)
        } else {
            (V(P66, M0F, 0xeb, false), self.pool.one)
        };
        self.asm.v3(v, 0, 0, Rm::Each(at));
    }

    /// Too large gives the largest, NaN zero: the processor's conversion gives the smallest for both.
    fn saturated(&mut self, inst: &Inst) -> [u8; 4] {
        let a = self.read(inst.a, false);
        let compare = V(P0, M0F, 0xc2, false);
        let (beyond, most) = (self.pool.beyond, self.pool.most);
        self.asm.v3(XOR, 0, 0, Rm::Reg(0));
        self.asm.v3(V(P66, M0F, 0xeb, false), 1, 0, Rm::Each(most));
        self.each(false, |e, p, d| {
            e.asm.v2(V(F3, M0F, 0x5b, false), d, Rm::Reg(a[p]));
            e.asm.v3_imm(compare, K3, a[p], Rm::Each(beyond), 29);
            e.asm.v2_masked(V(P66, M0F, 0x6f, false), d, K3, Rm::Reg(1));
            e.asm.v3_imm(compare, K3, a[p], Rm::Reg(a[p]), 3);
            e.asm.v2_masked(V(P66, M0F, 0x6f, false), d, K3, Rm::Reg(0));
        })
    }

    /// PTX's minimum and maximum: -0 below +0, a number rather than NaN, and the canonical NaN of two NaNs.
    fn minimum(&mut self, inst: &Inst, v: V) -> [u8; 4] {
        let (a, b) = (self.read(inst.a, false), self.read(inst.b, false));
        let compare = V(P0, M0F, 0xc2, false);
        let zeros = V(P66, M0F, if v.2 == 0x5d { 0xeb } else { 0xdb }, false);
        let nan = self.pool.nan;
        self.asm.v3(XOR, 0, 0, Rm::Reg(0));
        self.asm.v3(V(P66, M0F, 0xeb, false), 0, 0, Rm::Each(nan));
        self.each(false, |e, p, d| {
            // b where they are equal or one is NaN.
            e.asm.v3(v, d, a[p], Rm::Reg(b[p]));
            e.asm.v3_imm(compare, K3, a[p], Rm::Reg(b[p]), 0);
            e.asm.v3_masked(zeros, d, K3, a[p], Rm::Reg(b[p]));
            e.asm.v3_imm(compare, K3, b[p], Rm::Reg(b[p]), 3);
            e.asm.v2_masked(V(P66, M0F, 0x6f, false), d, K3, Rm::Reg(a[p]));
            // Both: NaN where a is, of the lanes where b is.
            e.asm.v3_imm(compare, 4, a[p], Rm::Reg(a[p]), 3);
            // kandw
            e.asm
                .mask(V(P0, M0F, 0x41, false), true, K3, K3, Rm::Reg(4), None);
            e.asm.v2_masked(V(P66, M0F, 0x6f, false), d, K3, Rm::Reg(0));
        })
    }

    /// Marks that the kernel made progress, as stores do.
    pub fn no_poll(&mut self) {
        self.asm.store_imm(ctx!(polls), 0);
    }
}
