//! Loops without branches inside: what they need from round to round stays in vector registers.
//!
//! The code of a round is made twice. The first time shows what is held at its end, and is thrown away. What of that the
//! next round needs is then loaded before the loop, in registers that a round ends with again.

use super::asm::{COUNT, CTX, Cond, Label, Rm};
use super::cache::Held;
use super::emit::Emitter;
use super::frame::ctx;
use super::home::{copy, read_home, write_home};
use super::stub::Stub;
use super::table::{Op, is_guarded, op};
use crate::engine::ctx::Ctx;
use crate::inst::Inst;
use std::collections::HashMap;
use std::mem::offset_of;

/// Vector registers that a loop may keep. An instruction takes up to 16 of the 25 that there are, which may put some of
/// them home in between.
const KEPT: usize = 17;
/// Instructions of a loop that is compiled so: its code is made twice.
const LONGEST: u32 = 512;

/// A loop whose code is being made.
pub(super) struct Round {
    from: u32,
    to: u32,
    /// Where each round begins, with these held.
    top: Label,
    held: Vec<Held>,
}

/// The first and the last instruction of each loop that nothing enters but at the first, and that only branches leave.
pub(super) fn loops(insts: &[Inst], leaders: &[bool], alone: &[bool]) -> HashMap<u32, u32> {
    let plain = |pc: usize| {
        let inst = &insts[pc];
        let what = if is_guarded(inst.exec) {
            op(inst.inner)
        } else {
            op(inst.exec)
        };
        !leaders[pc]
            && !alone[pc]
            && what.is_some_and(|what| !matches!(what, Op::Branch | Op::End(_) | Op::Barrier))
    };
    let mut found = HashMap::new();
    for (to, inst) in insts.iter().enumerate() {
        let from = inst.aux as usize;
        let backwards = matches!(op(inst.exec), Some(Op::BranchIf)) && from <= to;
        if backwards && to - from < LONGEST as usize && leaders[from] {
            let first = op(insts[from].exec);
            let begins = from == to
                || first.is_some() && !matches!(first, Some(Op::Branch | Op::End(_) | Op::Barrier));
            if begins && (from + 1..=to).all(plain) {
                found.insert(from as u32, to as u32);
            }
        }
    }
    found
}

impl Emitter<'_> {
    /// Before the first instruction of a loop, with nothing held: loads what the loop keeps, and begins a round.
    pub fn open_round(&mut self, from: u32, to: u32) {
        let seen = self.try_round(from, to);
        let written = |slot: u32| {
            let body = &self.insts[from as usize..=to as usize];
            body.iter()
                .any(|inst| [inst.d, inst.b, inst.c, inst.e].contains(&slot))
        };
        let mut wanted: Vec<(Held, bool)> = seen
            .into_iter()
            .filter(|held| self.facts.needed(held.slot, from))
            .map(|held| (held, !self.facts.is_constant(held.slot) && written(held.slot)))
            .collect();
        wanted.sort_by_key(|(held, changes)| (!changes, std::cmp::Reverse(held.stamp)));
        let mut left = KEPT;
        let mut keeps = Vec::new();
        self.cache.tick();
        for (held, changes) in wanted {
            let step = self.facts.step(held.slot, from);
            let size = match (step, held.wide) {
                (Some(_), _) => 1,
                (None, true) => 4,
                (None, false) => 2,
            };
            if size > left {
                continue;
            }
            left -= size;
            let regs = self.room(held.wide, step.is_some());
            match step {
                Some(step) => self.cache.put_one(held.slot, held.wide, regs[0], step, changes),
                None => self.cache.put(held.slot, held.wide, regs, changes),
            }
            let kept = self
                .cache
                .find(held.slot, held.wide)
                .expect("it was just put there");
            read_home(&mut self.asm, &kept);
            keeps.push(kept);
        }
        let top = self.asm.label();
        self.asm.bind(top);
        self.in_rax = None;
        self.round = Some(Round {
            from,
            to,
            top,
            held: keeps,
        });
    }

    /// What is held at the end of a round that begins with nothing.
    fn try_round(&mut self, from: u32, to: u32) -> Vec<Held> {
        let (mark, stubs) = (self.asm.mark(), self.stubs.len());
        let (cache, entries) = (
            self.cache.clone(),
            self.entries[from as usize..=to as usize].to_vec(),
        );
        for pc in from..=to {
            self.one(pc);
        }
        let seen = self.cache.held.clone();
        self.asm.rewind(mark);
        self.stubs.truncate(stubs);
        self.cache = cache;
        self.entries[from as usize..=to as usize].copy_from_slice(&entries);
        self.issued = 0;
        self.proved.clear();
        self.in_rax = None;
        self.facts.begin(from);
        self.pc = from;
        seen
    }

    /// At a branch that every lane takes: if it goes round the loop whose code is being made, back to its top.
    pub fn close_round(&mut self, pc: u32, to: u32) -> bool {
        let Some(round) = self.round.take_if(|round| round.to == pc) else {
            return false;
        };
        debug_assert_eq!(round.from, to);
        if self.issued > 0 {
            self.asm.add_imm(COUNT, self.issued as i32, true);
        }
        let dirty = self.unsaved();
        let away = self.asm.label();
        self.asm.cmp(COUNT, ctx!(limit), true);
        self.asm.jump_if(Cond::NotLess, away);
        // What the top does not expect goes home. So does what it expects in another form.
        let mut moves = Vec::new();
        let mut loads = Vec::new();
        for kept in &round.held {
            let now = self
                .cache
                .held
                .iter()
                .find(|h| h.slot == kept.slot && h.wide == kept.wide);
            match now {
                Some(now) if kept.one || !now.one => {
                    moves.extend(
                        kept.parts()
                            .iter()
                            .copied()
                            .zip(now.regs)
                            .filter(|(to, from)| to != from),
                    );
                }
                Some(now) if now.step == Some(0) => {
                    moves.extend(kept.parts().iter().map(|to| (*to, now.regs[0])));
                }
                _ => loads.push(*kept),
            }
        }
        for held in &dirty {
            let there = |kept: &Held| kept.slot == held.slot && kept.dirty;
            let loaded = loads.iter().any(|kept| kept.slot == held.slot);
            if loaded || !round.held.iter().any(there) {
                write_home(&mut self.asm, self.pool, self.full, held);
            }
        }
        self.stubs.push(Stub::Away {
            from: away,
            pc: to,
            dirty,
        });
        self.move_all(moves);
        for kept in &loads {
            read_home(&mut self.asm, kept);
        }
        self.asm.jump(round.top);
        true
    }

    /// Moves between vector registers as if they were made at once. Changes register 0.
    fn move_all(&mut self, mut moves: Vec<(u8, u8)>) {
        while !moves.is_empty() {
            let free = (0..moves.len()).find(|n| moves.iter().all(|(_, from)| *from != moves[*n].0));
            match free {
                Some(n) => {
                    let (to, from) = moves.swap_remove(n);
                    copy(&mut self.asm, to, from);
                }
                // Each target is another's source: one of them steps aside.
                None => {
                    let aside = moves[0].0;
                    copy(&mut self.asm, 0, aside);
                    for (_, from) in &mut moves {
                        if *from == aside {
                            *from = 0;
                        }
                    }
                }
            }
        }
    }
}
