//! Operations across a warp's lanes. Those with `.sync` first wait for the lanes they name (register `f`).

use super::control::NONE;
use super::ctx::{Ctx, FULL, Lane};
use crate::inst::{Exec, Flow, Inst};

/// `aux` of `bar.warp.sync`: the one operation that lanes may meet at from different places in the code.
pub(crate) const SYNC_WARP_BARRIER: u32 = 0x5741_5250;

pub(crate) const VOTE_ALL: u32 = 0;
pub(crate) const VOTE_ANY: u32 = 1;
pub(crate) const VOTE_UNI: u32 = 2;
pub(crate) const VOTE_BALLOT: u32 = 3;

/// `redux` of signed numbers.
pub(crate) const SIGNED: u32 = 16;

/// The lanes that take part, or `None` while some that the mask names are elsewhere.
#[inline]
fn together(c: &mut Ctx, i: &Inst) -> Option<u32> {
    if i.f == NONE {
        return Some(c.mask());
    }
    let first = c.mask().trailing_zeros() as usize & 31;
    let members = c.lane::<u32>(i.f, first);
    if members & c.live & !c.mask() != 0 {
        c.members = members;
        return None;
    }
    Some(members & c.mask())
}

pub(crate) fn warp_barrier(c: &mut Ctx, i: &Inst) -> Flow {
    if together(c, i).is_some() {
        Flow::Next
    } else {
        Flow::Gather
    }
}

pub(crate) fn active_mask(c: &mut Ctx, i: &Inst) -> Flow {
    let mask = c.mask();
    c.put(i.d, &[mask; 32]);
    Flow::Next
}

fn shuffle_by<const MODE: u32>(c: &mut Ctx, i: &Inst) -> Flow {
    if together(c, i).is_none() {
        return Flow::Gather;
    }
    let mask = c.mask();
    let held = c.lanes::<u32>(i.a);
    // The ISA leaves open what a lane reads of one that takes no part. Programs rely on the zero that hardware gives
    // them, never on what such a lane's register held before.
    let a: [u32; 32] = std::array::from_fn(|n| if mask >> n & 1 != 0 { held[n] } else { 0 });
    let b = c.lanes::<u32>(i.b);
    let bounds = c.lanes::<u32>(i.c);
    let mut out = [0u32; 32];
    let mut found = 0u32;
    for lane in 0..32u32 {
        let n = lane as usize;
        let (by, clamp, segment) = (b[n] & 31, bounds[n] & 31, bounds[n] >> 8 & 31);
        let max = lane & segment | clamp & !segment;
        // As signed numbers: `up` may go below zero.
        let from = match MODE {
            0 => lane as i32 - by as i32,
            1 => (lane + by) as i32,
            2 => (lane ^ by) as i32,
            _ => (lane & segment | by & !segment) as i32,
        };
        let inside = if MODE == 0 {
            from >= max as i32
        } else {
            from <= max as i32
        };
        found |= u32::from(inside) << lane;
        out[n] = if inside { a[from as usize & 31] } else { a[n] };
    }
    c.put(i.d, &out);
    c.put_pred(i.e, found);
    Flow::Next
}

/// By mode: 0 up, 1 down, 2 bfly, 3 idx.
pub(crate) fn shuffle(mode: u32) -> Exec {
    match mode {
        0 => shuffle_by::<0>,
        1 => shuffle_by::<1>,
        2 => shuffle_by::<2>,
        _ => shuffle_by::<3>,
    }
}

pub(crate) fn vote(c: &mut Ctx, i: &Inst) -> Flow {
    let Some(members) = together(c, i) else {
        return Flow::Gather;
    };
    let votes = c.pred_signed(i.c) & members;
    let yes = match i.aux {
        VOTE_BALLOT => {
            c.put(i.d, &[votes; 32]);
            return Flow::Next;
        }
        VOTE_ALL => votes == members,
        VOTE_ANY => votes != 0,
        _ => votes == members || votes == 0,
    };
    c.put_pred(i.d, if yes { FULL } else { 0 });
    Flow::Next
}

pub(crate) fn match_any<T: Lane + PartialEq>(c: &mut Ctx, i: &Inst) -> Flow {
    let Some(members) = together(c, i) else {
        return Flow::Gather;
    };
    let a = c.lanes::<T>(i.a);
    let mut out = [0u32; 32];
    for lane in c.active() {
        out[lane] = super::ctx::Bits(members)
            .filter(|n| a[*n] == a[lane])
            .fold(0, |m, n| m | 1 << n);
    }
    c.put(i.d, &out);
    Flow::Next
}

pub(crate) fn match_all<T: Lane + PartialEq>(c: &mut Ctx, i: &Inst) -> Flow {
    let Some(members) = together(c, i) else {
        return Flow::Gather;
    };
    let a = c.lanes::<T>(i.a);
    let first = members.trailing_zeros() as usize & 31;
    let same = super::ctx::Bits(members).all(|n| a[n] == a[first]);
    c.put(i.d, &[if same { members } else { 0 }; 32]);
    c.put_pred(i.c, if same { FULL } else { 0 });
    Flow::Next
}

pub(crate) fn reduce(c: &mut Ctx, i: &Inst) -> Flow {
    let Some(members) = together(c, i) else {
        return Flow::Gather;
    };
    let a = c.lanes::<u32>(i.a);
    let values = super::ctx::Bits(members).map(|n| a[n]);
    let signed = i.aux & SIGNED != 0;
    let result = match i.aux & 15 {
        0 => values.fold(0, u32::wrapping_add),
        1 if signed => values.map(|v| v as i32).min().unwrap_or(0) as u32,
        1 => values.min().unwrap_or(0),
        2 if signed => values.map(|v| v as i32).max().unwrap_or(0) as u32,
        2 => values.max().unwrap_or(0),
        3 => values.fold(FULL, |x, y| x & y),
        4 => values.fold(0, |x, y| x | y),
        _ => values.fold(0, |x, y| x ^ y),
    };
    c.put(i.d, &[result; 32]);
    Flow::Next
}

/// `elect.sync d|p`: the lowest lane leads.
pub(crate) fn elect(c: &mut Ctx, i: &Inst) -> Flow {
    let Some(members) = together(c, i) else {
        return Flow::Gather;
    };
    let leader = members.trailing_zeros() & 31;
    c.put(i.d, &[leader; 32]);
    c.put_pred(i.c, 1 << leader);
    Flow::Next
}
