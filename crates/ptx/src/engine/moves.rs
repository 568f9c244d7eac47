//! Moves that are more than a copy: packing, unpacking, predicates, clocks.

use super::control::NONE;
use super::ctx::Ctx;
use crate::inst::{Flow, Inst};

pub(crate) const PRED_AND: u32 = 0;
pub(crate) const PRED_OR: u32 = 1;
pub(crate) const PRED_XOR: u32 = 2;
pub(crate) const PRED_NOT: u32 = 3;
pub(crate) const PRED_MOVE: u32 = 4;

/// Logic on predicates: `imm` bit 0 negates a, bit 1 b.
pub(crate) fn predicate_logic(c: &mut Ctx, i: &Inst) -> Flow {
    let invert = |p: u32, bit: u64| if i.imm >> bit & 1 != 0 { !p } else { p };
    let a = invert(c.pred(i.a), 0);
    let b = if i.b == NONE { 0 } else { invert(c.pred(i.b), 1) };
    c.put_pred(
        i.d,
        match i.aux {
            PRED_AND => a & b,
            PRED_OR => a | b,
            PRED_XOR => a ^ b,
            PRED_NOT => !a,
            _ => a,
        },
    );
    Flow::Next
}

/// `mov` of an immediate to a predicate is `setp` of a constant: `imm` is all lanes' value.
pub(crate) fn predicate_constant(c: &mut Ctx, i: &Inst) -> Flow {
    c.put_pred(i.d, i.imm as u32);
    Flow::Next
}

/// `{a, b, …}` into one register: elements of `aux & 0xff` bits, `aux >> 8` of them, in a, b, c, e. Bit 31 of `aux`:
/// the result is 64 bits wide; bit 30: the elements are.
pub(crate) const WIDE: u32 = 1 << 31;

pub(crate) fn pack(c: &mut Ctx, i: &Inst) -> Flow {
    let (bits, count) = (i.aux & 0xff, i.aux >> 8 & 0xff);
    let mask = (1u64 << bits) - 1;
    let mut values = [0u64; 32];
    for (n, slot) in [i.a, i.b, i.c, i.e].into_iter().take(count as usize).enumerate() {
        let lanes = c.lanes::<u32>(slot);
        for lane in 0..32 {
            values[lane] |= (u64::from(lanes[lane]) & mask) << (n as u32 * bits);
        }
    }
    if i.aux & WIDE != 0 {
        c.put(i.d, &values);
    } else {
        c.put(i.d, &values.map(|v| v as u32));
    }
    Flow::Next
}

/// One register into `{d, b, c, e}`.
pub(crate) fn unpack(c: &mut Ctx, i: &Inst) -> Flow {
    let (bits, count) = (i.aux & 0xff, i.aux >> 8 & 0xff);
    let mask = (1u64 << bits) - 1;
    let values = if i.aux & WIDE != 0 {
        c.lanes::<u64>(i.a)
    } else {
        c.lanes::<u32>(i.a).map(u64::from)
    };
    for (n, slot) in [i.d, i.b, i.c, i.e].into_iter().take(count as usize).enumerate() {
        c.put(slot, &values.map(|v| (v >> (n as u32 * bits) & mask) as u32));
    }
    Flow::Next
}

/// Which clock: `aux`, with `WIDE` for 64-bit registers.
pub(crate) const CLOCK: u32 = 0;
pub(crate) const CLOCK_HI: u32 = 1;
pub(crate) const GLOBAL_TIMER: u32 = 2;
pub(crate) const GLOBAL_TIMER_HI: u32 = 3;

pub(crate) fn clock(c: &mut Ctx, i: &Inst) -> Flow {
    let launch = c.launch();
    let ns = (launch.clock_ns)();
    let value = match i.aux & 0xff {
        CLOCK_HI | GLOBAL_TIMER_HI => ns >> 32,
        // `%clock` counts the cycles of a 1 GHz multiprocessor, which is as good as any.
        _ => ns,
    };
    if i.aux & WIDE != 0 {
        c.put(i.d, &[value; 32]);
    } else {
        c.put(i.d, &[value as u32; 32]);
    }
    // Someone who watches the clock in a loop waits.
    if super::memory::polled(c) {
        Flow::Yield
    } else {
        Flow::Next
    }
}
