//! Loads and stores of full warps whose halves each touch consecutive elements, or one, in memory that is known
//! already. All others go to the interpreter.

use super::asm::Map::{M0F, M0F3A, M0F38};
use super::asm::Pp::P66;
use super::asm::{CTX, Cond, Label, RAX, RCX, RDX, Rm, V};
use super::cache::Held;
use super::emit::{Emitter, Stub, ctx, is_empty};
use crate::engine::ctx::{Ctx, SITES};
use crate::engine::memory::{COUNT_SHIFT, GENERIC, GLOBAL, NARROW, POLL, SHARED, SITE_SHIFT, SPACE};
use crate::inst::Inst;
use std::mem::offset_of;
use std::ops::Range;

const K3: u8 = 3;
const XOR: V = V(P66, M0F, 0xef, false);
const OR: V = V(P66, M0F, 0xeb, false);
/// `vpternlogd` of: the first operand, or where the other two differ.
const TERNARY: V = V(P66, M0F3A, 0x25, false);
const OR_DIFFERS: u8 = 0xf6;

/// What an access does.
struct Access {
    bytes: u32,
    count: u32,
    shared: bool,
    /// Where the range it last fell into is remembered, in `Ctx`.
    range: i32,
    offset: i32,
}

impl Access {
    /// `None` where no code is made for it.
    fn of(inst: &Inst, bytes: u32) -> Option<Access> {
        let (space, narrow) = (inst.aux & SPACE, inst.aux & NARROW != 0);
        let shared = match space {
            SHARED if narrow => true,
            GLOBAL | GENERIC if !narrow => false,
            _ => return None,
        };
        let count = inst.aux >> COUNT_SHIFT & 15;
        let table = usize::from(space != GLOBAL);
        let site = (inst.aux >> SITE_SHIFT) as usize & (SITES - 1);
        let range = offset_of!(Ctx, ranges) + (table * SITES + site) * size_of::<Range<u64>>();
        let offset = if shared {
            inst.imm as u32 as i32
        } else {
            i32::try_from(inst.imm as i64).ok()?
        };
        (inst.aux & POLL == 0 && bytes * count <= 16).then_some(Access {
            bytes,
            count,
            shared,
            range: range as i32,
            offset,
        })
    }

    /// Bytes of a lane's access.
    fn width(&self) -> u32 {
        self.bytes * self.count
    }
}

impl Emitter<'_> {
    pub fn load(&mut self, pc: u32, inst: &Inst, bytes: u32) {
        let Some(access) = Access::of(inst, bytes) else {
            return self.interpret(pc);
        };
        let wide = bytes == 8;
        let a = self.read(inst.a, !access.shared);
        let fields = [inst.d, inst.b, inst.c, inst.e];
        let results: Vec<[u8; 4]> = (0..access.count).map(|_| self.room(wide)).collect();
        let (slow, back) = (self.asm.label(), self.asm.label());
        let parts = if wide { 2 } else { 1 };
        let run = |e: &mut Self| {
            for (half, at) in [RAX, RCX].into_iter().enumerate() {
                for part in 0..parts {
                    let d = results[0][half * parts + part];
                    e.asm.load(d, Rm::Mem(at, 64 * part as i32));
                }
            }
        };
        let same = |e: &mut Self| {
            let broadcast = V(P66, M0F38, if wide { 0x59 } else { 0x58 }, wide);
            for (n, regs) in results.iter().enumerate() {
                for (half, at) in [RAX, RCX].into_iter().enumerate() {
                    for part in 0..parts {
                        let from = Rm::Mem(at, (n as u32 * bytes) as i32);
                        e.asm.v2(broadcast, regs[half * parts + part], from);
                    }
                }
            }
        };
        self.shaped(&access, a, slow, back, run, Some(same));
        let held = self.cache.held.clone();
        self.asm.bind(back);
        self.issued += 1;
        for (slot, regs) in fields.into_iter().zip(&results) {
            self.cache.put(slot, wide, *regs, true);
        }
        let named = |h: &&Held| fields[..results.len()].contains(&h.slot);
        let results = self.cache.held.iter().filter(named).copied().collect();
        self.stubs.push(Stub::Slow {
            from: slow,
            back,
            pc,
            held,
            results,
            issued: self.issued,
        });
    }

    pub fn store(&mut self, pc: u32, inst: &Inst, bytes: u32) {
        let access = Access::of(inst, bytes).filter(|access| access.count == 1);
        let Some(access) = access else {
            return self.interpret(pc);
        };
        let wide = bytes == 8;
        let a = self.read(inst.a, !access.shared);
        let value = self.read(inst.d, wide);
        let (slow, back) = (self.asm.label(), self.asm.label());
        let parts = if wide { 2 } else { 1 };
        let run = |e: &mut Self| {
            for (half, at) in [RAX, RCX].into_iter().enumerate() {
                for part in 0..parts {
                    e.asm
                        .store(value[half * parts + part], Rm::Mem(at, 64 * part as i32));
                }
            }
        };
        self.shaped(&access, a, slow, back, run, None::<fn(&mut Self)>);
        self.no_poll();
        self.asm.bind(back);
        self.issued += 1;
        self.stubs.push(Stub::Slow {
            from: slow,
            back,
            pc,
            held: self.cache.held.clone(),
            results: Vec::new(),
            issued: self.issued,
        });
    }

    /// Code for the shapes there is code for; leaves to `slow` for all others and wherever a check fails, and does not
    /// touch memory before.
    fn shaped(
        &mut self,
        access: &Access,
        a: [u8; 4],
        slow: Label,
        back: Label,
        run: impl Fn(&mut Self),
        same: Option<impl Fn(&mut Self)>,
    ) {
        let step = access.width().trailing_zeros() as usize - 2;
        self.distances(access, a);
        let Some(same) = same else {
            self.differ(access, Some(step), slow);
            self.reach(access, a, 16, slow);
            return run(self);
        };
        if access.count > 1 {
            self.differ(access, None, slow);
            self.reach(access, a, 1, slow);
            return same(self);
        }
        let other = self.asm.label();
        self.differ(access, Some(step), other);
        self.reach(access, a, 16, slow);
        run(self);
        self.asm.jump(back);
        self.asm.bind(other);
        self.differ(access, None, slow);
        self.reach(access, a, 1, slow);
        same(self);
    }

    /// How far each lane is from the first of its half, in vector registers 0 to 1, or 0 to 3.
    fn distances(&mut self, access: &Access, a: [u8; 4]) {
        for half in 0..2u8 {
            if access.shared {
                let (first, lanes) = (half, a[usize::from(half)]);
                self.asm.v2(V(P66, M0F38, 0x58, false), first, Rm::Reg(lanes));
                self.asm
                    .v3(V(P66, M0F, 0xfa, false), first, lanes, Rm::Reg(first));
            } else {
                let (first, at) = (2 * half, 2 * usize::from(half));
                let subtract = V(P66, M0F, 0xfb, true);
                self.asm.v2(V(P66, M0F38, 0x59, true), first, Rm::Reg(a[at]));
                self.asm.v3(subtract, first + 1, a[at + 1], Rm::Reg(first));
                self.asm.v3(subtract, first, a[at], Rm::Reg(first));
            }
        }
    }

    /// Goes to `other` unless the distances are those of a run, or zero.
    fn differ(&mut self, access: &Access, step: Option<usize>, other: Label) {
        let vectors: u8 = if access.shared { 2 } else { 4 };
        let steps = |vector: u8| {
            let step = step?;
            Some(if access.shared {
                self.pool.steps[step]
            } else {
                self.pool.wide_steps[step] + 64 * u32::from(vector % 2)
            })
        };
        let steps: Vec<Option<u32>> = (0..vectors).map(steps).collect();
        for (vector, steps) in (0..vectors).zip(steps) {
            match (steps, vector) {
                (Some(at), 0) => self.asm.v3(XOR, 4, 0, Rm::Pool(at)),
                (Some(at), _) => self.asm.v3_imm(TERNARY, 4, vector, Rm::Pool(at), OR_DIFFERS),
                (None, 0) => super::emit::copy(&mut self.asm, 4, 0),
                (None, _) => self.asm.v3(OR, 4, 4, Rm::Reg(vector)),
            }
        }
        // vptestmd
        self.asm.v3(V(P66, M0F38, 0x27, false), K3, 4, Rm::Reg(4));
        is_empty(&mut self.asm, K3);
        self.asm.jump_if(Cond::NotEqual, other);
    }

    /// The host addresses of the halves' first lanes, in RAX and RCX, where `lanes` elements from there on are in
    /// bounds and aligned.
    fn reach(&mut self, access: &Access, a: [u8; 4], lanes: u32, slow: Label) {
        let extent = (lanes * access.width()) as i32;
        for (half, at) in [RAX, RCX].into_iter().enumerate() {
            let first = a[if access.shared { half } else { 2 * half }];
            self.asm.lowest(at, first, !access.shared);
            if access.offset != 0 {
                self.asm.add_imm(at, access.offset, !access.shared);
            }
            let end = if access.shared {
                ctx!(shared_bytes)
            } else {
                Rm::Mem(CTX, access.range + offset_of!(Range<u64>, end) as i32)
            };
            self.asm.mov_load(RDX, end, true);
            self.asm.sub_imm(RDX, extent, true);
            self.asm.jump_if(Cond::Below, slow);
            self.asm.cmp(at, Rm::Reg(RDX.0), true);
            self.asm.jump_if(Cond::Above, slow);
            if !access.shared {
                let start = access.range + offset_of!(Range<u64>, start) as i32;
                self.asm.cmp(at, Rm::Mem(CTX, start), true);
                self.asm.jump_if(Cond::Below, slow);
            }
            self.asm.test_imm(at, access.width() - 1);
            self.asm.jump_if(Cond::NotEqual, slow);
            if access.shared {
                self.asm.add(at, ctx!(shared), true);
            }
        }
    }
}
