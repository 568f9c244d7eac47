//! Lane-wise operations: the loops. The traits' implementors say what is computed.

use super::ctx::{CHUNK, CHUNKS, Ctx, Lane};
use crate::inst::{Flow, Inst, vectorised};

/// One source.
pub(crate) trait Op1 {
    type A: Lane;
    type D: Lane;
    fn op(a: Self::A) -> Self::D;
}

/// Two sources.
pub(crate) trait Op2 {
    type A: Lane;
    type B: Lane;
    type D: Lane;
    fn op(a: Self::A, b: Self::B) -> Self::D;
}

/// Three sources.
pub(crate) trait Op3 {
    type A: Lane;
    type B: Lane;
    type C: Lane;
    type D: Lane;
    fn op(a: Self::A, b: Self::B, c: Self::C) -> Self::D;
}

/// A comparison: a bit per lane.
pub(crate) trait Cmp {
    type A: Lane;
    fn op(a: Self::A, b: Self::A) -> bool;
}

#[inline(always)]
fn store<T: Lane>(c: &mut Ctx, slot: u32, full: bool, k: usize, value: [T; CHUNK]) {
    if full {
        c.put_all(slot, k, value);
    } else {
        c.put_active(slot, k, value);
    }
}

#[inline(always)]
fn body1<O: Op1>(c: &mut Ctx, i: &Inst, full: bool) {
    for k in 0..CHUNKS {
        let a = c.chunk::<O::A>(i.a, k);
        let mut d = [O::D::default(); CHUNK];
        for n in 0..CHUNK {
            d[n] = O::op(a[n]);
        }
        store(c, i.d, full, k, d);
    }
}

#[inline(always)]
fn body2<O: Op2>(c: &mut Ctx, i: &Inst, full: bool) {
    for k in 0..CHUNKS {
        let (a, b) = (c.chunk::<O::A>(i.a, k), c.chunk::<O::B>(i.b, k));
        let mut d = [O::D::default(); CHUNK];
        for n in 0..CHUNK {
            d[n] = O::op(a[n], b[n]);
        }
        store(c, i.d, full, k, d);
    }
}

#[inline(always)]
fn body3<O: Op3>(c: &mut Ctx, i: &Inst, full: bool) {
    for k in 0..CHUNKS {
        let (x, y, z) = (
            c.chunk::<O::A>(i.a, k),
            c.chunk::<O::B>(i.b, k),
            c.chunk::<O::C>(i.c, k),
        );
        let mut d = [O::D::default(); CHUNK];
        for n in 0..CHUNK {
            d[n] = O::op(x[n], y[n], z[n]);
        }
        store(c, i.d, full, k, d);
    }
}

/// The lowest bit of eight lanes' masks, which are all ones or zero.
#[inline(always)]
fn gather_bits<const FAST: bool>(masks: [u32; CHUNK]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if FAST {
        // SAFETY: `FAST` is only ever true in code for machines with AVX2; both types are 32 plain bytes.
        return unsafe {
            std::arch::x86_64::_mm256_movemask_ps(std::mem::transmute::<
                [u32; CHUNK],
                std::arch::x86_64::__m256,
            >(masks))
        } as u32;
    }
    masks
        .iter()
        .enumerate()
        .fold(0, |bits, (n, m)| bits | (m & 1) << n)
}

/// The comparison's bits for all lanes, active or not.
#[inline(always)]
fn compare<O: Cmp, const FAST: bool>(c: &Ctx, i: &Inst) -> u32 {
    let mut bits = 0u32;
    for k in 0..CHUNKS {
        let (a, b) = (c.chunk::<O::A>(i.a, k), c.chunk::<O::A>(i.b, k));
        let mut masks = [0u32; CHUNK];
        for n in 0..CHUNK {
            masks[n] = if O::op(a[n], b[n]) { u32::MAX } else { 0 };
        }
        bits |= gather_bits::<FAST>(masks) << (k * CHUNK);
    }
    bits
}

#[inline(always)]
fn run1<O: Op1>(c: &mut Ctx, i: &Inst) -> Flow {
    if c.full() {
        body1::<O>(c, i, true);
    } else {
        body1::<O>(c, i, false);
    }
    Flow::Next
}

#[inline(always)]
fn run2<O: Op2>(c: &mut Ctx, i: &Inst) -> Flow {
    if c.full() {
        body2::<O>(c, i, true);
    } else {
        body2::<O>(c, i, false);
    }
    Flow::Next
}

#[inline(always)]
fn run3<O: Op3>(c: &mut Ctx, i: &Inst) -> Flow {
    if c.full() {
        body3::<O>(c, i, true);
    } else {
        body3::<O>(c, i, false);
    }
    Flow::Next
}

/// `setp`: the predicate in `d`.
#[inline(always)]
fn run_setp<O: Cmp, const FAST: bool>(c: &mut Ctx, i: &Inst) -> Flow {
    let bits = compare::<O, FAST>(c, i);
    c.put_pred(i.d, bits);
    Flow::Next
}

/// How `setp` and `set` combine the comparison with a predicate: the low bits of `aux`.
pub(crate) const COMBINE_NONE: u32 = 0;
pub(crate) const COMBINE_AND: u32 = 1;
pub(crate) const COMBINE_OR: u32 = 2;
pub(crate) const COMBINE_XOR: u32 = 3;

fn combine(how: u32, bits: u32, p: u32) -> u32 {
    match how & 3 {
        COMBINE_AND => bits & p,
        COMBINE_OR => bits | p,
        COMBINE_XOR => bits ^ p,
        _ => bits,
    }
}

/// `setp` with `|q` or a combining predicate `c`: `d` and, where it is not the trash slot, `e`.
#[inline(always)]
fn run_setp_full<O: Cmp, const FAST: bool>(c: &mut Ctx, i: &Inst) -> Flow {
    let bits = compare::<O, FAST>(c, i);
    let p = if i.aux & 3 == COMBINE_NONE {
        0
    } else {
        c.pred_signed(i.c)
    };
    c.put_pred(i.d, combine(i.aux, bits, p));
    c.put_pred(i.e, combine(i.aux, !bits, p));
    Flow::Next
}

/// `set`: `imm` is what true lanes get, in a 32-bit register.
#[inline(always)]
fn run_set<O: Cmp, const FAST: bool>(c: &mut Ctx, i: &Inst) -> Flow {
    let bits = compare::<O, FAST>(c, i);
    let p = if i.aux & 3 == COMBINE_NONE {
        0
    } else {
        c.pred_signed(i.c)
    };
    let bits = combine(i.aux, bits, p);
    for lane in c.active() {
        c.put_lane(i.d, lane, if bits >> lane & 1 != 0 { i.imm as u32 } else { 0u32 });
    }
    Flow::Next
}

/// `selp`: by the predicate `c`.
#[inline(always)]
fn run_selp<T: Lane>(c: &mut Ctx, i: &Inst) -> Flow {
    let bits = c.pred_signed(i.c);
    let full = c.full();
    for k in 0..CHUNKS {
        let (a, b) = (c.chunk::<T>(i.a, k), c.chunk::<T>(i.b, k));
        let mut d = [T::default(); CHUNK];
        for n in 0..CHUNK {
            let mask = if bits & (1 << (k * CHUNK + n)) != 0 {
                u32::MAX
            } else {
                0
            };
            d[n] = T::blend(mask, a[n], b[n]);
        }
        store(c, i.d, full, k, d);
    }
    Flow::Next
}

/// `mov` of a register.
#[inline(always)]
fn run_move<T: Lane>(c: &mut Ctx, i: &Inst) -> Flow {
    let full = c.full();
    for k in 0..CHUNKS {
        let a = c.chunk::<T>(i.a, k);
        store(c, i.d, full, k, a);
    }
    Flow::Next
}

vectorised!(one, run1, Op1);
vectorised!(two, run2, Op2);
vectorised!(three, run3, Op3);
vectorised!(setp, run_setp, Cmp, by_set);
vectorised!(setp_full, run_setp_full, Cmp, by_set);
vectorised!(set, run_set, Cmp, by_set);
vectorised!(select, run_selp, Lane);
vectorised!(moved, run_move, Lane);

/// Declares lane-wise operations: `name(a: u32, b: u32) -> u32 { … }`.
macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident $(<$(const $p:ident: $pt:ty),+>)? ($($x:ident: $t:ty),+) -> $d:ty $body:block)*) => {
        $($crate::engine::map::op! { $(#[$doc])* $name [$(const $($p: $pt),+)?] [$($($p),+)?] ($($x: $t),+) -> $d $body })*
    };
}
macro_rules! op {
    ($(#[$doc:meta])* $name:ident [$($g:tt)*] [$($u:tt)*] ($a:ident: $ta:ty) -> $d:ty $body:block) => {
        $(#[$doc])* pub(crate) struct $name<$($g)*>;
        impl<$($g)*> $crate::engine::map::Op1 for $name<$($u)*> {
            type A = $ta; type D = $d;
            #[inline(always)] fn op($a: $ta) -> $d $body
        }
    };
    ($(#[$doc:meta])* $name:ident [$($g:tt)*] [$($u:tt)*] ($a:ident: $ta:ty, $b:ident: $tb:ty) -> $d:ty $body:block) => {
        $(#[$doc])* pub(crate) struct $name<$($g)*>;
        impl<$($g)*> $crate::engine::map::Op2 for $name<$($u)*> {
            type A = $ta; type B = $tb; type D = $d;
            #[inline(always)] fn op($a: $ta, $b: $tb) -> $d $body
        }
    };
    ($(#[$doc:meta])* $name:ident [$($g:tt)*] [$($u:tt)*] ($a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty) -> $d:ty $body:block) => {
        $(#[$doc])* pub(crate) struct $name<$($g)*>;
        impl<$($g)*> $crate::engine::map::Op3 for $name<$($u)*> {
            type A = $ta; type B = $tb; type C = $tc; type D = $d;
            #[inline(always)] fn op($a: $ta, $b: $tb, $c: $tc) -> $d $body
        }
    };
}
macro_rules! cmps {
    ($($name:ident $([const $p:ident: $pt:ty])? ($a:ident, $b:ident: $t:ty) $body:expr;)*) => {
        $(pub(crate) struct $name$(<const $p: $pt>)?;
        impl$(<const $p: $pt>)? $crate::engine::map::Cmp for $name$(<$p>)? {
            type A = $t;
            #[inline(always)] fn op($a: $t, $b: $t) -> bool { $body }
        })*
    };
}
pub(crate) use {cmps, op, ops};
