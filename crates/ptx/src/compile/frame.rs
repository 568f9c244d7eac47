//! Where compiled code begins and ends, and what it finds there.

use super::asm::{Asm, COUNT, CTX, Cond, INSTS, Label, MASK, RCX, RDI, RDX, REGS, RSI, Rm};
use super::home::load_masks;
use crate::engine::ctx::{Ctx, Following};
use std::mem::offset_of;

/// No native code begins at an instruction.
pub(super) const NOWHERE: u32 = u32::MAX;

/// An offset in `Ctx`.
macro_rules! ctx {
    ($field:ident) => {
        Rm::Mem(CTX, offset_of!(Ctx, $field) as i32)
    };
}
pub(super) use ctx;

/// What stands around a version's code: `fn(ctx, registers, instructions, entry) -> Flow`.
pub(super) struct Frame {
    /// Where the code begins that is called.
    pub enter: u32,
    /// Where it ends.
    pub epilogue: Label,
    /// Where a warp goes that ends or comes to a barrier: RAX has the flow, RCX the instruction.
    pub over: Label,
}

/// The frame of code for full warps or any, and of code that goes on from warp to warp, if `whole`.
pub(super) fn frame(asm: &mut Asm, full: bool, whole: bool) -> Frame {
    let enter = asm.here();
    // push rbx, rbp, r13, r14, r15: the stack is then aligned to 16 bytes.
    asm.raw(&[0x53, 0x55, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57]);
    asm.scalar(0x8b, true, CTX.0, Rm::Reg(RDI.0));
    asm.scalar(0x8b, true, REGS.0, Rm::Reg(RSI.0));
    asm.scalar(0x8b, true, INSTS.0, Rm::Reg(RDX.0));
    asm.mov_load(COUNT, ctx!(count), true);
    if !full {
        asm.mov_load(MASK, ctx!(mask), false);
        load_masks(asm);
    }
    // jmp rcx
    asm.scalar(0xff, false, 4, Rm::Reg(RCX.0));
    let (epilogue, over) = (asm.label(), asm.label());
    asm.bind(over);
    if whole {
        next_warp(asm, epilogue);
    }
    asm.bind(epilogue);
    asm.mov_store(ctx!(count), COUNT, true);
    // vzeroupper, and the registers back.
    asm.raw(&[0xc5, 0xf8, 0x77]);
    asm.raw(&[0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x5d, 0x5b, 0xc3]);
    Frame {
        enter,
        epilogue,
        over,
    }
}

/// On to the next warp, if there is one and this one ended as it was to.
fn next_warp(asm: &mut Asm, epilogue: Label) {
    const AT: usize = offset_of!(Ctx, following);
    let following = |field: usize| Rm::Mem(CTX, (AT + field) as i32);
    asm.cmp(RCX, following(offset_of!(Following, end)), false);
    asm.jump_if(Cond::NotEqual, epilogue);
    let left = following(offset_of!(Following, left));
    asm.mov_load(RDX, left, true);
    asm.sub_imm(RDX, 1, true);
    asm.jump_if(Cond::Below, epilogue);
    asm.mov_store(left, RDX, true);
    let count = following(offset_of!(Following, count));
    asm.add(COUNT, count, true);
    asm.mov_store(count, COUNT, true);
    asm.xor(COUNT, Rm::Reg(COUNT.0));
    asm.add(REGS, following(offset_of!(Following, registers)), true);
    asm.mov_store(ctx!(regs), REGS, true);
    asm.mov_load(RDX, ctx!(local), true);
    asm.add(RDX, following(offset_of!(Following, local)), true);
    asm.mov_store(ctx!(local), RDX, true);
    asm.mov_load(RDX, ctx!(warp), false);
    asm.add_imm(RDX, 1, false);
    asm.mov_store(ctx!(warp), RDX, false);
    asm.scalar(0xff, false, 4, following(offset_of!(Following, entry)));
}
