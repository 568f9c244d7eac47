//! `atom` and `red`. Lanes act one after the other, lowest first; each action is one host atomic operation, since other
//! blocks, streams and the host share the memory.

use super::control::NONE;
use super::ctx::{Ctx, Lane};
use super::half::{Binary16, Brain16, add_in_memory};
use super::memory::{failed, lane_addresses, polled};
use crate::inst::{Exec, Flow, Inst};
use crate::types::Ty;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::SeqCst};

/// A word that the host can exchange atomically.
trait Word: Copy + PartialEq + 'static {
    type R: Lane;
    fn of(r: Self::R) -> Self;
    fn give(self) -> Self::R;
    /// # Safety
    /// `address` is aligned and valid for reads and writes for the length of the call.
    unsafe fn load(address: u64) -> Self;
    /// # Safety
    /// As `load`.
    unsafe fn swap_if(address: u64, old: Self, new: Self) -> Result<Self, Self>;
}

macro_rules! word {
    ($t:ty, $r:ty, $atomic:ty) => {
        impl Word for $t {
            type R = $r;
            fn of(r: $r) -> $t {
                r as $t
            }
            fn give(self) -> $r {
                self as $r
            }
            unsafe fn load(address: u64) -> $t {
                // SAFETY: the caller's promise.
                unsafe { <$atomic>::from_ptr(address as *mut $t) }.load(SeqCst)
            }
            unsafe fn swap_if(address: u64, old: $t, new: $t) -> Result<$t, $t> {
                // SAFETY: the caller's promise.
                unsafe { <$atomic>::from_ptr(address as *mut $t) }.compare_exchange(old, new, SeqCst, SeqCst)
            }
        }
    };
}
word!(u16, u32, AtomicU16);
word!(u32, u32, AtomicU32);
word!(u64, u64, AtomicU64);

/// The new value that the operation makes of the old one.
trait Update {
    type W: Word;
    fn new(old: Self::W, b: Self::W, c: Self::W) -> Self::W;
}

macro_rules! updates {
    ($($name:ident: $w:ty, |$old:ident, $b:ident, $c:ident| $body:expr;)*) => {
        $(struct $name;
        impl Update for $name {
            type W = $w;
            #[inline(always)]
            fn new($old: $w, $b: $w, $c: $w) -> $w { $body }
        })*
    };
}
updates! {
    Add32: u32, |old, b, _c| old.wrapping_add(b);
    Add64: u64, |old, b, _c| old.wrapping_add(b);
    AddF32: u32, |old, b, _c| (f32::from_bits(old) + f32::from_bits(b)).to_bits();
    AddF64: u64, |old, b, _c| (f64::from_bits(old) + f64::from_bits(b)).to_bits();
    MinU32: u32, |old, b, _c| old.min(b);
    MaxU32: u32, |old, b, _c| old.max(b);
    MinS32: u32, |old, b, _c| (old as i32).min(b as i32) as u32;
    MaxS32: u32, |old, b, _c| (old as i32).max(b as i32) as u32;
    MinU64: u64, |old, b, _c| old.min(b);
    MaxU64: u64, |old, b, _c| old.max(b);
    MinS64: u64, |old, b, _c| (old as i64).min(b as i64) as u64;
    MaxS64: u64, |old, b, _c| (old as i64).max(b as i64) as u64;
    Inc: u32, |old, b, _c| if old >= b { 0 } else { old + 1 };
    Dec: u32, |old, b, _c| if old == 0 || old > b { b } else { old - 1 };
    And32: u32, |old, b, _c| old & b;
    Or32: u32, |old, b, _c| old | b;
    Xor32: u32, |old, b, _c| old ^ b;
    And64: u64, |old, b, _c| old & b;
    Or64: u64, |old, b, _c| old | b;
    Xor64: u64, |old, b, _c| old ^ b;
    Exchange32: u32, |_old, b, _c| b;
    Exchange64: u64, |_old, b, _c| b;
    Cas16: u16, |old, b, c| if old == b { c } else { old };
    Cas32: u32, |old, b, c| if old == b { c } else { old };
    Cas64: u64, |old, b, c| if old == b { c } else { old };
    Exchange16: u16, |_old, b, _c| b;
    AddF16: u16, |old, b, _c| add_in_memory::<Binary16>(old, b);
    AddBf16: u16, |old, b, _c| add_in_memory::<Brain16>(old, b);
    AddF16x2: u32, |old, b, _c| each_half(old, b, add_in_memory::<Binary16>);
    AddBf16x2: u32, |old, b, _c| each_half(old, b, add_in_memory::<Brain16>);
}

/// The ISA leaves open whether a pair is one atomic access or two; here it is one.
fn each_half(old: u32, b: u32, add: fn(u16, u16) -> u16) -> u32 {
    let high = add((old >> 16) as u16, (b >> 16) as u16);
    u32::from(high) << 16 | u32::from(add(old as u16, b as u16))
}

#[inline(never)]
fn run<U: Update>(c: &mut Ctx, i: &Inst) -> Flow {
    let at = match lane_addresses(c, i, size_of::<U::W>() as u64) {
        Ok(at) => at,
        Err(stop) => return failed(c, stop),
    };
    let mut changed = false;
    for lane in c.active() {
        let b = U::W::of(c.lane::<<U::W as Word>::R>(i.b, lane));
        let third = if i.c == NONE {
            b
        } else {
            U::W::of(c.lane::<<U::W as Word>::R>(i.c, lane))
        };
        // SAFETY: `lane_addresses` checked that the address is aligned and inside a range that stays readable and
        // writable for the length of the launch.
        let mut old = unsafe { U::W::load(at[lane]) };
        loop {
            let new = U::new(old, b, third);
            // Writing back what is there orders the operation like any other.
            // SAFETY: as above.
            match unsafe { U::W::swap_if(at[lane], old, new) } {
                Ok(_) => {
                    changed |= new != old;
                    break;
                }
                Err(now) => old = now,
            }
        }
        if i.d != NONE {
            c.put_lane(i.d, lane, old.give());
        }
    }
    if changed {
        c.polls = 0;
        return Flow::Next;
    }
    // The operation changed nothing: a lock that is taken, a flag that is not set.
    if polled(c) { Flow::Yield } else { Flow::Next }
}

/// `atom.add` and `red.add` of 32 bits.
pub(crate) fn add_words() -> Exec {
    run::<Add32>
}

/// The operation for a type, if there is one.
pub(crate) fn pick(op: &str, ty: Ty) -> Option<Exec> {
    use Ty::*;
    Some(match (op, ty) {
        ("add", U32 | S32) => run::<Add32>,
        ("add", U64 | S64) => run::<Add64>,
        ("add", F32) => run::<AddF32>,
        ("add", F64) => run::<AddF64>,
        ("add", F16) => run::<AddF16>,
        ("add", Bf16) => run::<AddBf16>,
        ("add", F16x2) => run::<AddF16x2>,
        ("add", Bf16x2) => run::<AddBf16x2>,
        ("min", U32) => run::<MinU32>,
        ("max", U32) => run::<MaxU32>,
        ("min", S32) => run::<MinS32>,
        ("max", S32) => run::<MaxS32>,
        ("min", U64) => run::<MinU64>,
        ("max", U64) => run::<MaxU64>,
        ("min", S64) => run::<MinS64>,
        ("max", S64) => run::<MaxS64>,
        ("inc", U32) => run::<Inc>,
        ("dec", U32) => run::<Dec>,
        ("and", B32 | U32 | S32) => run::<And32>,
        ("or", B32 | U32 | S32) => run::<Or32>,
        ("xor", B32 | U32 | S32) => run::<Xor32>,
        ("and", B64 | U64 | S64) => run::<And64>,
        ("or", B64 | U64 | S64) => run::<Or64>,
        ("xor", B64 | U64 | S64) => run::<Xor64>,
        ("exch", B32 | U32 | S32 | F32) => run::<Exchange32>,
        ("exch", B64 | U64 | S64 | F64) => run::<Exchange64>,
        ("exch", B16 | U16) => run::<Exchange16>,
        ("cas", B16 | U16) => run::<Cas16>,
        ("cas", B32 | U32 | S32) => run::<Cas32>,
        ("cas", B64 | U64 | S64) => run::<Cas64>,
        _ => return None,
    })
}
