//! One version of a module's code: for warps with every lane active, or for any.

use super::asm::{Asm, COUNT, Cond, Label, MASK, RAX, Rm};
use super::cache::{Cache, Held};
use super::constants::Pool;
use super::facts::Facts;
use super::frame::{Frame, NOWHERE};
use super::home::{lie, read_home, spread, write_home};
use super::rounds::{Round, loops};
use super::stub::Stub;
use super::table::{Op, is_guarded, op};
use crate::inst::Inst;
use std::collections::HashMap;

pub(super) struct Emitter<'a> {
    pub asm: Asm,
    pub insts: &'a [Inst],
    /// Every lane is active.
    pub full: bool,
    pub pool: &'a Pool,
    pub cache: Cache,
    /// Where native code for each instruction begins, if a warp may begin there.
    pub entries: Vec<u32>,
    pub blocks: Vec<Option<Label>>,
    /// Instructions that one branch leads to and nothing else.
    alone: &'a [bool],
    pub epilogue: Label,
    /// Where a warp's code goes that ends or comes to a barrier, with its instruction in RCX.
    pub over: Label,
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
        frame: &Frame,
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
            epilogue: frame.epilogue,
            over: frame.over,
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
    pub fn end_segment(&mut self) {
        self.settle();
        self.cache.clear();
        self.proved.clear();
    }

    /// Everything that is needed is at home, everything counted.
    pub fn settle(&mut self) {
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

    pub fn count(&mut self) {
        if self.issued > 0 {
            self.asm.add_imm(COUNT, self.issued as i32, true);
            self.issued = 0;
        }
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
}
