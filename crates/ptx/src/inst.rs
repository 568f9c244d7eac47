//! A decoded instruction: a function pointer and byte offsets into the warp's registers.

use crate::engine::ctx::Ctx;
use std::sync::atomic::{AtomicBool, Ordering};

/// What an instruction tells the warp's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Go on with the next instruction.
    Next,
    /// All lanes go to `Ctx::pc`.
    Jump,
    /// The lanes of `Ctx::other` go to `Ctx::pc`, the rest go on.
    Split,
    /// The lanes divide over `Ctx::targets`.
    Scatter,
    /// A call: `Ctx::call` says of what.
    Call,
    /// The lanes return from their function, or end in a kernel.
    Return,
    /// The lanes end.
    Exit,
    /// Arrive at a block barrier: `Ctx::barrier`.
    Barrier,
    /// Wait for other lanes of the warp to come to this instruction.
    Gather,
    /// Done, and others should run now: a sleep, or a poll that found nothing.
    Yield,
    /// `Ctx::fault` says why.
    Fault,
    /// From compiled code: at the block barrier `Ctx::other`, which waits for every thread.
    Meet,
}

impl Flow {
    /// The flow that `flow as u32` came from.
    pub fn from_code(code: u32) -> Flow {
        const ALL: [Flow; 12] = [
            Flow::Next,
            Flow::Jump,
            Flow::Split,
            Flow::Scatter,
            Flow::Call,
            Flow::Return,
            Flow::Exit,
            Flow::Barrier,
            Flow::Gather,
            Flow::Yield,
            Flow::Fault,
            Flow::Meet,
        ];
        ALL.get(code as usize).copied().unwrap_or(Flow::Fault)
    }
}

/// Executes one instruction for the active lanes.
///
/// # Safety
/// The machine has the vector features of the set this was picked for; `Ctx` holds the registers of the function that
/// the instruction was decoded for.
pub(crate) type Exec = unsafe fn(&mut Ctx, &Inst) -> Flow;

/// Operand fields are byte offsets from the function's register area; the executing function knows what each means. A
/// guard is an offset of a predicate, its lowest bit set where it is negated.
#[derive(Clone, Copy)]
pub(crate) struct Inst {
    pub exec: Exec,
    /// What a guarded instruction does for the lanes whose guard holds.
    pub inner: Exec,
    pub imm: u64,
    pub d: u32,
    pub a: u32,
    pub b: u32,
    pub c: u32,
    pub e: u32,
    pub f: u32,
    pub guard: u32,
    pub aux: u32,
    pub line: u32,
}

/// Which code the vector loops run: chosen once, when a module is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorSet {
    /// What every machine of this architecture has.
    Portable,
    /// AVX2 and FMA.
    Avx2,
}

/// This process is to do as on a machine without AVX2.
static PLAIN: AtomicBool = AtomicBool::new(false);

/// Has this process do from now on as on a machine without AVX2: nothing is compiled, and modules that are read from here on
/// are interpreted by plain loops.
pub fn without_vectors() {
    PLAIN.store(true, Ordering::Relaxed);
}

impl VectorSet {
    /// The best this machine has.
    pub fn detect() -> VectorSet {
        if PLAIN.load(Ordering::Relaxed) {
            return VectorSet::Portable;
        }
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
        {
            return VectorSet::Avx2;
        }
        VectorSet::Portable
    }
}

/// Makes `fn $pick<O: $bound>(set: VectorSet) -> Exec` from a body `fn $body<O: $bound>(&mut Ctx, &Inst) -> Flow`.
///
/// With `by_set` the body has a second parameter, `const FAST: bool`: whether AVX2 is there.
macro_rules! vectorised {
    ($pick:ident, $body:ident, $bound:path, by_set) => {
        pub(crate) fn $pick<O: $bound>(set: $crate::inst::VectorSet) -> $crate::inst::Exec {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            #[inline(never)]
            fn fast<O: $bound>(
                c: &mut $crate::engine::ctx::Ctx,
                i: &$crate::inst::Inst,
            ) -> $crate::inst::Flow {
                $body::<O, true>(c, i)
            }
            fn plain<O: $bound>(
                c: &mut $crate::engine::ctx::Ctx,
                i: &$crate::inst::Inst,
            ) -> $crate::inst::Flow {
                $body::<O, false>(c, i)
            }
            match set {
                #[cfg(target_arch = "x86_64")]
                $crate::inst::VectorSet::Avx2 => fast::<O>,
                _ => plain::<O>,
            }
        }
    };
    ($pick:ident, $body:ident, $bound:path) => {
        pub(crate) fn $pick<O: $bound>(set: $crate::inst::VectorSet) -> $crate::inst::Exec {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            #[inline(never)]
            fn fast<O: $bound>(
                c: &mut $crate::engine::ctx::Ctx,
                i: &$crate::inst::Inst,
            ) -> $crate::inst::Flow {
                $body::<O>(c, i)
            }
            fn plain<O: $bound>(
                c: &mut $crate::engine::ctx::Ctx,
                i: &$crate::inst::Inst,
            ) -> $crate::inst::Flow {
                $body::<O>(c, i)
            }
            match set {
                #[cfg(target_arch = "x86_64")]
                $crate::inst::VectorSet::Avx2 => fast::<O>,
                _ => plain::<O>,
            }
        }
    };
}
pub(crate) use vectorised;
