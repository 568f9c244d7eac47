//! How code is left: for the interpreter's function, at the end of lanes, at barriers, and by what stands behind the rest.

use super::asm::{COUNT, CTX, Cond, INSTS, RAX, RCX, RDI, RSI, Rm};
use super::cache::Held;
use super::emit::Emitter;
use super::frame::{NOWHERE, ctx};
use super::home::{load_masks, read_home, write_home};
use super::stub::Stub;
use crate::engine::control::NONE;
use crate::engine::ctx::Ctx;
use crate::inst::{Flow, Inst};
use std::mem::offset_of;

impl Emitter<'_> {
    /// Leaves before `pc` if another split of the warp is there. A full warp has no other.
    pub fn look_up(&mut self, pc: u32) {
        if self.full {
            return;
        }
        self.asm.cmp_imm(ctx!(horizon), pc);
        let from = self.asm.label();
        self.asm.jump_if(Cond::Equal, from);
        self.stubs.push(Stub::Next { from, pc });
    }

    /// The interpreter's function for this instruction.
    pub fn interpret(&mut self, pc: u32) {
        self.end_segment();
        if self.entries[pc as usize] == NOWHERE {
            // Lanes may wait here for these.
            self.look_up(pc);
            self.entries[pc as usize] = self.asm.here();
        }
        self.call(pc);
        self.asm.add_imm(COUNT, 1, true);
        self.asm.test(RAX, RAX);
        let from = self.asm.label();
        self.asm.jump_if(Cond::NotEqual, from);
        self.stubs.push(Stub::Leave { from, pc, issued: 0 });
        if !self.full {
            load_masks(&mut self.asm);
        }
        if let Some(next) = self.entries.get_mut(pc as usize + 1) {
            *next = self.asm.here();
        }
        self.look_up(pc + 1);
    }

    /// The lanes end, or return.
    pub fn end(&mut self, pc: u32, flow: Flow) {
        self.issued += 1;
        self.end_segment();
        self.asm.mov_imm(RAX, flow as u32);
        self.asm.store_imm(ctx!(at), pc);
        self.asm.mov_imm(RCX, pc);
        self.asm.jump(self.over);
    }

    /// A block barrier for every thread, whose number is a constant.
    pub fn barrier(&mut self, pc: u32, inst: &Inst) {
        let number = self.facts.number(inst.a);
        let (NONE, 0, Some(number @ 0..16)) = (inst.b, inst.aux, number) else {
            return self.interpret(pc);
        };
        self.end_segment();
        if self.entries[pc as usize] == NOWHERE {
            self.look_up(pc);
            self.entries[pc as usize] = self.asm.here();
        }
        self.asm.store_imm(ctx!(other), number as u32);
        self.end(pc, Flow::Meet);
        if let Some(next) = self.entries.get_mut(pc as usize + 1) {
            *next = self.asm.here();
        }
        self.look_up(pc + 1);
    }

    pub fn call(&mut self, pc: u32) {
        self.asm.raw(&[0xc5, 0xf8, 0x77]);
        self.asm.scalar(0x89, true, CTX.0, Rm::Reg(RDI.0));
        self.asm.lea(RSI, INSTS, (pc as usize * size_of::<Inst>()) as i32);
        self.asm.call(Rm::Pool(self.pool.interpret));
    }

    /// On to a block, unless the warp's loop wants to look up first.
    pub fn go_to(&mut self, to: u32) {
        let from = self.asm.label();
        if !self.full {
            self.asm.cmp_imm(ctx!(horizon), to);
            self.asm.jump_if(Cond::NotAbove, from);
        }
        self.asm.cmp(COUNT, ctx!(limit), true);
        self.asm.jump_if(Cond::NotLess, from);
        self.stubs.push(Stub::Jump { from, pc: to });
        if let Some(block) = self.blocks[to as usize] {
            self.asm.jump(block);
        }
    }

    /// Writes values home, and counts instructions. May change RAX.
    pub fn write_all(&mut self, dirty: &[Held], issued: u32) {
        for held in dirty {
            write_home(&mut self.asm, self.pool, self.full, held);
        }
        if issued > 0 {
            self.asm.add_imm(COUNT, issued as i32, true);
        }
    }

    pub fn stub(&mut self, stub: Stub) {
        match stub {
            Stub::Slow {
                from,
                back,
                pc,
                dirty,
                again,
                issued,
            } => {
                self.asm.bind(from);
                for held in &dirty {
                    write_home(&mut self.asm, self.pool, self.full, held);
                }
                self.call(pc);
                self.asm.test(RAX, RAX);
                let leave = self.asm.label();
                self.asm.jump_if(Cond::NotEqual, leave);
                if !self.full {
                    load_masks(&mut self.asm);
                }
                for held in &again {
                    read_home(&mut self.asm, held);
                }
                self.asm.jump(back);
                self.stub(Stub::Leave {
                    from: leave,
                    pc,
                    issued,
                });
            }
            Stub::Unlike {
                from,
                pc,
                dirty,
                issued,
            } => {
                self.asm.bind(from);
                self.write_all(&dirty, issued);
                let next = self.asm.label();
                self.asm.jump(next);
                self.stub(Stub::Next { from: next, pc });
            }
            Stub::Leave { from, pc, issued } => {
                self.asm.bind(from);
                if issued > 0 {
                    self.asm.add_imm(COUNT, issued as i32, true);
                }
                self.asm.store_imm(ctx!(at), pc);
                self.asm.jump(self.epilogue);
            }
            Stub::Next { from, pc } => {
                self.asm.bind(from);
                self.asm.mov_imm(RAX, Flow::Next as u32);
                // The warp's loop goes on behind it.
                self.asm.store_imm(ctx!(at), pc.wrapping_sub(1));
                self.asm.jump(self.epilogue);
            }
            Stub::Away { from, pc, dirty } => {
                self.asm.bind(from);
                self.write_all(&dirty, 0);
                let jump = self.asm.label();
                self.asm.jump(jump);
                self.stub(Stub::Jump { from: jump, pc });
            }
            Stub::Jump { from, pc } => {
                self.asm.bind(from);
                self.asm.mov_imm(RAX, Flow::Jump as u32);
                self.asm.store_imm(ctx!(pc), pc);
                self.asm.jump(self.epilogue);
            }
            Stub::Split {
                from,
                pc,
                to,
                dirty,
                issued,
            } => {
                self.asm.bind(from);
                self.asm.mov_store(ctx!(other), RAX, false);
                self.write_all(&dirty, issued);
                self.asm.mov_imm(RAX, Flow::Split as u32);
                self.asm.store_imm(ctx!(pc), to);
                self.asm.store_imm(ctx!(at), pc);
                self.asm.jump(self.epilogue);
            }
        }
    }
}
