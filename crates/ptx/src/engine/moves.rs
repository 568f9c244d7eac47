//! Moves that are more than a copy: packing, unpacking, predicates, clocks.

use super::control::NONE;
use super::ctx::Ctx;
use super::timing;
use crate::inst::{Flow, Inst};

pub(crate) const PRED_AND: u32 = 0;
pub(crate) const PRED_OR: u32 = 1;
pub(crate) const PRED_XOR: u32 = 2;
pub(crate) const PRED_NOT: u32 = 3;
pub(crate) const PRED_MOVE: u32 = 4;

/// Logic on predicates: `imm` bit 0 negates a, bit 1 b.
#[inline(never)]
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
#[inline(never)]
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

/// Which clock: `aux`, with `WIDE` for 64-bit registers, and what is known of the loop it is in. With `WAIT` the loop
/// only waits until the clock, less `b` where there is one, is `a` or later (`PAST`: later).
pub(crate) const CLOCK: u32 = 0;
pub(crate) const CLOCK_HI: u32 = 1;
pub(crate) const GLOBAL_TIMER: u32 = 2;
pub(crate) const GLOBAL_TIMER_HI: u32 = 3;

pub(crate) const IN_LOOP: u32 = 1 << 8;
pub(crate) const WAIT: u32 = 1 << 9;
pub(crate) const PAST: u32 = 1 << 10;
pub(crate) const SIGNED: u32 = 1 << 11;

pub(crate) fn clock(c: &mut Ctx, i: &Inst) -> Flow {
    let cycles = matches!(i.aux & 0xff, CLOCK | CLOCK_HI);
    if c.launch().timing.is_some() {
        if i.aux & WAIT != 0 {
            leap(c, i, cycles);
        } else if i.aux & IN_LOOP != 0 {
            // Not a mere wait. It may also wait for something from outside, where real time passes.
            let launch = c.launch();
            let real = (launch.clock_ns)().saturating_sub(launch.begun_ns);
            c.time_ps = c.time_ps.max(timing::ps_of_ns(real));
        }
    }
    let now = reading(c, cycles, 0);
    let value = match i.aux & 0xff {
        CLOCK_HI | GLOBAL_TIMER_HI => now >> 32,
        _ => now,
    };
    if i.aux & WIDE != 0 {
        c.put(i.d, &[value; 32]);
    } else {
        c.put(i.d, &[value as u32; 32]);
    }
    if i.aux & WAIT != 0 && c.launch().timing.is_some() {
        return Flow::Next;
    }
    // A kernel that watches the clock in a loop waits.
    if super::memory::polled(c) {
        Flow::Yield
    } else {
        Flow::Next
    }
}

/// What the clock shows, or will after so many picoseconds.
fn reading(c: &Ctx, cycles: bool, later_ps: u64) -> u64 {
    let launch = c.launch();
    let Some(timing) = launch.timing else {
        let ns = (launch.clock_ns)();
        return if cycles {
            timing::ticks(u128::from(ns) * 1000, launch.clock_khz)
        } else {
            ns
        };
    };
    let ps = u128::from(timing.start_ns) * 1000 + u128::from(c.time_ps.saturating_add(later_ps));
    if cycles {
        timing::ticks(ps, launch.clock_khz)
    } else {
        (ps / 1000) as u64
    }
}

/// Moves the warp's clock to the first time at which a lane leaves the loop that waits for it.
fn leap(c: &mut Ctx, i: &Inst, cycles: bool) {
    let now = reading(c, cycles, 0);
    let wide = i.aux & WIDE != 0;
    let lane_of = |c: &Ctx, slot: u32, lane: usize| {
        if wide {
            c.lane::<u64>(slot, lane)
        } else {
            u64::from(c.lane::<u32>(slot, lane))
        }
    };
    let signed = i.aux & SIGNED != 0;
    let order = |value: u64| match (wide, signed) {
        (true, true) => value ^ 1 << 63,
        (false, true) => (value ^ 1 << 31) & 0xffff_ffff,
        (true, false) => value,
        (false, false) => value & 0xffff_ffff,
    };
    let mut least = u64::MAX;
    for lane in c.active() {
        let start = if i.b == NONE { 0 } else { lane_of(c, i.b, lane) };
        let (reached, bound) = (order(now.wrapping_sub(start)), order(lane_of(c, i.a, lane)));
        let left = match (bound.checked_sub(reached), i.aux & PAST != 0) {
            (Some(left), true) => left.saturating_add(1),
            (Some(left), false) => left,
            (None, _) => 0,
        };
        least = least.min(left);
    }
    let launch = c.launch();
    let ps = if cycles {
        let Some(timing) = launch.timing else { return };
        let at = u128::from(timing.start_ns) * 1000 + u128::from(c.time_ps);
        let target = u128::from(now) + u128::from(least);
        timing::ps_of(target, launch.clock_khz).saturating_sub(at)
    } else {
        u128::from(least) * 1000
    };
    // A century is as good as for ever, and a kernel that waits so long is seen to poll.
    let ps = u64::try_from(ps).unwrap_or(0);
    c.time_ps = c.time_ps.saturating_add(if ps < u64::MAX / 4 { ps } else { 0 });
}
