//! Loads and stores, in memory that is known already. Where the lanes' addresses are known to lie evenly, only the
//! first is looked at. Otherwise halves of a full warp that each touch consecutive elements, or one, have code of their
//! own, and all others are gathered and scattered. Whatever fails a check is the interpreter's.

use super::asm::Map::{M0F, M0F3A, M0F38};
use super::asm::Pp::{None as P0, P66};
use super::asm::{CTX, Cond, Gp, Label, RAX, RCX, RDX, Rm, V};
use super::cache::Held;
use super::emit::{Emitter, Proof};
use super::frame::ctx;
use super::home::{copy, is_empty, join, part_mask, upper};
use super::stub::Stub;
use super::table::{Element, Op, op};
use crate::engine::control::NONE;
use crate::engine::ctx::{Ctx, SITES};
use crate::engine::memory::{COUNT_SHIFT, GENERIC, GLOBAL, NARROW, POLL, SHARED, SITE_SHIFT, SPACE};
use crate::inst::Inst;
use std::mem::offset_of;
use std::ops::Range;

/// Bytes beyond which accesses at one address are not looked at together.
const FAR: i64 = 1 << 16;
/// Bytes that loads of consecutive elements ask for ahead: four warps of 32-bit elements.
const AHEAD: i32 = 512;
const K3: u8 = 3;
const XOR: V = V(P66, M0F, 0xef, false);
const OR: V = V(P66, M0F, 0xeb, false);
/// `vpternlogd` of: the first operand, or where the other two differ.
const TERNARY: V = V(P66, M0F3A, 0x25, false);
const OR_DIFFERS: u8 = 0xf6;
/// `vptestmd`.
const TEST: V = V(P66, M0F38, 0x27, false);
/// By width: addition, the larger without a sign.
const ADD: [V; 2] = [V(P66, M0F, 0xfe, false), V(P66, M0F, 0xd4, true)];
const LARGER: [V; 2] = [V(P66, M0F38, 0x3f, false), V(P66, M0F38, 0x3f, true)];

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

    /// The width's logarithm.
    fn shift(&self) -> usize {
        self.width().trailing_zeros() as usize
    }
}

impl Emitter<'_> {
    pub fn load(&mut self, pc: u32, inst: &Inst, element: Element) {
        let bytes = u32::from(element.bytes);
        let Some(access) = Access::of(inst, bytes) else {
            return self.interpret(pc);
        };
        let (wide, small) = (bytes == 8, bytes < 4);
        if small && (!self.full || access.count > 1) {
            return self.interpret(pc);
        }
        let held = self.peek(inst.a, !access.shared);
        let step = if self.full { held.step } else { None };
        let fields = [inst.d, inst.b, inst.c, inst.e];
        let (slow, back) = (self.asm.label(), self.asm.label());
        if step == Some(0) && !small {
            // One element for all lanes.
            let results: Vec<u8> = (0..access.count).map(|_| self.room(wide, true)[0]).collect();
            let (sure, offset) = self.reach_even(&access, inst.a, &held, 1, slow);
            for (n, reg) in results.iter().enumerate() {
                self.broadcast(wide, *reg, RAX, offset + (n as u32 * bytes) as i32);
            }
            let dirty = self.unsaved();
            self.asm.bind(back);
            for (slot, reg) in fields.into_iter().zip(&results) {
                self.cache.put_one(slot, wide, *reg, 0, true);
            }
            if sure {
                self.issued += 1;
                return;
            }
            return self.slow_load(pc, [slow, back], dirty, &fields[..results.len()]);
        }
        let parts = if wide { 4 } else { 2 };
        let even = step == Some(i64::from(bytes)) && access.count == 1;
        let a = if even {
            held.regs
        } else {
            self.read(inst.a, !access.shared)
        };
        let results: Vec<[u8; 4]> = (0..access.count).map(|_| self.room(wide, false)).collect();
        let mut sure = false;
        if even {
            let offset;
            let before = self.proved.len();
            (sure, offset) = self.reach_even(&access, inst.a, &held, 32, slow);
            // The next warps' elements follow. Where addresses are proved already, they were asked for.
            if !access.shared && (!sure || self.proved.len() != before) {
                for line in 0..(32 * bytes).div_ceil(64) {
                    self.asm.prefetch(RAX, offset + AHEAD + 64 * line as i32);
                }
            }
            for (part, reg) in results[0].into_iter().enumerate().take(parts) {
                self.consecutive(element, reg, RAX, offset, part as u32);
            }
        } else if self.full {
            self.shapes(&access, element, a, &results, [slow, back]);
        } else {
            self.gather(&access, a, &results, slow);
        }
        let dirty = self.unsaved();
        self.asm.bind(back);
        for (slot, regs) in fields.into_iter().zip(&results) {
            self.cache.put(slot, wide, *regs, true);
        }
        if sure {
            self.issued += 1;
            return;
        }
        self.slow_load(pc, [slow, back], dirty, &fields[..results.len()]);
    }

    /// The host address of the first lane less what the instruction adds to it, in RAX, where the bytes it touches from
    /// there on may be touched, and what to add. Instructions that follow at the same address are looked at together
    /// with it. True where there is nothing to look at any more, and nothing goes to `slow`.
    fn reach_even(
        &mut self,
        access: &Access,
        slot: u32,
        held: &Held,
        lanes: u32,
        slow: Label,
    ) -> (bool, i32) {
        let offset = i64::from(access.offset);
        let bytes = offset..offset + i64::from(lanes * access.width());
        let covers = |p: &Proof| {
            p.serial == held.serial
                && p.width == access.width()
                && (bytes.start - p.bytes.start) % i64::from(p.width) == 0
                && p.bytes.start <= bytes.start
                && bytes.end <= p.bytes.end
        };
        let proved = self.proved.iter().any(covers);
        if !proved {
            let all = self.together(access, slot, bytes.clone(), lanes);
            if all != bytes && all.end - all.start < FAR {
                let unlike = self.asm.label();
                let whole = Access {
                    bytes: access.width(),
                    count: 1,
                    offset: all.start as i32,
                    ..*access
                };
                self.reach_bytes(&whole, held.regs[0], RAX, (all.end - all.start) as i32, unlike);
                self.stubs.push(Stub::Unlike {
                    from: unlike,
                    pc: self.pc,
                    dirty: self.unsaved(),
                    issued: self.issued,
                });
                let proof = Proof {
                    serial: held.serial,
                    width: access.width(),
                    bytes: all.clone(),
                };
                self.proved.push(proof);
                return (true, (offset - all.start) as i32);
            }
            self.reach(access, held.regs[0], RAX, lanes, slow);
            return (false, 0);
        }
        self.asm.lowest(RAX, held.regs[0], !access.shared);
        if !access.shared {
            return (proved, access.offset);
        }
        // A number of 32 bits may go round.
        if access.offset != 0 {
            self.asm.add_imm(RAX, access.offset, false);
        }
        self.asm.add(RAX, ctx!(shared), true);
        (proved, 0)
    }

    /// The bytes that this access and those behind it touch from the register at `slot` on, of those that lie likewise.
    fn together(&self, access: &Access, slot: u32, mine: Range<i64>, lanes: u32) -> Range<i64> {
        let mut all = mine;
        let own = &self.insts[self.pc as usize];
        if matches!(op(own.exec), Some(Op::Load(_))) && [own.d, own.b, own.c, own.e].contains(&slot) {
            return all;
        }
        for (inst, what) in self.straight() {
            let bytes = match what {
                Op::Load(element) => u32::from(element.bytes),
                Op::Store(bytes) if lanes > 1 => u32::from(bytes),
                _ => 0,
            };
            let other = Access::of(inst, bytes.max(4)).filter(|_| bytes > 0 && inst.a == slot);
            if let Some(other) = other {
                let alike = other.range == access.range
                    && other.shared == access.shared
                    && other.bytes == access.bytes
                    && other.count == access.count
                    && bytes == access.bytes
                    && (other.offset - access.offset) % access.width() as i32 == 0;
                if alike {
                    let start = i64::from(other.offset);
                    all.start = all.start.min(start);
                    all.end = all.end.max(start + i64::from(lanes * access.width()));
                }
            }
            let reads = matches!(what, Op::Store(_));
            if !reads && [inst.d, inst.b, inst.c, inst.e].contains(&slot) {
                break;
            }
        }
        all
    }

    /// The interpreter's way for a load whose results are held by now, but not at home.
    fn slow_load(&mut self, pc: u32, [from, back]: [Label; 2], dirty: Vec<Held>, results: &[u32]) {
        self.issued += 1;
        let mut again = self.wanted();
        // A result that nothing reads is held as well.
        for held in &self.cache.held {
            if results.contains(&held.slot) && again.iter().all(|h| h.slot != held.slot) {
                again.push(*held);
            }
        }
        self.stubs.push(Stub::Slow {
            from,
            back,
            pc,
            dirty,
            again,
            issued: self.issued,
        });
    }

    pub fn store(&mut self, pc: u32, inst: &Inst, bytes: u32) {
        let access = Access::of(inst, bytes).filter(|access| access.count == 1);
        let Some(access) = access else {
            return self.interpret(pc);
        };
        let wide = bytes == 8;
        let held = self.peek(inst.a, !access.shared);
        let even = self.full && held.step == Some(i64::from(bytes));
        let a = if even {
            held.regs
        } else {
            self.read(inst.a, !access.shared)
        };
        let value = self.read(inst.d, wide);
        let dirty = self.unsaved();
        let (slow, back) = (self.asm.label(), self.asm.label());
        let parts = if wide { 4 } else { 2 };
        let mut sure = false;
        if even {
            let offset;
            (sure, offset) = self.reach_even(&access, inst.a, &held, 32, slow);
            for (part, reg) in value.into_iter().enumerate().take(parts) {
                self.asm.store(reg, Rm::Mem(RAX, offset + 64 * part as i32));
            }
        } else if self.full {
            let scattered = self.asm.label();
            let done = self.asm.label();
            self.distances(&access, a);
            self.differ(&access, Some(access.shift()), scattered);
            self.halves(&access, a, 16, slow);
            for (half, at) in [RAX, RCX].into_iter().enumerate() {
                for part in 0..parts / 2 {
                    let reg = value[half * (parts / 2) + part];
                    self.asm.store(reg, Rm::Mem(at, 64 * part as i32));
                }
            }
            self.asm.jump(done);
            self.asm.bind(scattered);
            self.scatter(&access, a, value, slow);
            self.asm.bind(done);
        } else {
            self.scatter(&access, a, value, slow);
        }
        self.no_poll();
        self.asm.bind(back);
        self.issued += 1;
        if sure {
            return;
        }
        self.slow_way(slow, back, pc, dirty);
    }

    /// The interpreter's way for lanes that the code at `from` does not serve; it goes on at `back`.
    fn slow_way(&mut self, from: Label, back: Label, pc: u32, dirty: Vec<Held>) {
        let again = self.wanted();
        self.stubs.push(Stub::Slow {
            from,
            back,
            pc,
            dirty,
            again,
            issued: self.issued,
        });
    }

    /// `atom.shared.add` of 32 bits whose result nothing reads, of a number that is not zero. Nothing but this warp
    /// touches the block's shared memory meanwhile.
    pub fn add_in_memory(&mut self, pc: u32, inst: &Inst) {
        let access = Access::of(inst, 4).filter(|access| access.shared);
        let unread = inst.d == NONE || self.facts.unread(inst.d, pc);
        let (Some(access), true, Some(by @ 1..)) = (access, unread, self.facts.number(inst.b)) else {
            return self.interpret(pc);
        };
        let a = self.read(inst.a, false);
        let dirty = self.unsaved();
        let (slow, back) = (self.asm.label(), self.asm.label());
        self.indices(&access, a, slow);
        for part in 0..2u8 {
            let to = offset_of!(Ctx, targets) as i32 + 64 * i32::from(part);
            self.asm.store(part, Rm::Mem(CTX, to));
        }
        self.asm.mov_load(RCX, ctx!(shared), true);
        for lane in 0..32 {
            let from = offset_of!(Ctx, targets) as i32 + 4 * lane;
            self.asm.mov_load(RAX, Rm::Mem(CTX, from), false);
            self.asm.add_to_memory(RCX, RAX, by as u32);
        }
        self.no_poll();
        self.asm.bind(back);
        self.issued += 1;
        self.slow_way(slow, back, pc, dirty);
    }

    /// The element at an address, in every lane.
    fn broadcast(&mut self, wide: bool, reg: u8, at: Gp, offset: i32) {
        let broadcast = V(P66, M0F38, if wide { 0x59 } else { 0x58 }, wide);
        self.asm.v2(broadcast, reg, Rm::Mem(at, offset));
    }

    /// The elements of one vector register.
    fn consecutive(&mut self, element: Element, reg: u8, at: Gp, offset: i32, part: u32) {
        let opcode = match (element.bytes, element.signed) {
            (1, false) => 0x31,
            (1, true) => 0x21,
            (2, false) => 0x33,
            (2, true) => 0x23,
            _ => return self.asm.load(reg, Rm::Mem(at, offset + 64 * part as i32)),
        };
        let from = Rm::Mem(at, offset + (16 * u32::from(element.bytes) * part) as i32);
        self.asm.v2(V(P66, M0F38, opcode, false), reg, from);
    }

    /// A load of a full warp whose addresses were not known to lie evenly: halves that do, then halves of one address,
    /// then any.
    fn shapes(
        &mut self,
        access: &Access,
        element: Element,
        a: [u8; 4],
        results: &[[u8; 4]],
        [slow, back]: [Label; 2],
    ) {
        let wide = element.bytes == 8;
        let half_parts = if wide { 2 } else { 1 };
        self.distances(access, a);
        if access.count == 1 {
            let other = self.asm.label();
            self.differ(access, Some(access.shift()), other);
            self.halves(access, a, 16, slow);
            for (half, at) in [RAX, RCX].into_iter().enumerate() {
                for part in 0..half_parts {
                    self.consecutive(element, results[0][half * half_parts + part], at, 0, part as u32);
                }
            }
            self.asm.jump(back);
            self.asm.bind(other);
        }
        if element.bytes < 4 {
            return self.asm.jump(slow);
        }
        let gathered = self.asm.label();
        self.differ(access, None, gathered);
        self.halves(access, a, 1, slow);
        for (n, regs) in results.iter().enumerate() {
            for (half, at) in [RAX, RCX].into_iter().enumerate() {
                for part in 0..half_parts {
                    self.broadcast(
                        wide,
                        regs[half * half_parts + part],
                        at,
                        (n as u32 * access.bytes) as i32,
                    );
                }
            }
        }
        self.asm.jump(back);
        self.asm.bind(gathered);
        self.gather(access, a, results, slow);
    }

    /// The active lanes' addresses in vector registers 0 to 1, or 0 to 3: within what they may reach, and aligned.
    /// Shared ones count from the beginning of shared memory. Lanes that are not active have any.
    fn indices(&mut self, access: &Access, a: [u8; 4], slow: Label) {
        let (wide, w) = (!access.shared, usize::from(!access.shared));
        let parts = if wide { 4 } else { 2u8 };
        // The room for the first byte, in RDX, and the start in RCX.
        if wide {
            let range = access.range;
            self.asm.mov_load(
                RCX,
                Rm::Mem(CTX, range + offset_of!(Range<u64>, start) as i32),
                true,
            );
            self.asm.mov_load(
                RDX,
                Rm::Mem(CTX, range + offset_of!(Range<u64>, end) as i32),
                true,
            );
            self.asm.sub_imm(RDX, access.width() as i32, true);
            self.asm.jump_if(Cond::Below, slow);
            self.asm.sub(RDX, RCX);
            self.asm.jump_if(Cond::Below, slow);
            self.asm.spread(5, RCX, true);
        } else {
            self.asm.mov_load(RDX, ctx!(shared_bytes), true);
            self.asm.sub_imm(RDX, access.width() as i32, true);
            self.asm.jump_if(Cond::Below, slow);
        }
        self.asm.mov_wide(RAX, access.offset);
        self.asm.spread(4, RAX, wide);
        for part in 0..parts {
            let from = a[usize::from(part)];
            if self.full {
                self.asm.v3(ADD[w], part, from, Rm::Reg(4));
            } else {
                // Lanes that are not active get an address that is allowed.
                let k = part_mask(usize::from(part), wide);
                if wide {
                    copy(&mut self.asm, part, 5);
                } else {
                    self.asm.v3(XOR, part, part, Rm::Reg(part));
                }
                self.asm.v3_masked(ADD[w], part, k, from, Rm::Reg(4));
            }
        }
        // The largest distance from the start, in 4, and the lowest bits of all addresses, in 6.
        let subtract = V(P66, M0F, 0xfb, true);
        for part in 0..parts {
            let distance = if wide {
                self.asm.v3(subtract, 6, part, Rm::Reg(5));
                6
            } else {
                part
            };
            if part == 0 {
                copy(&mut self.asm, 4, distance);
            } else {
                self.asm.v3(LARGER[w], 4, 4, Rm::Reg(distance));
            }
        }
        self.asm.spread(6, RDX, wide);
        let compare = V(P66, M0F3A, 0x1e, wide);
        self.asm.v3_imm(compare, K3, 4, Rm::Reg(6), 6);
        is_empty(&mut self.asm, K3);
        self.asm.jump_if(Cond::NotEqual, slow);
        if access.width() > 1 {
            copy(&mut self.asm, 6, 0);
            for part in 1..parts {
                self.asm.v3(OR, 6, 6, Rm::Reg(part));
            }
            self.asm.mov_wide(RAX, access.width() as i32 - 1);
            self.asm.spread(4, RAX, wide);
            self.asm.v3(
                if wide { V(P66, M0F38, 0x27, true) } else { TEST },
                K3,
                6,
                Rm::Reg(4),
            );
            is_empty(&mut self.asm, K3);
            self.asm.jump_if(Cond::NotEqual, slow);
        }
    }

    /// The active lanes of a part, in a mask register that may be used up.
    fn lanes(&mut self, part: usize, eight: bool) -> u8 {
        if self.full {
            // kxnorw
            self.asm
                .mask(V(P0, M0F, 0x46, false), true, K3, K3, Rm::Reg(K3), None);
        } else {
            let k = part_mask(part, eight);
            // kmovw
            self.asm
                .mask(V(P0, M0F, 0x90, false), false, K3, 0, Rm::Reg(k), None);
        }
        K3
    }

    fn gather(&mut self, access: &Access, a: [u8; 4], results: &[[u8; 4]], slow: Label) {
        self.indices(access, a, slow);
        let wide = access.bytes == 8;
        let base = access.shared.then_some(RAX);
        if access.shared {
            self.asm.mov_load(RAX, ctx!(shared), true);
        }
        for (n, regs) in results.iter().enumerate() {
            let offset = (n as u32 * access.bytes) as i32;
            match (access.shared, wide) {
                (true, false) => {
                    for part in 0..2 {
                        let k = self.lanes(part, false);
                        self.asm.v3(XOR, regs[part], regs[part], Rm::Reg(regs[part]));
                        self.asm
                            .indexed(0x90, (regs[part], false), base, part as u8, offset, k);
                    }
                }
                (true, true) => {
                    for part in 0..4 {
                        let index = if part % 2 == 0 {
                            part as u8 / 2
                        } else {
                            upper(&mut self.asm, 4, part as u8 / 2);
                            4
                        };
                        let k = self.lanes(part, true);
                        self.asm.v3(XOR, regs[part], regs[part], Rm::Reg(regs[part]));
                        self.asm.indexed(0x90, (regs[part], true), base, index, offset, k);
                    }
                }
                (false, false) => {
                    for half in 0..2 {
                        for (to, part) in [(4u8, 2 * half), (5, 2 * half + 1)] {
                            let k = self.lanes(part, true);
                            self.asm.v3(XOR, to, to, Rm::Reg(to));
                            self.asm.indexed(0x91, (to, false), None, part as u8, offset, k);
                        }
                        join(&mut self.asm, regs[half], 4, 5);
                    }
                }
                (false, true) => {
                    for part in 0..4 {
                        let k = self.lanes(part, true);
                        self.asm.v3(XOR, regs[part], regs[part], Rm::Reg(regs[part]));
                        self.asm
                            .indexed(0x91, (regs[part], true), None, part as u8, offset, k);
                    }
                }
            }
        }
    }

    fn scatter(&mut self, access: &Access, a: [u8; 4], value: [u8; 4], slow: Label) {
        self.indices(access, a, slow);
        let wide = access.bytes == 8;
        let base = access.shared.then_some(RAX);
        if access.shared {
            self.asm.mov_load(RAX, ctx!(shared), true);
        }
        let eight = wide || !access.shared;
        for part in 0..if eight { 4 } else { 2 } {
            let index = match (access.shared, wide) {
                (true, true) if part % 2 == 1 => {
                    upper(&mut self.asm, 4, part as u8 / 2);
                    4
                }
                (true, true) => part as u8 / 2,
                _ => part as u8,
            };
            let data = match (access.shared, wide) {
                (false, false) if part % 2 == 1 => {
                    upper(&mut self.asm, 5, value[part / 2]);
                    5
                }
                (false, false) => value[part / 2],
                _ => value[part],
            };
            let k = self.lanes(part, eight);
            let opcode = if access.shared { 0xa0 } else { 0xa1 };
            self.asm.indexed(opcode, (data, wide), base, index, 0, k);
        }
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
                (None, 0) => copy(&mut self.asm, 4, 0),
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
    fn halves(&mut self, access: &Access, a: [u8; 4], lanes: u32, slow: Label) {
        for (half, at) in [RAX, RCX].into_iter().enumerate() {
            let first = a[if access.shared { half } else { 2 * half }];
            self.reach(access, first, at, lanes, slow);
        }
    }

    /// The host address of the first lane of `first`, in `at`, where `lanes` elements from there on are in bounds and
    /// aligned.
    fn reach(&mut self, access: &Access, first: u8, at: Gp, lanes: u32, slow: Label) {
        self.reach_bytes(access, first, at, (lanes * access.width()) as i32, slow);
    }

    fn reach_bytes(&mut self, access: &Access, first: u8, at: Gp, extent: i32, slow: Label) {
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
        if access.width() > 1 {
            self.asm.test_imm(at, access.width() - 1);
            self.asm.jump_if(Cond::NotEqual, slow);
        }
        if access.shared {
            self.asm.add(at, ctx!(shared), true);
        }
    }
}
