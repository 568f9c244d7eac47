//! One block: its warps, shared and local memory, and barriers.

use super::ctx::{Bits, Ctx, FULL, Reduce, Stop};
use super::launch::LaunchState;
#[cfg(target_arch = "x86_64")]
use super::march::Marched;
use super::warp::{Issued, Pause, State, Warp};
use crate::code::{Const, FUNCTION_ADDRESS, RESERVED_SHARED, Special};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

/// Zeroed memory aligned to a cache line or more, freed on drop.
struct Memory {
    start: *mut u8,
    layout: Layout,
}

impl Memory {
    /// Zeroed bytes at a multiple of `align`, which is a power of two.
    fn new(bytes: usize, align: u64) -> Memory {
        // Both are bounded, by `LaunchState` and by the parser: far below `isize::MAX`, so the layout is valid.
        let layout =
            Layout::from_size_align(bytes.max(64), (align as usize).max(64)).unwrap_or(Layout::new::<u64>());
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Memory { start, layout }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and no code keeps the pointer: a block's Ctx dies before it.
        unsafe { dealloc(self.start, self.layout) };
    }
}

/// Writes a value to all lanes of a register, in so many warps so many bytes apart.
///
/// # Safety
/// Each of them may be written, and is aligned as a value is.
unsafe fn spread(first: *mut u8, warps: [usize; 2], wide: bool, value: u64) {
    #[inline(always)]
    unsafe fn write(first: *mut u8, [count, apart]: [usize; 2], wide: bool, value: u64) {
        for n in 0..count {
            // SAFETY: the caller's promise.
            unsafe {
                let at = first.add(n * apart);
                if wide {
                    at.cast::<[u64; 32]>().write([value; 32]);
                } else {
                    at.cast::<[u32; 32]>().write([value as u32; 32]);
                }
            }
        }
    }
    #[cfg(target_arch = "x86_64")]
    {
        /// The same with wider stores.
        #[target_feature(enable = "avx2")]
        unsafe fn fast(first: *mut u8, warps: [usize; 2], wide: bool, value: u64) {
            // SAFETY: the caller's promise.
            unsafe { write(first, warps, wide, value) }
        }
        /// The same with stores of 64 bytes.
        #[target_feature(enable = "avx512f")]
        unsafe fn fastest(first: *mut u8, [count, apart]: [usize; 2], wide: bool, value: u64) {
            use std::arch::x86_64::{_mm512_set1_epi32, _mm512_set1_epi64, _mm512_storeu_si512};
            let (line, lines) = if wide {
                (_mm512_set1_epi64(value as i64), 4)
            } else {
                (_mm512_set1_epi32(value as i32), 2)
            };
            for n in 0..count {
                for part in 0..lines {
                    // SAFETY: the caller's promise: a register has so many bytes.
                    unsafe { _mm512_storeu_si512(first.add(n * apart + 64 * part).cast(), line) };
                }
            }
        }
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has it; the rest is the caller's promise.
            return unsafe { fastest(first, warps, wide, value) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has it; the rest is the caller's promise.
            return unsafe { fast(first, warps, wide, value) };
        }
    }
    // SAFETY: the caller's promise.
    unsafe { write(first, warps, wide, value) }
}

#[derive(Clone, Copy, Default)]
struct Barrier {
    /// Threads counted so far.
    arrived: u32,
    /// Threads to wait for; 0 is every live one.
    expected: u32,
    all: bool,
    any: bool,
    count: u32,
    used: bool,
    /// An instruction that came here wants a result.
    reduces: bool,
}

/// Barriers 0 to 15 are the program's; this one is where a block's threads meet for the grid's barrier.
pub(super) const GRID_BARRIER: u32 = 16;

/// A place that blocks of a launch run in, one after the other.
pub(crate) struct Block {
    pub(super) warps: Vec<Warp>,
    registers: Memory,
    shared: Memory,
    local: Memory,
    barriers: [Barrier; 17],
    /// Barriers at which a thread has arrived.
    in_use: u32,
    /// Every live thread waits at the grid's barrier.
    at_grid: bool,
    pub(super) live_threads: u32,
    /// The warp that has the next turn.
    pub(super) next: usize,
    /// All warps stand at this instruction with all their lanes, and nothing but that is known of them.
    pub(super) standing: Option<u32>,
    pub index: u64,
    pub ctaid: [u32; 3],
}

// SAFETY: the raw pointers are to memory that the block owns; a block is run by one worker at a time.
unsafe impl Send for Block {}

/// How running a block for a while ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ran {
    Done,
    Slice,
    /// Every live thread waits at the grid's barrier: go on after `Block::leave_grid_barrier`.
    AtGrid,
    /// Every warp that could run is polling.
    Idle,
    /// `Ctx::fault` has the reason; the line is given.
    Fault {
        line: u32,
    },
}

impl Block {
    pub fn new(launch: &LaunchState<'static>) -> Block {
        let warps = launch.threads.div_ceil(32);
        let mut block = Block {
            warps: (0..warps)
                .map(|n| Warp::new(n, n as usize * launch.warp_bytes))
                .collect(),
            registers: Memory::new(warps as usize * launch.warp_bytes, 64),
            shared: Memory::new(launch.shared_bytes as usize, launch.shared_align),
            local: Memory::new(
                warps as usize * 32 * launch.local_stride as usize,
                launch.local_align,
            ),
            barriers: [Barrier::default(); 17],
            in_use: 0,
            at_grid: false,
            live_threads: 0,
            next: 0,
            standing: None,
            index: 0,
            ctaid: [0; 3],
        };
        block.fill(launch, false);
        block
    }

    /// Makes the place ready for block `index` of the grid.
    pub fn start(&mut self, launch: &LaunchState<'static>, index: u64) {
        self.index = index;
        let [x, y, _] = launch.grid.map(u64::from);
        self.ctaid = [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32];
        for warp in &mut self.warps {
            let threads = launch.threads - warp.index * 32;
            let mask = if threads >= 32 { FULL } else { (1 << threads) - 1 };
            warp.start(mask);
        }
        if self.in_use != 0 {
            self.barriers = [Barrier::default(); 17];
            self.in_use = 0;
        }
        self.at_grid = false;
        self.live_threads = launch.threads;
        self.next = 0;
        let entry = launch.code().functions[launch.function as usize].entry;
        self.standing = launch.marches().then_some(entry);
        self.fill(launch, true);
    }

    /// Writes the constants of every warp's areas: those that differ between blocks, or the others.
    fn fill(&mut self, launch: &LaunchState<'static>, per_block: bool) {
        for (area, slots) in if per_block {
            &launch.block_consts
        } else {
            &launch.launch_consts
        } {
            for slot in slots {
                let at = *area as usize + slot.slot as usize;
                if slot.value.uniform() {
                    let value = self.value(launch, slot.value, 0, 0);
                    // SAFETY: the slot lies in the function's area, which lies in each warp's registers.
                    unsafe {
                        let first = self.registers.start.add(at);
                        spread(first, [self.warps.len(), launch.warp_bytes], slot.wide, value);
                    }
                    continue;
                }
                for warp in &self.warps {
                    let lane = |n: usize| self.value(launch, slot.value, warp.index, n as u32);
                    // SAFETY: as above.
                    unsafe {
                        let base = self.registers.start.add(warp.base + at);
                        if slot.wide {
                            base.cast::<[u64; 32]>().write(std::array::from_fn(lane));
                        } else {
                            base.cast::<[u32; 32]>()
                                .write(std::array::from_fn(|n| lane(n) as u32));
                        }
                    }
                }
            }
        }
    }

    fn value(&self, launch: &LaunchState<'static>, value: Const, warp: u32, lane: u32) -> u64 {
        match value {
            Const::Bits(bits) => bits,
            Const::Global(n, addend) => launch
                .addresses
                .get(n as usize)
                .copied()
                .unwrap_or(0)
                .wrapping_add(addend as u64),
            Const::Shared(n, addend) => launch.shared_offsets[n as usize].wrapping_add(addend as u64),
            Const::Function(n) => FUNCTION_ADDRESS + u64::from(n) * 16,
            Const::ParamAddress(addend) => (launch.params.as_ptr() as u64).wrapping_add(addend as u64),
            Const::Param {
                offset,
                bytes,
                signed,
            } => {
                let mut word = [0u8; 8];
                let (offset, bytes) = (offset as usize, bytes as usize);
                if let Some(given) = launch.params.get(offset..offset + bytes) {
                    word[..bytes].copy_from_slice(given);
                }
                let word = u64::from_le_bytes(word);
                let spare = 64 - 8 * bytes as u32;
                if signed {
                    ((word << spare) as i64 >> spare) as u64
                } else {
                    word
                }
            }
            Const::Special(special) => {
                let thread = warp * 32 + lane;
                let [x, y, _] = launch.block;
                u64::from(match special {
                    Special::Tid(0) => thread % x,
                    Special::Tid(1) => thread / x % y,
                    Special::Tid(2) => thread / x / y,
                    Special::Ntid(n @ 0..3) => launch.block[n as usize],
                    Special::Ctaid(n @ 0..3) => self.ctaid[n as usize],
                    Special::Nctaid(n @ 0..3) => launch.grid[n as usize],
                    Special::LaneId => lane,
                    Special::WarpId => warp,
                    Special::WarpCount => launch.threads.div_ceil(32),
                    Special::Sm => (self.index % u64::from(launch.sm_count)) as u32,
                    Special::SmCount => launch.sm_count,
                    Special::Grid => return launch.id,
                    Special::MaskEq => 1 << lane,
                    Special::MaskLe => u32::MAX >> (31 - lane),
                    Special::MaskLt => (1 << lane) - 1,
                    Special::MaskGe => u32::MAX << lane,
                    Special::MaskGt => !(u32::MAX >> (31 - lane)),
                    Special::DynamicShared => launch.dynamic_shared,
                    Special::TotalShared => launch.user_shared as u32,
                    Special::Workspace { high } => {
                        let address = if launch.cooperative {
                            launch.workspace.as_ptr() as u64
                        } else {
                            0
                        };
                        (if high { address >> 32 } else { address }) as u32
                    }
                    Special::ReservedShared(at) => launch.user_shared as u32 + u32::from(at),
                    Special::ReservedCapacity => RESERVED_SHARED as u32,
                    Special::Tid(_) | Special::Ctaid(_) | Special::Zero => 0,
                    Special::Ntid(_) | Special::Nctaid(_) | Special::One => 1,
                })
            }
        }
    }

    /// Runs the warps in turn for about `slice` warp instructions, each for at most `turn` at a time.
    pub fn run(
        &mut self,
        c: &mut Ctx,
        launch: &LaunchState<'static>,
        slice: u64,
        turn: u64,
        sum: &mut Issued,
    ) -> Ran {
        c.file = self.registers.start;
        c.shared = self.shared.start;
        c.shared_bytes = launch.shared_bytes;
        c.local_stride = launch.local_stride;
        // Shared and local memory are the block's own: ranges remembered of another block's must go.
        c.forget_windows();
        c.ctaid = self.ctaid;
        let stop_at = sum.warp + slice;
        let mut asleep = 0;
        let mut blocked = 0;
        let mut begun = None;
        #[cfg(target_arch = "x86_64")]
        if let Some(from) = self.standing.take() {
            match self.march(c, launch, from, [turn, stop_at], sum) {
                Marched::Done => return Ran::Done,
                Marched::Slice => return Ran::Slice,
                Marched::Apart(flow) => begun = Some(flow),
                Marched::Over => {}
            }
        }
        loop {
            if self.live_threads == 0 {
                return Ran::Done;
            }
            if self.at_grid {
                return Ran::AtGrid;
            }
            if blocked >= self.warps.len() {
                c.fault = Some(Stop::Deadlock);
                return Ran::Fault {
                    line: self.waiting_line(launch),
                };
            }
            let at = self.next;
            let warp = &self.warps[at];
            if !warp.runnable() && warp.splits.iter().all(|s| matches!(s.state, State::Barrier(_))) {
                // Ended, or wholly at barriers.
                self.next = (at + 1) % self.warps.len();
                blocked += 1;
                asleep += 1;
                continue;
            }
            if blocked == 0 {
                // A new warp's local memory: forget the last one's.
                c.forget_windows();
            }
            self.enter(c, launch, at);
            let before = sum.warp;
            let pause = self.warps[at].run(c, launch, turn, sum, begun.take());
            if sum.warp != before {
                blocked = 0;
            }
            match pause {
                Pause::Fault => {
                    let line = self.warps[at].fault_line(launch);
                    return Ran::Fault { line };
                }
                Pause::Ended { lanes } => {
                    self.live_threads -= lanes.count_ones();
                    self.check_barriers(c, launch);
                    asleep = 0;
                    if self.warps[at].over() {
                        self.next = if at + 1 == self.warps.len() { 0 } else { at + 1 };
                    }
                }
                Pause::Barrier { split } => {
                    self.arrive(c, launch, at, split);
                    asleep = 0;
                    if !self.warps[at].runnable() {
                        self.next = if at + 1 == self.warps.len() { 0 } else { at + 1 };
                    }
                }
                Pause::Slice => {
                    self.next = (at + 1) % self.warps.len();
                    asleep = 0;
                }
                Pause::Yield => {
                    self.next = (at + 1) % self.warps.len();
                    asleep += 1;
                }
                Pause::Blocked => {
                    self.next = (at + 1) % self.warps.len();
                    blocked += 1;
                    asleep += 1;
                }
            }
            if asleep >= self.warps.len() && blocked < self.warps.len() {
                return Ran::Idle;
            }
            if sum.warp >= stop_at {
                return Ran::Slice;
            }
        }
    }

    /// The warp at `at` runs next.
    #[inline]
    pub(super) fn enter(&self, c: &mut Ctx, launch: &LaunchState<'static>, at: usize) {
        let before = at * 32 * launch.local_stride as usize;
        c.local = self.local.start.wrapping_add(before);
        c.warp = at as u32;
    }

    /// When its last warp got as far as it is, in picoseconds since the launch began.
    pub fn time_ps(&self) -> u64 {
        self.warps.iter().map(|warp| warp.time_ps).max().unwrap_or(0)
    }

    /// Nothing of the block is earlier than this.
    pub fn wait_until(&mut self, time_ps: u64) {
        for warp in &mut self.warps {
            warp.time_ps = warp.time_ps.max(time_ps);
        }
    }

    /// Every block has come to the grid's barrier.
    pub fn leave_grid_barrier(&mut self) {
        self.at_grid = false;
        self.barriers[GRID_BARRIER as usize] = Barrier::default();
        self.in_use &= !(1 << GRID_BARRIER);
        for warp in &mut self.warps {
            warp.release(GRID_BARRIER);
        }
    }

    pub fn waiting_line(&self, launch: &LaunchState<'static>) -> u32 {
        let split = self.warps.iter().flat_map(|w| &w.splits).next();
        split.map_or(0, |s| launch.code().insts[s.pc as usize].line)
    }

    /// The split came to the barrier that `Ctx` names.
    pub(super) fn arrive(&mut self, c: &mut Ctx, launch: &LaunchState<'static>, at: usize, split: usize) {
        let call = c.barrier;
        let warp = &mut self.warps[at];
        let lanes = warp.splits[split].mask;
        let inst = &launch.code().insts[warp.splits[split].pc as usize];
        let barrier = &mut self.barriers[call.id as usize];
        if !barrier.used {
            self.in_use |= 1 << call.id;
            *barrier = Barrier {
                expected: call.count,
                all: true,
                used: true,
                ..Barrier::default()
            };
        }
        if let Some(reduce) = call.reduce {
            barrier.reduces = true;
            let bits = c.pred_signed(inst.c) & lanes;
            barrier.all &= reduce != Reduce::And || bits == lanes;
            barrier.any |= bits != 0;
            barrier.count += bits.count_ones();
        }
        barrier.expected = barrier.expected.max(call.count);
        barrier.arrived += lanes.count_ones();
        warp.arrive(split, &call);
        // With a count, the whole warp counts once all its remaining lanes are there.
        if call.count != 0
            && (call.arrive_only && lanes == warp.live || warp.at_barrier(call.id) == warp.live)
        {
            barrier.arrived += 32 - warp.live.count_ones();
        }
        self.check(c, launch, call.id);
    }

    /// The warps at a barrier go on when the last of them is there.
    fn meet(&mut self, id: u32) {
        let there = |warp: &Warp| warp.at_barrier(id) != 0;
        let last = self
            .warps
            .iter()
            .filter(|warp| there(warp))
            .map(|warp| warp.time_ps)
            .max();
        for warp in self.warps.iter_mut().filter(|warp| there(warp)) {
            warp.time_ps = last.unwrap_or(0);
        }
    }

    fn check_barriers(&mut self, c: &mut Ctx, launch: &LaunchState<'static>) {
        for id in Bits(self.in_use) {
            self.check(c, launch, id as u32);
        }
    }

    /// Opens the barrier if every thread is there.
    fn check(&mut self, c: &mut Ctx, launch: &LaunchState<'static>, id: u32) {
        let barrier = self.barriers[id as usize];
        let expected = if barrier.expected == 0 {
            self.live_threads
        } else {
            barrier.expected
        };
        if !barrier.used || barrier.arrived < expected {
            return;
        }
        if id == GRID_BARRIER {
            self.at_grid = true;
            return;
        }
        if launch.attentive {
            self.meet(id);
            if let Some(watch) = launch.watch {
                watch.open(self.shared.start as u64, id);
            }
        }
        self.barriers[id as usize] = Barrier::default();
        self.in_use &= !(1 << id);
        for warp in &mut self.warps {
            for n in 0..if barrier.reduces { warp.splits.len() } else { 0 } {
                let split = warp.splits[n];
                if split.state != State::Barrier(id) {
                    continue;
                }
                let inst = &launch.code().insts[split.pc as usize];
                if inst.aux > 1 {
                    let area = launch.areas[warp.function_of(n) as usize] as usize;
                    // SAFETY: as in `Warp::run`.
                    c.regs = unsafe { c.file.add(warp.base + area) };
                    c.set_mask(split.mask);
                    let bit = |b: bool| if b { FULL } else { 0 };
                    match inst.aux {
                        super::control::BARRIER_AND => c.put_pred(inst.d, bit(barrier.all)),
                        super::control::BARRIER_OR => c.put_pred(inst.d, bit(barrier.any)),
                        _ => {
                            for lane in Bits(split.mask) {
                                c.put_lane(inst.d, lane, barrier.count);
                            }
                        }
                    }
                }
            }
            warp.release(id);
        }
    }
}
