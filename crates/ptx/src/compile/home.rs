//! Where values are kept: homes of registers in the warp's area, and the vector and mask registers of their parts.

use super::asm::Map::{M0F, M0F3A, M0F38};
use super::asm::Pp::{F2, F3, None as P0, P66};
use super::asm::{Asm, MASK, RAX, REGS, Rm, V};
use super::cache::Held;
use super::constants::Pool;

/// The masks of a warp's parts: of 8 lanes each, and of 16 (the first and the third).
const PARTS: [u8; 4] = [1, 5, 2, 6];

/// The vector registers for writing values home, which may happen in the middle of an instruction's code. That has 0
/// to 4.
const SCRATCH: u8 = 5;
const SCRATCH2: u8 = 6;

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
pub(super) fn spread(asm: &mut Asm, held: &Held, to: u8) {
    let broadcast = V(P66, M0F38, if held.wide { 0x59 } else { 0x58 }, held.wide);
    asm.v2(broadcast, to, Rm::Reg(held.regs[0]));
}

/// One part of a value of which only the first lane is there, which `first` has in every lane. May change RAX.
pub(super) fn lie(asm: &mut Asm, pool: &Pool, held: &Held, part: usize, to: u8, first: u8) {
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
