//! Branches, guards, ends; and the instructions that have no effect here.

use super::ctx::{Ctx, Stop};
use super::launch::NO_AREA;
use crate::code::FUNCTION_ADDRESS;
use crate::error::Access;
use crate::inst::{Flow, Inst};

/// No register field.
pub(crate) const NONE: u32 = u32::MAX;

#[inline(never)]
pub(crate) fn nop(_: &mut Ctx, _: &Inst) -> Flow {
    Flow::Next
}

/// `membar`, `fence`: one thread runs a block, so the fence only concerns other workers.
pub(crate) fn fence(_: &mut Ctx, _: &Inst) -> Flow {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    Flow::Next
}

/// `bra` to `aux`.
#[inline(never)]
pub(crate) fn branch(c: &mut Ctx, i: &Inst) -> Flow {
    c.pc = i.aux;
    Flow::Jump
}

/// `@p bra`.
#[inline(never)]
pub(crate) fn branch_if(c: &mut Ctx, i: &Inst) -> Flow {
    let mask = c.mask();
    let taken = c.pred_signed(i.guard) & mask;
    if taken == 0 {
        return Flow::Next;
    }
    c.pc = i.aux;
    if taken == mask {
        return Flow::Jump;
    }
    c.other = taken;
    Flow::Split
}

/// `brx.idx`: `a` indexes the launch's table that begins at `aux` and has `imm` entries.
pub(crate) fn branch_indexed(c: &mut Ctx, i: &Inst) -> Flow {
    for lane in c.active() {
        let index = u64::from(c.lane::<u32>(i.a, lane)).min(i.imm - 1);
        let target = c.launch().code().tables[i.aux as usize + index as usize];
        c.targets[lane] = target;
    }
    Flow::Scatter
}

/// A guarded instruction that is not a branch: `inner` for the lanes whose guard holds.
#[inline(never)]
pub(crate) fn guarded(c: &mut Ctx, i: &Inst) -> Flow {
    let mask = c.mask();
    let held = c.pred_signed(i.guard) & mask;
    if held == 0 {
        return Flow::Next;
    }
    c.set_mask(held);
    // SAFETY: `inner` was picked for this machine with `exec`, and decoded for the same function.
    let flow = unsafe { (i.inner)(c, i) };
    if !matches!(
        flow,
        Flow::Return | Flow::Exit | Flow::Call | Flow::Barrier | Flow::Gather | Flow::Scatter
    ) {
        c.set_mask(mask);
    }
    // For the flows above the warp's loop sees the narrowed mask, and lets the other lanes go on.
    flow
}

#[inline(never)]
pub(crate) fn leave(_: &mut Ctx, _: &Inst) -> Flow {
    Flow::Return
}

#[inline(never)]
pub(crate) fn exit(_: &mut Ctx, _: &Inst) -> Flow {
    Flow::Exit
}

pub(crate) fn trap(c: &mut Ctx, _: &Inst) -> Flow {
    c.fault = Some(Stop::Trap);
    Flow::Fault
}

/// `nanosleep` of the nanoseconds in `a`: the lanes lose their turn.
pub(crate) fn sleep(c: &mut Ctx, i: &Inst) -> Flow {
    if c.launch().timing.is_some() {
        let longest = c.active().map(|lane| c.lane::<u32>(i.a, lane)).max().unwrap_or(0);
        c.time_ps = c
            .time_ps
            .saturating_add(super::timing::ps_of_ns(u64::from(longest)));
    }
    Flow::Yield
}

/// Reached only if a launch forgot to refuse the kernel.
pub(crate) fn unsupported(c: &mut Ctx, _: &Inst) -> Flow {
    c.fault = Some(Stop::Unsupported);
    Flow::Fault
}

/// `call`: entry `aux` of the code's calls.
pub(crate) fn call(c: &mut Ctx, i: &Inst) -> Flow {
    c.call = i.aux;
    c.callee = c.launch().code().calls[i.aux as usize].callee;
    c.again = 0;
    Flow::Call
}

/// `call` through the 64-bit register `a`: it calls the first lane's function. Lanes with another one come here again.
pub(crate) fn call_indirect(c: &mut Ctx, i: &Inst) -> Flow {
    let mask = c.mask();
    let first = mask.trailing_zeros() as usize & 31;
    let target = c.lane::<u64>(i.a, first);
    let launch = c.launch();
    let offset = target.wrapping_sub(FUNCTION_ADDRESS);
    let functions = &launch.code().functions;
    let known = functions.get((offset / 16) as usize).is_some_and(|f| f.callable)
        && offset.is_multiple_of(16)
        && launch.areas[(offset / 16) as usize] != NO_AREA;
    if !known {
        c.fault = Some(Stop::Illegal {
            address: target,
            access: Access::Read,
        });
        return Flow::Fault;
    }
    c.callee = (offset / 16) as u32;
    c.call = i.aux;
    let same = c
        .active()
        .filter(|n| c.lane::<u64>(i.a, *n) == target)
        .fold(0, |m, n| m | 1 << n);
    c.again = mask & !same;
    c.set_mask(same);
    Flow::Call
}

/// `bar`, `barrier`: the barrier in `a`, the count in `b` (`NONE`: every thread), and `c` a predicate to reduce.
pub(crate) const BARRIER_ARRIVE: u32 = 1;
pub(crate) const BARRIER_AND: u32 = 2;
pub(crate) const BARRIER_OR: u32 = 4;
pub(crate) const BARRIER_COUNT: u32 = 8;

#[inline(never)]
pub(crate) fn barrier(c: &mut Ctx, i: &Inst) -> Flow {
    use super::ctx::{BarrierCall, Reduce};
    let lane = c.mask().trailing_zeros() as usize & 31;
    let id = c.lane::<u32>(i.a, lane) & 15;
    let count = if i.b == NONE { 0 } else { c.lane::<u32>(i.b, lane) };
    let reduce = match i.aux {
        BARRIER_AND => Some(Reduce::And),
        BARRIER_OR => Some(Reduce::Or),
        BARRIER_COUNT => Some(Reduce::Count),
        _ => None,
    };
    c.barrier = BarrierCall {
        id,
        count,
        arrive_only: i.aux == BARRIER_ARRIVE,
        reduce,
    };
    Flow::Barrier
}
