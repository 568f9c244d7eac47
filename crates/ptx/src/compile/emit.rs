//! One version of a module's code: for warps with every lane active, or for any.

use super::asm::Map::{M0F, M0F3A, M0F38};
use super::asm::Pp::{F2, F3, None as P0, P66};
use super::asm::{Asm, COUNT, CTX, Cond, INSTS, Label, MASK, RAX, RCX, RDI, RDX, REGS, RSI, Rm, V};
use super::cache::{Cache, Held};
use super::constants::Pool;
use super::facts::Facts;
use super::rounds::{Round, loops};
use super::table::{Op, is_guarded, op};
use crate::engine::control::NONE;
use crate::engine::ctx::Ctx;
use crate::inst::{Flow, Inst};
use std::collections::HashMap;
use std::mem::offset_of;

/// No native code begins at an instruction.
pub(super) const NOWHERE: u32 = u32::MAX;

/// The masks of a warp's parts: of 8 lanes each, and of 16 (the first and the third).
const PARTS: [u8; 4] = [1, 5, 2, 6];
/// Free mask registers.
const K3: u8 = 3;
const K4: u8 = 4;
const K7: u8 = 7;

/// The vector registers for writing values home, which may happen in the middle of an instruction's code. That has 0
/// to 4.
const SCRATCH: u8 = 5;
const SCRATCH2: u8 = 6;

/// An offset in `Ctx`.
macro_rules! ctx {
    ($field:ident) => {
        Rm::Mem(CTX, offset_of!(Ctx, $field) as i32)
    };
}
pub(super) use ctx;

/// Code that stands behind the rest, because it is seldom reached.
pub(super) enum Stub {
    /// Gives an instruction to the interpreter, with what is held at home meanwhile.
    Slow {
        from: Label,
        back: Label,
        pc: u32,
        /// What goes home before, and what is read again after.
        dirty: Vec<Held>,
        again: Vec<Held>,
        issued: u32,
    },
    /// Leaves before an instruction whose lanes do not lie as they were thought to.
    Unlike {
        from: Label,
        pc: u32,
        dirty: Vec<Held>,
        issued: u32,
    },
    /// Leaves with the flow in RAX, at an instruction.
    Leave { from: Label, pc: u32, issued: u32 },
    /// Leaves before an instruction that follows.
    Next { from: Label, pc: u32 },
    /// Leaves for a branch's target.
    Jump { from: Label, pc: u32 },
    /// Leaves for a loop's first instruction.
    Away { from: Label, pc: u32, dirty: Vec<Held> },
    /// Leaves at a branch that lanes disagree on; RAX has those that take it.
    Split {
        from: Label,
        pc: u32,
        to: u32,
        dirty: Vec<Held>,
        issued: u32,
    },
}

pub(super) struct Emitter<'a> {
    pub asm: Asm,
    pub insts: &'a [Inst],
    /// Every lane is active.
    pub full: bool,
    pub pool: &'a Pool,
    pub cache: Cache,
    /// Where native code for each instruction begins, if a warp may begin there.
    pub entries: Vec<u32>,
    blocks: Vec<Option<Label>>,
    /// Instructions that one branch leads to and nothing else.
    alone: &'a [bool],
    epilogue: Label,
    pub stubs: Vec<Stub>,
    /// Instructions since they were last counted.
    pub issued: u32,
    pub facts: Facts<'a>,
    /// The instruction whose code is being made.
    pub pc: u32,
    /// Only the first vector register of each value is computed.
    pub one: bool,
    /// What is known of addresses since they are held.
    pub proved: Vec<Proof>,
    /// RAX has the predicate of this slot, while the code is so long.
    pub in_rax: Option<(u32, u32)>,
    /// Loops that keep registers from round to round: their last instructions, by their first. The one that code is made
    /// of.
    loops: HashMap<u32, u32>,
    pub round: Option<Round>,
}

/// From the first lane's address on, these bytes may be touched.
pub(super) struct Proof {
    /// Of the address, as the cache numbers values.
    pub serial: u32,
    /// Bytes of a lane's access: the first of them is aligned to so many.
    pub width: u32,
    pub bytes: std::ops::Range<i64>,
}

impl<'a> Emitter<'a> {
    pub fn new(
        mut asm: Asm,
        insts: &'a [Inst],
        [leaders, alone]: [&'a [bool]; 2],
        full: bool,
        pool: &'a Pool,
        epilogue: Label,
        facts: Facts<'a>,
    ) -> Self {
        let blocks = leaders.iter().map(|leader| leader.then(|| asm.label())).collect();
        Emitter {
            asm,
            insts,
            full,
            pool,
            cache: Cache::new(),
            entries: vec![NOWHERE; insts.len()],
            blocks,
            alone,
            epilogue,
            stubs: Vec::new(),
            issued: 0,
            facts,
            pc: 0,
            one: false,
            proved: Vec::new(),
            in_rax: None,
            loops: if full {
                loops(insts, leaders, alone)
            } else {
                HashMap::new()
            },
            round: None,
        }
    }

    /// The whole module.
    pub fn run(mut self) -> (Asm, Vec<u32>) {
        let mut done = vec![false; self.insts.len()];
        for from in 0..self.insts.len() {
            if !done[from] {
                self.facts.begin(from as u32);
            }
            let mut pc = from;
            while done.get(pc) == Some(&false) {
                done[pc] = true;
                pc = self.step(pc as u32).map_or(pc + 1, |next| next as usize);
            }
        }
        // Nothing comes after a module's last instruction, which ends its lanes.
        let label = self.asm.label();
        self.asm.jump(label);
        self.stubs.push(Stub::Next {
            from: label,
            pc: self.insts.len() as u32 - 1,
        });
        for stub in std::mem::take(&mut self.stubs) {
            self.stub(stub);
        }
        (self.asm, self.entries)
    }

    /// Code for one instruction; what comes next, if that is not the one behind it. Where nothing but a branch leads to
    /// its target, the target comes next, and what is held stays held.
    fn step(&mut self, pc: u32) -> Option<u32> {
        self.pc = pc;
        if let Some(block) = self.blocks[pc as usize] {
            self.end_segment();
            self.look_up(pc);
            self.asm.bind(block);
            self.entries[pc as usize] = self.asm.here();
            self.in_rax = None;
            self.facts.enter(pc);
            if let Some(to) = self.loops.get(&pc) {
                self.open_round(pc, *to);
            }
        }
        self.one(pc)
    }

    /// Code for one instruction alone.
    pub fn one(&mut self, pc: u32) -> Option<u32> {
        self.facts.enter(pc);
        self.pc = pc;
        self.cache.tick();
        let facts = &self.facts;
        self.cache.drop_where(|held| !facts.needed(held.slot, pc));
        let inst = &self.insts[pc as usize];
        if matches!(op(inst.exec), Some(Op::Branch)) && self.alone[inst.aux as usize] {
            self.issued += 1;
            return Some(inst.aux);
        }
        self.instruction(pc);
        self.facts.pass(inst);
        let ends = matches!(op(inst.exec), Some(Op::Branch | Op::End(_)));
        ends.then_some(u32::MAX)
    }

    /// Everything that is needed is at home, everything counted, nothing held.
    fn end_segment(&mut self) {
        self.settle();
        self.cache.clear();
        self.proved.clear();
    }

    /// Everything that is needed is at home, everything counted.
    fn settle(&mut self) {
        for held in &mut self.cache.held {
            if held.dirty && self.facts.needed(held.slot, self.pc) {
                write_home(&mut self.asm, self.pool, self.full, held);
            }
            held.dirty = false;
        }
        self.count();
    }

    /// Instructions behind this one that come next whatever happens, as far as they are known to.
    pub fn straight(&self) -> impl Iterator<Item = (&Inst, Op)> {
        let behind = self.pc as usize + 1..self.insts.len();
        behind.map_while(|pc| {
            let inst = &self.insts[pc];
            let what = op(inst.exec)?;
            let leaves = matches!(what, Op::Branch | Op::BranchIf | Op::End(_) | Op::Barrier);
            (!leaves && self.blocks[pc].is_none()).then_some((inst, what))
        })
    }

    /// What is held, has no copy at home and is needed from this instruction on.
    pub fn unsaved(&self) -> Vec<Held> {
        let needed = |held: &&Held| held.dirty && self.facts.needed(held.slot, self.pc);
        self.cache.held.iter().filter(needed).copied().collect()
    }

    /// What is held and is needed after this instruction.
    pub fn wanted(&self) -> Vec<Held> {
        let needed = |held: &&Held| self.facts.needed(held.slot, self.pc + 1);
        self.cache.held.iter().filter(needed).copied().collect()
    }

    fn count(&mut self) {
        if self.issued > 0 {
            self.asm.add_imm(COUNT, self.issued as i32, true);
            self.issued = 0;
        }
    }

    /// Leaves before `pc` if another split of the warp is there. A full warp has no other.
    fn look_up(&mut self, pc: u32) {
        if self.full {
            return;
        }
        self.asm.cmp_imm(ctx!(horizon), pc);
        let from = self.asm.label();
        self.asm.jump_if(Cond::Equal, from);
        self.stubs.push(Stub::Next { from, pc });
    }

    fn instruction(&mut self, pc: u32) {
        let inst = &self.insts[pc as usize];
        let guarded = is_guarded(inst.exec);
        let Some(what) = op(if guarded { inst.inner } else { inst.exec }) else {
            return self.interpret(pc);
        };
        match what {
            Op::Branch if !guarded => {
                self.issued += 1;
                self.end_segment();
                self.go_to(inst.aux);
            }
            Op::BranchIf if !guarded => self.branch_if(pc, inst),
            Op::Load(element) if !guarded => self.load(pc, inst, element),
            Op::Store(bytes) if !guarded => self.store(pc, inst, u32::from(bytes)),
            Op::AddInMemory if !guarded && self.full => self.add_in_memory(pc, inst),
            Op::End(flow) if !guarded => self.end(pc, flow),
            Op::Barrier if !guarded => self.barrier(pc, inst),
            Op::Compare(v, imm) if !guarded => {
                self.issued += 1;
                self.compare(inst, v, imm);
            }
            Op::PredicateLogic if !guarded => {
                self.issued += 1;
                self.predicate_logic(inst);
            }
            Op::PredicateConstant if !guarded => {
                self.issued += 1;
                self.asm.mov_imm(RAX, inst.imm as u32);
                self.put_predicate(inst.d);
            }
            Op::Nop if !guarded => self.issued += 1,
            Op::ToGeneric if inst.aux & 15 != 0 => self.interpret(pc),
            _ if !what.is_data() => self.interpret(pc),
            _ => {
                self.issued += 1;
                self.data(inst, what, guarded);
            }
        }
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
    fn end(&mut self, pc: u32, flow: Flow) {
        self.issued += 1;
        self.end_segment();
        self.asm.mov_imm(RAX, flow as u32);
        self.asm.store_imm(ctx!(at), pc);
        self.asm.jump(self.epilogue);
    }

    /// A block barrier for every thread, whose number is a constant.
    fn barrier(&mut self, pc: u32, inst: &Inst) {
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

    fn call(&mut self, pc: u32) {
        self.asm.raw(&[0xc5, 0xf8, 0x77]);
        self.asm.scalar(0x89, true, CTX.0, Rm::Reg(RDI.0));
        self.asm.lea(RSI, INSTS, (pc as usize * size_of::<Inst>()) as i32);
        self.asm.call(Rm::Pool(self.pool.interpret));
    }

    /// On to a block, unless the warp's loop wants to look up first.
    fn go_to(&mut self, to: u32) {
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

    fn branch_if(&mut self, pc: u32, inst: &Inst) {
        self.issued += 1;
        if !self.full {
            self.settle();
        }
        self.predicate(RAX, inst.guard);
        let (not, split) = (self.asm.label(), self.asm.label());
        if self.full {
            self.asm.test(RAX, RAX);
            self.asm.jump_if(Cond::Equal, not);
            self.asm.cmp_imm(Rm::Reg(RAX.0), u32::MAX);
        } else {
            self.asm.and(RAX, Rm::Reg(MASK.0));
            self.asm.jump_if(Cond::Equal, not);
            self.asm.cmp(RAX, Rm::Reg(MASK.0), false);
        }
        self.asm.jump_if(Cond::NotEqual, split);
        // A full warp that does not branch goes on with what it holds: only where it goes elsewhere is that put home.
        let (dirty, issued) = (self.unsaved(), self.issued);
        self.stubs.push(Stub::Split {
            from: split,
            pc,
            to: inst.aux,
            dirty: dirty.clone(),
            issued,
        });
        if !self.close_round(pc, inst.aux) {
            self.write_all(&dirty, issued);
            self.go_to(inst.aux);
        }
        self.asm.bind(not);
    }

    /// Writes values home, and counts instructions. May change RAX.
    fn write_all(&mut self, dirty: &[Held], issued: u32) {
        for held in dirty {
            write_home(&mut self.asm, self.pool, self.full, held);
        }
        if issued > 0 {
            self.asm.add_imm(COUNT, issued as i32, true);
        }
    }

    fn stub(&mut self, stub: Stub) {
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

    /// The register at `slot` as it is held, maybe with its first lane alone.
    pub fn peek(&mut self, slot: u32, wide: bool) -> Held {
        if let Some(held) = self.cache.find(slot, wide) {
            return held;
        }
        let step = self.facts.step(slot, self.pc);
        let regs = self.room(wide, step.is_some());
        match step {
            Some(step) => self.cache.put_one(slot, wide, regs[0], step, false),
            None => self.cache.put(slot, wide, regs, false),
        }
        let held = self.cache.find(slot, wide).expect("it was just put there");
        read_home(&mut self.asm, &held);
        held
    }

    /// The register at `slot`, in vector registers: all of them, unless only the first is computed.
    pub fn read(&mut self, slot: u32, wide: bool) -> [u8; 4] {
        let held = self.peek(slot, wide);
        if !held.thin() || self.one {
            return held.regs;
        }
        let regs = self.room(wide, false);
        spread(&mut self.asm, &held, 0);
        for (part, reg) in regs.into_iter().enumerate().take(held.all()) {
            lie(&mut self.asm, self.pool, &held, part, reg, 0);
        }
        self.cache.widen(slot, regs);
        regs
    }

    /// Vector registers for a result, or one.
    pub fn room(&mut self, wide: bool, one: bool) -> [u8; 4] {
        let (asm, full, pool) = (&mut self.asm, self.full, self.pool);
        let parts = match (one, wide) {
            (true, _) => 1,
            (_, true) => 4,
            _ => 2,
        };
        let regs = self.cache.take(parts, |held| write_home(asm, pool, full, held));
        if one { [regs[0]; 4] } else { regs }
    }

    /// A predicate operand whose lowest offset bit says that it is negated.
    fn predicate(&mut self, to: super::asm::Gp, slot: u32) {
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
    fn put_predicate(&mut self, slot: u32) {
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

    fn predicate_logic(&mut self, inst: &Inst) {
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

    fn compare(&mut self, inst: &Inst, v: V, imm: u8) {
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

/// Sets the mask registers that a warp's active lanes decide.
pub(super) fn load_masks(asm: &mut Asm) {
    asm.mask(V(F2, M0F, 0x92, false), false, PARTS[0], 0, Rm::Reg(MASK.0), None);
    for part in 1..4 {
        let lanes = Some(8 * part as u8);
        asm.mask(
            V(P66, M0F3A, 0x31, false),
            false,
            PARTS[part],
            0,
            Rm::Reg(PARTS[0]),
            lanes,
        );
    }
}

fn home(held: &Held, part: usize) -> Rm {
    Rm::Mem(REGS, held.slot as i32 + 64 * part as i32)
}

/// A value that is one vector register of equal lanes is read from the first lane's home.
pub(super) fn read_home(asm: &mut Asm, held: &Held) {
    if held.one && held.step == Some(0) {
        let broadcast = V(P66, M0F38, if held.wide { 0x59 } else { 0x58 }, held.wide);
        return asm.v2(broadcast, held.regs[0], home(held, 0));
    }
    for (part, reg) in held.parts().iter().enumerate() {
        asm.load(*reg, home(held, part));
    }
}

/// The first lane of a value, in every lane of `to`.
fn spread(asm: &mut Asm, held: &Held, to: u8) {
    let broadcast = V(P66, M0F38, if held.wide { 0x59 } else { 0x58 }, held.wide);
    asm.v2(broadcast, to, Rm::Reg(held.regs[0]));
}

/// One part of a value of which only the first lane is there, which `first` has in every lane. May change RAX.
fn lie(asm: &mut Asm, pool: &Pool, held: &Held, part: usize, to: u8, first: u8) {
    let (wide, step) = (held.wide, held.step.unwrap_or(0));
    let tables = if wide { pool.wide_steps } else { pool.steps };
    let add = V(P66, M0F, if wide { 0xd4 } else { 0xfe }, wide);
    let at = |n: usize| Rm::Pool(tables[n] + 64 * part as u32);
    if let Some(n) = [1, 2, 4, 8, 16].iter().position(|s| *s == step) {
        return asm.v3(add, to, first, at(n));
    }
    asm.mov_wide(RAX, step as i32);
    asm.spread(to, RAX, wide);
    asm.v3(V(P66, M0F38, 0x40, wide), to, to, at(0));
    asm.v3(add, to, to, Rm::Reg(first));
}

/// Writes the active lanes.
pub(super) fn write_home(asm: &mut Asm, pool: &Pool, full: bool, held: &Held) {
    let thin = held.thin();
    if thin {
        spread(asm, held, SCRATCH);
    }
    for (part, reg) in held.regs.into_iter().enumerate().take(held.all()) {
        let to = home(held, part);
        if thin {
            // Only full warps have such values.
            lie(asm, pool, held, part, SCRATCH2, SCRATCH);
            asm.store(SCRATCH2, to);
            continue;
        }
        if full {
            asm.store(reg, to);
            continue;
        }
        let k = part_mask(part, held.wide);
        // A load, a select and a store: some processors take dozens of cycles for a masked store.
        asm.load(SCRATCH, to);
        asm.v2_masked(V(P66, M0F, 0x6f, held.wide), SCRATCH, k, Rm::Reg(reg));
        asm.store(SCRATCH, to);
    }
}

/// The mask register of the active lanes in one part of a value.
pub(super) fn part_mask(part: usize, wide: bool) -> u8 {
    if wide { PARTS[part] } else { PARTS[2 * part] }
}

/// Where the code begins that `enter` calls, and where it ends: `fn(ctx, registers, instructions, entry) -> Flow`.
pub(super) fn frame(asm: &mut Asm) -> (u32, Label) {
    let enter = asm.here();
    // push rbx, rbp, r13, r14, r15: the stack is then aligned to 16 bytes.
    asm.raw(&[0x53, 0x55, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57]);
    asm.scalar(0x8b, true, CTX.0, Rm::Reg(RDI.0));
    asm.scalar(0x8b, true, REGS.0, Rm::Reg(RSI.0));
    asm.scalar(0x8b, true, INSTS.0, Rm::Reg(RDX.0));
    asm.mov_load(COUNT, ctx!(count), true);
    asm.mov_load(MASK, ctx!(mask), false);
    load_masks(asm);
    // jmp rcx
    asm.scalar(0xff, false, 4, Rm::Reg(RCX.0));
    let epilogue = asm.label();
    asm.bind(epilogue);
    asm.mov_store(ctx!(count), COUNT, true);
    // vzeroupper, and the registers back.
    asm.raw(&[0xc5, 0xf8, 0x77]);
    asm.raw(&[0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x5d, 0x5b, 0xc3]);
    (enter, epilogue)
}

/// `kortestw`: the zero flag says whether a mask of 16 lanes is empty.
pub(super) fn is_empty(asm: &mut Asm, k: u8) {
    asm.mask(V(P0, M0F, 0x98, false), false, k, 0, Rm::Reg(k), None);
}

/// A 512-bit copy.
pub(super) fn copy(asm: &mut Asm, d: u8, a: u8) {
    asm.load(d, Rm::Reg(a));
}

/// The upper 256 bits of `a` in `d`.
pub(super) fn upper(asm: &mut Asm, d: u8, a: u8) {
    asm.v2_imm(V(P66, M0F3A, 0x3b, true), a, Rm::Reg(d), 1);
}

/// `b`'s lower 256 bits above `a`'s, in `d`.
pub(super) fn join(asm: &mut Asm, d: u8, a: u8, b: u8) {
    asm.v3_imm(V(P66, M0F3A, 0x3a, true), d, a, Rm::Reg(b), 1);
}

/// The low halves of 64-bit lanes, in the lower 256 bits of `d`.
pub(super) fn truncate(asm: &mut Asm, d: u8, a: u8) {
    asm.v2(V(F3, M0F38, 0x35, false), a, Rm::Reg(d));
}
