//! What an executing instruction sees: the registers of its warp's current function, the active lanes, the memories.
//!
//! The registers of a function are one *area* of bytes: constants, then registers, then predicates, then
//! parameters of calls. A 32-bit register is 32 consecutive u32, a 64-bit one 32 consecutive u64, a predicate one
//! u32 with a bit per lane.

use super::image::{Image, Texture};
use super::launch::LaunchState;
use crate::error::Access;
use std::ops::Range;

/// A type that fills a register's lane.
pub(crate) trait Lane: Copy + Default + 'static {
    /// `new` where the mask is all ones, `old` where it is zero. Bitwise on purpose: a select before a store becomes
    /// a masked store, which some processors take dozens of cycles for.
    fn blend(mask: u32, new: Self, old: Self) -> Self;
}
macro_rules! lane {
    ($($t:ty, $bits:ty, |$m:ident| $mask:expr, |$x:ident| $to:expr, |$y:ident| $from:expr;)*) => {
        $(impl Lane for $t {
            #[inline(always)]
            fn blend($m: u32, new: $t, old: $t) -> $t {
                let mask: $bits = $mask;
                let to = |$x: $t| -> $bits { $to };
                let $y: $bits = to(new) & mask | to(old) & !mask;
                $from
            }
        })*
    };
}
lane! {
    u32, u32, |m| m, |x| x, |y| y;
    i32, u32, |m| m, |x| x as u32, |y| y as i32;
    f32, u32, |m| m, |x| x.to_bits(), |y| f32::from_bits(y);
    u64, u64, |m| m as i32 as u64, |x| x, |y| y;
    i64, u64, |m| m as i32 as u64, |x| x as u64, |y| y as i64;
    f64, u64, |m| m as i32 as u64, |x| x.to_bits(), |y| f64::from_bits(y);
}

/// Lanes handled together: one AVX2 register of 32-bit lanes.
pub(crate) const CHUNK: usize = 8;
pub(crate) const CHUNKS: usize = 4;
/// Places to remember a range of memory in. Memory instructions are numbered round, so that few of a kernel's share one.
pub(crate) const SITES: usize = 64;
/// Every lane.
pub(crate) const FULL: u32 = u32::MAX;

/// Why lanes stopped; the launch adds the kernel's name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stop {
    Illegal { address: u64, access: Access },
    Misaligned { address: u64, access: Access },
    Trap,
    Assert,
    Deadlock,
    Unsupported,
}

/// The request of a lane-converging operation at a block barrier.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BarrierCall {
    pub id: u32,
    /// Threads to wait for; 0 is every thread of the block.
    pub count: u32,
    /// Arrive and go on.
    pub arrive_only: bool,
    /// Reduce this predicate, and where the result goes.
    pub reduce: Option<Reduce>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduce {
    And,
    Or,
    Count,
}

/// Warps behind the running one that compiled code goes on to by itself: see `Block::march`.
#[repr(C)]
pub(crate) struct Following {
    /// How many there are. Code that comes back says how many are left.
    pub left: u64,
    /// It goes on only from a warp that ends, or comes to a barrier, at this instruction.
    pub end: u32,
    /// Bytes from a warp's registers to the next one's, and from its local memory.
    pub registers: u64,
    pub local: u64,
    /// Where the code of each begins.
    pub entry: *const u8,
    /// Instructions of the warps that it went on from.
    pub count: i64,
}

impl Following {
    /// None.
    pub const NONE: Following = Following {
        left: 0,
        end: u32::MAX,
        registers: 0,
        local: 0,
        entry: std::ptr::null(),
        count: 0,
    };
}

#[repr(C, align(64))]
pub(crate) struct Ctx {
    /// All ones in the active lanes.
    lanes: [u32; 32],
    /// The block's registers, all warps.
    pub file: *mut u8,
    /// Register area of the current function in the current warp.
    pub regs: *mut u8,
    /// Active lanes.
    pub mask: u32,
    /// Lanes of the warp that have not ended.
    pub live: u32,
    pub pc: u32,
    /// For compiled code: the instruction that it left at, the count of instructions, at which count and from which
    /// instruction on it leaves, and a panic of an instruction it called.
    pub at: u32,
    pub count: i64,
    pub limit: i64,
    pub horizon: u32,
    pub following: Following,
    pub panic: Option<Box<dyn std::any::Any + Send>>,
    pub other: u32,
    pub targets: [u32; 32],
    pub barrier: BarrierCall,
    pub call: u32,
    /// The function that `call` calls.
    pub callee: u32,
    /// Lanes that call something else, at the same instruction.
    pub again: u32,
    /// Lanes a `.sync` operation waits for, for the deadlock rule.
    pub members: u32,
    pub fault: Option<Stop>,
    /// Polls since the last step forward: see `Flow::Yield`.
    pub polls: u32,
    pub shared: *mut u8,
    pub shared_bytes: u64,
    /// Local memory of lane 0 of the warp; lane n's is `n * local_stride` further.
    pub local: *mut u8,
    pub local_stride: u64,
    /// Where the current function's local variables begin in each lane's local memory.
    pub local_base: u64,
    pub launch: *const LaunchState<'static>,
    /// Ranges that recent accesses fell into: by instruction, for global and for generic addresses.
    pub ranges: [[Range<u64>; SITES]; 2],
    /// Some of them are windows of a block or a warp: they hold until the next one runs.
    pub knows_windows: bool,
    /// Ranges of device memory that accesses of this launch fell into.
    pub known: Vec<Range<u64>>,
    /// Textures and surfaces that were used last, by their objects.
    pub textures: Vec<(u64, Texture)>,
    pub surfaces: Vec<(u64, Image)>,
    /// The running block's place in the grid.
    pub ctaid: [u32; 3],
    /// The running warp's place in its block.
    pub warp: u32,
    pub sm: u32,
    pub issued: u64,
    /// The running warp's time, in picoseconds since the launch began, where time is modelled.
    pub time_ps: u64,
}

impl Ctx {
    pub fn new(launch: *const LaunchState<'static>) -> Ctx {
        Ctx {
            lanes: [0; 32],
            file: std::ptr::null_mut(),
            regs: std::ptr::null_mut(),
            mask: 0,
            live: 0,
            pc: 0,
            at: 0,
            count: 0,
            limit: 0,
            horizon: 0,
            following: Following::NONE,
            panic: None,
            other: 0,
            targets: [0; 32],
            barrier: BarrierCall::default(),
            call: 0,
            callee: 0,
            again: 0,
            members: 0,
            fault: None,
            polls: 0,
            shared: std::ptr::null_mut(),
            shared_bytes: 0,
            local: std::ptr::null_mut(),
            local_stride: 0,
            local_base: 0,
            launch,
            ranges: std::array::from_fn(|_| std::array::from_fn(|_| 0..0)),
            knows_windows: false,
            known: Vec::new(),
            textures: Vec::new(),
            surfaces: Vec::new(),
            ctaid: [0; 3],
            warp: 0,
            sm: 0,
            issued: 0,
            time_ps: 0,
        }
    }

    /// Forgets the ranges that are another block's or another warp's.
    pub fn forget_windows(&mut self) {
        if self.knows_windows {
            self.ranges[1] = std::array::from_fn(|_| 0..0);
            self.knows_windows = false;
        }
    }

    pub fn launch(&self) -> &LaunchState<'static> {
        // SAFETY: the engine makes a Ctx for one launch and drops it before `run` returns, which owns the state.
        unsafe { &*self.launch }
    }

    #[inline(always)]
    pub fn mask(&self) -> u32 {
        self.mask
    }

    #[inline(always)]
    pub fn full(&self) -> bool {
        self.mask == FULL
    }

    #[inline]
    pub fn set_mask(&mut self, mask: u32) {
        if self.mask != mask {
            self.mask = mask;
            for i in 0..32 {
                self.lanes[i] = 0u32.wrapping_sub(mask >> i & 1);
            }
        }
    }

    /// Lanes `8 * k ..` of the register at `slot`.
    #[inline(always)]
    pub fn chunk<T: Lane>(&self, slot: u32, k: usize) -> [T; CHUNK] {
        // SAFETY: the decoder gives only slots inside the function's area, which `regs` points to and which is
        // aligned to 64 bytes; k < CHUNKS. Every bit pattern is a T. Registers are touched by this thread alone.
        unsafe { self.regs.add(slot as usize).cast::<[T; CHUNK]>().add(k).read() }
    }

    /// Writes lanes `8 * k ..`, whether active or not.
    #[inline(always)]
    pub fn put_all<T: Lane>(&mut self, slot: u32, k: usize, value: [T; CHUNK]) {
        // SAFETY: as in `chunk`.
        unsafe {
            self.regs
                .add(slot as usize)
                .cast::<[T; CHUNK]>()
                .add(k)
                .write(value);
        }
    }

    /// Writes the active lanes of `8 * k ..`.
    #[inline(always)]
    pub fn put_active<T: Lane>(&mut self, slot: u32, k: usize, value: [T; CHUNK]) {
        let mut out = self.chunk::<T>(slot, k);
        for n in 0..CHUNK {
            out[n] = T::blend(self.lanes[k * CHUNK + n], value[n], out[n]);
        }
        self.put_all(slot, k, out);
    }

    /// The register at `slot`, whole.
    #[inline(always)]
    pub fn lanes<T: Lane>(&self, slot: u32) -> [T; 32] {
        // SAFETY: as in `chunk`.
        unsafe { self.regs.add(slot as usize).cast::<[T; 32]>().read() }
    }

    /// The register at `slot`, where it lies.
    #[inline(always)]
    pub fn lanes_ref<T: Lane>(&self, slot: u32) -> &[T; 32] {
        // SAFETY: as in `chunk`; a slot is aligned to 128 bytes or more, and nothing writes registers while `self` is
        // borrowed.
        unsafe { &*self.regs.add(slot as usize).cast::<[T; 32]>() }
    }

    /// One lane of the register at `slot`.
    #[inline(always)]
    pub fn lane<T: Lane>(&self, slot: u32, lane: usize) -> T {
        debug_assert!(lane < 32);
        // SAFETY: as in `chunk`; lane < 32.
        unsafe { self.regs.add(slot as usize).cast::<T>().add(lane & 31).read() }
    }

    #[inline(always)]
    pub fn put_lane<T: Lane>(&mut self, slot: u32, lane: usize, value: T) {
        debug_assert!(lane < 32);
        // SAFETY: as in `chunk`; lane < 32.
        unsafe {
            self.regs
                .add(slot as usize)
                .cast::<T>()
                .add(lane & 31)
                .write(value);
        }
    }

    /// Writes the active lanes of a register.
    #[inline(always)]
    pub fn put<T: Lane>(&mut self, slot: u32, value: &[T; 32]) {
        for k in 0..CHUNKS {
            let mut part = [T::default(); CHUNK];
            part.copy_from_slice(&value[k * CHUNK..(k + 1) * CHUNK]);
            if self.full() {
                self.put_all(slot, k, part);
            } else {
                self.put_active(slot, k, part);
            }
        }
    }

    /// A predicate, one bit per lane.
    #[inline(always)]
    pub fn pred(&self, slot: u32) -> u32 {
        // SAFETY: as in `chunk`: a predicate is one aligned u32 in the area.
        unsafe { self.regs.add(slot as usize).cast::<u32>().read() }
    }

    /// A predicate operand whose lowest offset bit says that it is negated.
    #[inline(always)]
    pub fn pred_signed(&self, slot: u32) -> u32 {
        self.pred(slot & !1) ^ 0u32.wrapping_sub(slot & 1)
    }

    /// Writes the active lanes of a predicate.
    #[inline(always)]
    pub fn put_pred(&mut self, slot: u32, value: u32) {
        let value = self.pred(slot) & !self.mask | value & self.mask;
        // SAFETY: as in `pred`.
        unsafe { self.regs.add(slot as usize).cast::<u32>().write(value) }
    }

    /// Active lanes, lowest first.
    #[inline(always)]
    pub fn active(&self) -> Bits {
        Bits(self.mask)
    }
}

/// The set bits of a word, lowest first.
#[derive(Clone, Copy)]
pub(crate) struct Bits(pub u32);

impl Iterator for Bits {
    type Item = usize;
    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let n = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(n)
    }
}
