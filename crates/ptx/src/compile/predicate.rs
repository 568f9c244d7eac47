//! Predicates: one bit for each lane, at home in the warp's area.

use super::asm::Map::{M0F, M0F3A, M0F38};
use super::asm::Pp::{F2, None as P0, P66};
use super::asm::{Gp, MASK, RAX, RCX, RDX, REGS, Rm, V};
use super::emit::Emitter;
use crate::engine::control::NONE;
use crate::inst::Inst;

/// Free mask registers.
const K3: u8 = 3;
const K4: u8 = 4;
const K7: u8 = 7;

impl Emitter<'_> {
    /// A predicate operand whose lowest offset bit says that it is negated.
    pub fn predicate(&mut self, to: Gp, slot: u32) {
        if self.in_rax != Some((slot & !1, self.asm.here())) {
            self.asm.mov_load(to, Rm::Mem(REGS, (slot & !1) as i32), false);
        } else if to != RAX {
            self.asm.scalar(0x8b, false, to.0, Rm::Reg(RAX.0));
        }
        if slot & 1 != 0 {
            self.asm.not(to);
        }
    }

    /// RAX to the active lanes of a predicate.
    pub fn put_predicate(&mut self, slot: u32) {
        let home = Rm::Mem(REGS, slot as i32);
        if !self.full {
            self.asm.and(RAX, Rm::Reg(MASK.0));
            self.asm.scalar(0x8b, false, RDX.0, Rm::Reg(MASK.0));
            self.asm.not(RDX);
            self.asm.and(RDX, home);
            self.asm.or(RAX, Rm::Reg(RDX.0));
        }
        self.asm.mov_store(home, RAX, false);
        self.in_rax = Some((slot, self.asm.here()));
    }

    pub fn predicate_logic(&mut self, inst: &Inst) {
        use crate::engine::moves::{PRED_AND, PRED_NOT, PRED_OR, PRED_XOR};
        self.predicate(RAX, inst.a | (inst.imm & 1) as u32);
        if inst.b == NONE {
            self.asm.scalar(0x33, false, RCX.0, Rm::Reg(RCX.0));
        } else {
            self.predicate(RCX, inst.b | (inst.imm >> 1 & 1) as u32);
        }
        match inst.aux {
            PRED_AND => self.asm.and(RAX, Rm::Reg(RCX.0)),
            PRED_OR => self.asm.or(RAX, Rm::Reg(RCX.0)),
            PRED_XOR => self.asm.xor(RAX, Rm::Reg(RCX.0)),
            PRED_NOT => self.asm.not(RAX),
            _ => {}
        }
        self.put_predicate(inst.d);
    }

    pub fn compare(&mut self, inst: &Inst, v: V, imm: u8) {
        let wide = v.3;
        let (a, b) = (self.read(inst.a, wide), self.read(inst.b, wide));
        // Two masks become one of twice the lanes: kunpckbw, kunpckwd.
        let (bytes, words) = (V(P66, M0F, 0x4b, false), V(P0, M0F, 0x4b, false));
        let asm = &mut self.asm;
        if wide {
            asm.v3_imm(v, K3, a[0], Rm::Reg(b[0]), imm);
            asm.v3_imm(v, K4, a[1], Rm::Reg(b[1]), imm);
            asm.mask(bytes, true, K3, K4, Rm::Reg(K3), None);
            asm.v3_imm(v, K4, a[2], Rm::Reg(b[2]), imm);
            asm.v3_imm(v, K7, a[3], Rm::Reg(b[3]), imm);
            asm.mask(bytes, true, K4, K7, Rm::Reg(K4), None);
        } else {
            asm.v3_imm(v, K3, a[0], Rm::Reg(b[0]), imm);
            asm.v3_imm(v, K4, a[1], Rm::Reg(b[1]), imm);
        }
        asm.mask(words, true, K3, K4, Rm::Reg(K3), None);
        // kmovd to a general register.
        asm.mask(V(F2, M0F, 0x93, false), false, RAX.0, 0, Rm::Reg(K3), None);
        self.put_predicate(inst.d);
    }

    /// A predicate's lanes in K3, and shifted by `lanes` in the result.
    pub fn mask_of(&mut self, slot: u32) {
        let home = Rm::Mem(REGS, (slot & !1) as i32);
        self.asm.mask(V(P66, M0F, 0x90, true), false, K3, 0, home, None);
        if slot & 1 != 0 {
            self.asm
                .mask(V(P66, M0F, 0x44, true), false, K3, 0, Rm::Reg(K3), None);
        }
    }

    /// The mask of one part of what K3 holds.
    pub fn mask_part(&mut self, part: usize, wide: bool) -> u8 {
        let lanes = part * if wide { 8 } else { 16 };
        if lanes == 0 {
            return K3;
        }
        self.asm.mask(
            V(P66, M0F3A, 0x31, false),
            false,
            K4,
            0,
            Rm::Reg(K3),
            Some(lanes as u8),
        );
        K4
    }

    /// Puts a result in its place; under a guard, for the lanes that it holds for.
    pub fn put(&mut self, inst: &Inst, wide: bool, regs: [u8; 4], guarded: bool) {
        if guarded {
            let old = self.read(inst.d, wide);
            self.mask_of(inst.guard);
            for part in 0..if wide { 4 } else { 2 } {
                let k = self.mask_part(part, wide);
                let blend = V(P66, M0F38, 0x64, wide);
                self.asm
                    .v3_masked(blend, regs[part], k, old[part], Rm::Reg(regs[part]));
            }
        }
        self.cache.put(inst.d, wide, regs, true);
    }
}
