//! One warp: its splits and how they take turns.
//!
//! Lanes that went different ways are *splits*, each with its own program counter. The split with the lowest program
//! counter (deepest call first) runs, and merges with another when it comes to the same place: reconvergence. A split
//! could wait for another one that is further on (a lock held by a lane of the same warp). So the turn is given away by
//! force after a while.

use super::ctx::{BarrierCall, Ctx, FULL};
use super::launch::LaunchState;
use crate::code::LOCAL_ALIGN;
#[cfg(target_arch = "x86_64")]
use crate::compile::Kind;
use crate::inst::Flow;

/// Instructions after which a waiting split of the same warp gets a turn whatever its program counter.
const TURN: u64 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    /// At this block barrier.
    Barrier(u32),
    /// Before a `.sync` instruction, waiting for these lanes.
    Gather(u32),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    pub pc: u32,
    pub mask: u32,
    pub frame: u32,
    pub state: State,
    /// When it last had a turn.
    stamp: u64,
}

/// A function being executed by some lanes.
pub(crate) struct Frame {
    pub function: u32,
    parent: u32,
    depth: u32,
    return_pc: u32,
    call: u32,
    local_base: u64,
    /// Lanes still inside.
    lanes: u32,
    /// A recursive function's registers as they were before the call.
    saved: Vec<u8>,
}

/// Calls inside calls; beyond it a real device's stack is long gone.
const MAX_DEPTH: u32 = 512;

pub(crate) struct Warp {
    pub splits: Vec<Split>,
    frames: Vec<Frame>,
    free_frames: Vec<u32>,
    pub live: u32,
    /// Lanes of a warp that has not begun.
    fresh: u32,
    /// Where the warp's registers begin in the block's.
    pub base: usize,
    pub index: u32,
    clock: u64,
    /// Instructions since the last forced turn, while more than one split was ready.
    since_turn: u64,
    /// Instructions left of a forced turn, and the split that has it.
    turn: u64,
    current: usize,
    /// Since the launch began, in picoseconds, where time is modelled.
    pub time_ps: u64,
}

/// Why a warp stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// Its time is up.
    Slice,
    /// It waits for something that only others can bring, by polling.
    Yield,
    /// A split arrived at a barrier, which the block must note.
    Barrier {
        split: usize,
    },
    /// Lanes ended; more may be left.
    Ended {
        lanes: u32,
    },
    /// No split can run.
    Blocked,
    Fault,
}

/// What a warp issued.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Issued {
    pub warp: u64,
    pub lane: u64,
}

impl Warp {
    pub fn new(index: u32, base: usize) -> Warp {
        Warp {
            splits: Vec::new(),
            frames: Vec::new(),
            free_frames: Vec::new(),
            live: 0,
            fresh: 0,
            base,
            index,
            clock: 0,
            since_turn: 0,
            turn: 0,
            current: 0,
            time_ps: 0,
        }
    }

    /// All lanes of `mask` are to run the kernel.
    pub fn start(&mut self, mask: u32) {
        self.splits.clear();
        self.live = mask;
        self.fresh = mask;
        self.time_ps = 0;
    }

    /// Compiled code of a warp that has not begun. Most warps of short kernels end there. The flow of one that does not
    /// is for the warp's loop.
    #[cfg(target_arch = "x86_64")]
    fn begin(
        &mut self,
        c: &mut Ctx,
        launch: &LaunchState<'static>,
        slice: u64,
        issued: &mut Issued,
    ) -> Result<Pause, Option<Flow>> {
        let mask = self.fresh;
        let pc = launch.code().functions[launch.function as usize].entry;
        let Some(native) = launch.native() else {
            return Err(None);
        };
        let Some(entry) = native.entry(launch.code(), pc, Kind::of(mask == FULL, launch.rows)) else {
            return Err(None);
        };
        let area = launch.areas[launch.function as usize] as usize;
        // SAFETY: as in `run`.
        c.regs = unsafe { c.file.add(self.base + area) };
        c.local_base = 0;
        c.set_mask(mask);
        c.time_ps = self.time_ps;
        c.count = 0;
        c.limit = slice as i64;
        c.horizon = u32::MAX;
        // SAFETY: `regs` are those of the kernel.
        let flow = unsafe { native.run(c, &launch.code().insts, entry) };
        if !matches!(flow, Flow::Return | Flow::Exit) || c.mask() != mask {
            return Err(Some(flow));
        }
        let count = c.count as u64;
        issued.warp += count;
        issued.lane += count * u64::from(mask.count_ones());
        self.time_ps = (c.time_ps).saturating_add(count.saturating_mul(launch.instruction_ps));
        self.live = 0;
        Ok(Pause::Ended { lanes: mask })
    }

    /// Puts all lanes of `mask` at the kernel's entry.
    fn place(&mut self, mask: u32, function: u32, entry: u32) {
        self.free_frames.clear();
        // The first frame stays as it is from block to block.
        self.frames.truncate(1);
        match self.frames.first_mut() {
            Some(frame) => frame.lanes = mask,
            None => self.frames.push(Frame {
                function,
                parent: 0,
                depth: 0,
                return_pc: 0,
                call: 0,
                local_base: 0,
                lanes: mask,
                saved: Vec::new(),
            }),
        }
        self.splits.clear();
        self.splits.push(Split {
            pc: entry,
            mask,
            frame: 0,
            state: State::Ready,
            stamp: 0,
        });
        self.since_turn = 0;
        self.turn = 0;
    }

    /// All lanes stand at `pc` of the kernel, and can go on.
    pub fn stand(&mut self, function: u32, pc: u32) {
        self.fresh = 0;
        self.place(FULL, function, pc);
    }

    /// It begins, as all warps of its block do.
    #[inline]
    pub fn begin_with_others(&mut self) {
        self.fresh = 0;
    }

    pub fn begun(&self) -> bool {
        self.fresh == 0
    }

    /// All of its lanes have ended.
    #[inline]
    pub fn over_with_others(&mut self) {
        self.fresh = 0;
        self.live = 0;
        self.splits.clear();
    }

    pub fn function_of(&self, split: usize) -> u32 {
        self.frames[self.splits[split].frame as usize].function
    }

    /// Something can run.
    pub fn runnable(&self) -> bool {
        self.fresh != 0 || self.splits.iter().any(|s| s.state == State::Ready)
    }

    /// Nothing is left of it.
    pub fn over(&self) -> bool {
        self.fresh == 0 && self.splits.is_empty()
    }

    fn choose(&mut self) -> Option<usize> {
        if let [only] = &self.splits[..] {
            self.current = 0;
            return (only.state == State::Ready).then_some(0);
        }
        if self.turn > 0
            && self
                .splits
                .get(self.current)
                .is_some_and(|s| s.state == State::Ready)
        {
            return Some(self.current);
        }
        self.turn = 0;
        let ready = || {
            self.splits
                .iter()
                .enumerate()
                .filter(|(_, s)| s.state == State::Ready)
        };
        if self.splits.len() > 1 && self.since_turn > TURN {
            self.since_turn = 0;
            if ready().count() > 1 {
                self.turn = TURN;
                self.current = ready().min_by_key(|(_, s)| s.stamp)?.0;
                return Some(self.current);
            }
        }
        let depth = |s: &Split| self.frames[s.frame as usize].depth;
        self.current = ready()
            .min_by_key(|(_, s)| (std::cmp::Reverse(depth(s)), s.pc))?
            .0;
        Some(self.current)
    }

    /// The program counter at which the running split must look up: where it could meet another, or is no longer the
    /// first in line.
    fn horizon(&self, at: usize) -> u32 {
        let me = self.splits[at];
        let mut horizon = u32::MAX;
        for (n, s) in self.splits.iter().enumerate() {
            if n == at || matches!(s.state, State::Barrier(_)) {
                continue;
            }
            if s.frame == me.frame {
                if s.pc > me.pc {
                    horizon = horizon.min(s.pc);
                } else if s.state == State::Ready && self.turn == 0 {
                    horizon = 0;
                }
            } else if s.state == State::Ready
                && self.frames[s.frame as usize].depth >= self.frames[me.frame as usize].depth
            {
                horizon = 0;
            }
        }
        horizon
    }

    /// Joins the split with others at the same place.
    fn merge(&mut self, at: usize) {
        let me = self.splits[at];
        let other = self.splits.iter().position(|s| {
            s.pc == me.pc && s.frame == me.frame && s.mask != me.mask && !matches!(s.state, State::Barrier(_))
        });
        if let Some(other) = other {
            self.splits[other].mask |= me.mask;
            self.splits[other].state = State::Ready;
            self.splits.swap_remove(at);
            self.turn = 0;
        }
    }

    fn add(&mut self, pc: u32, mask: u32, frame: u32) {
        if mask == 0 {
            return;
        }
        match self
            .splits
            .iter_mut()
            .find(|s| s.pc == pc && s.frame == frame && !matches!(s.state, State::Barrier(_)))
        {
            Some(s) => {
                s.mask |= mask;
                s.state = State::Ready;
            }
            None => self.splits.push(Split {
                pc,
                mask,
                frame,
                state: State::Ready,
                stamp: self.clock,
            }),
        }
    }

    /// Runs until something happens that the block must see to, for about `slice` instructions at most. Compiled code
    /// may have `begun` that: it gave this flow, and the warp stands where the code began.
    pub fn run(
        &mut self,
        c: &mut Ctx,
        launch: &LaunchState<'static>,
        slice: u64,
        issued: &mut Issued,
        mut begun: Option<Flow>,
    ) -> Pause {
        let code = &launch.code().insts;
        #[cfg(target_arch = "x86_64")]
        let native = launch.native();
        let mut left = slice as i64;
        c.live = self.live;
        if self.fresh != 0 {
            #[cfg(target_arch = "x86_64")]
            match self.begin(c, launch, slice, issued) {
                Ok(pause) => {
                    self.fresh = 0;
                    return pause;
                }
                Err(flow) => begun = flow,
            }
            let entry = launch.code().functions[launch.function as usize].entry;
            let mask = std::mem::take(&mut self.fresh);
            self.place(mask, launch.function, entry);
        }
        loop {
            let Some(at) = self.choose() else {
                if self.release_gathered(launch) {
                    continue;
                }
                return Pause::Blocked;
            };
            self.clock += 1;
            self.splits[at].stamp = self.clock;
            let Split {
                mut pc, mask, frame, ..
            } = self.splits[at];
            let alone = self.splits.len() == 1;
            let horizon = if alone { u32::MAX } else { self.horizon(at) };
            let holding = self.turn > 0;
            let area = launch.areas[self.frames[frame as usize].function as usize] as usize;
            // SAFETY: the block allocated `warp_bytes` from `base`, and a reachable function's area lies inside.
            c.regs = unsafe { c.file.add(self.base + area) };
            if begun.is_none() {
                c.local_base = self.frames[frame as usize].local_base;
                c.set_mask(mask);
                c.time_ps = self.time_ps;
            }
            let mut count = 0u64;
            let flow = loop {
                let left_with = begun.take().map(|flow| (flow, c.at, c.count as u64));
                #[cfg(target_arch = "x86_64")]
                let entry = native.filter(|_| left_with.is_none()).and_then(|native| {
                    Some((
                        native,
                        native.entry(launch.code(), pc, Kind::of(c.full(), launch.rows))?,
                    ))
                });
                #[cfg(target_arch = "x86_64")]
                let compiled = left_with.or_else(|| {
                    let (native, entry) = entry?;
                    c.count = count as i64;
                    c.limit = match (holding, alone) {
                        (true, _) => 0,
                        (_, true) => left,
                        _ => left.min(TURN as i64 + 1),
                    };
                    c.horizon = horizon;
                    // SAFETY: `regs` are those of the function that the split is in.
                    let flow = unsafe { native.run(c, code, entry) };
                    Some((flow, c.at, c.count as u64))
                });
                #[cfg(not(target_arch = "x86_64"))]
                let compiled = left_with;
                let flow = if let Some((flow, at, counted)) = compiled {
                    (pc, count) = (at, counted);
                    flow
                } else {
                    let inst = &code[pc as usize];
                    count += 1;
                    // SAFETY: the instruction was decoded for this machine and for the function that `regs` belongs to.
                    unsafe { (inst.exec)(c, inst) }
                };
                match flow {
                    Flow::Next => {
                        pc = pc.wrapping_add(1);
                        if pc == horizon {
                            break Flow::Next;
                        }
                    }
                    Flow::Jump => {
                        pc = c.pc;
                        if pc >= horizon || holding || count as i64 >= left || count > TURN && !alone {
                            break Flow::Jump;
                        }
                    }
                    other => break other,
                }
            };
            let lanes = c.mask();
            let flow = if flow == Flow::Meet {
                c.barrier = BarrierCall {
                    id: c.other,
                    ..BarrierCall::default()
                };
                Flow::Barrier
            } else {
                flow
            };
            if flow == Flow::Gather {
                count -= 1;
            }
            issued.warp += count;
            self.time_ps = c
                .time_ps
                .saturating_add(count.saturating_mul(launch.instruction_ps));
            issued.lane += count * u64::from(mask.count_ones());
            left -= count as i64;
            if !alone {
                self.since_turn += count;
                self.turn = self.turn.saturating_sub(count);
            }
            let rest = mask & !lanes;
            self.splits[at].pc = pc;
            match flow {
                Flow::Next | Flow::Jump => self.merge(at),
                Flow::Split => {
                    self.splits[at].mask = mask & !c.other;
                    self.splits[at].pc = pc + 1;
                    let (other_pc, other) = (c.pc, c.other);
                    self.add(other_pc, other, frame);
                    self.merge(at);
                }
                Flow::Scatter => {
                    self.splits.swap_remove(at);
                    self.add(pc + 1, rest, frame);
                    for lane in super::ctx::Bits(lanes) {
                        self.add(c.targets[lane], 1 << lane, frame);
                    }
                }
                Flow::Exit => {
                    self.end(at, lanes);
                    self.step_rest(at, rest, pc);
                    return Pause::Ended { lanes };
                }
                Flow::Return if frame == 0 => {
                    self.end(at, lanes);
                    self.step_rest(at, rest, pc);
                    return Pause::Ended { lanes };
                }
                Flow::Return => {
                    self.leave_function(c, launch, at, lanes);
                    self.add(pc + 1, rest, frame);
                }
                Flow::Call => {
                    if !self.enter_function(c, launch, at, lanes, pc) {
                        return Pause::Fault;
                    }
                    let again = c.again;
                    self.add(pc + 1, rest & !again, frame);
                    self.add(pc, again, frame);
                }
                Flow::Barrier => {
                    if rest != 0 {
                        self.splits[at].mask = lanes;
                        self.add(pc + 1, rest, frame);
                    }
                    return Pause::Barrier { split: at };
                }
                Flow::Gather => {
                    self.splits[at].mask = lanes;
                    self.splits[at].state = State::Gather(c.members);
                    self.turn = 0;
                    self.add(pc + 1, rest, frame);
                }
                Flow::Yield => {
                    self.splits[at].pc = pc + 1;
                    c.polls = 0;
                    // The split or thread that it waits for may be in this very warp.
                    self.turn = 0;
                    self.merge(at);
                    if self.splits.len() == 1 {
                        return Pause::Yield;
                    }
                    self.since_turn = TURN + 1;
                    left -= slice as i64 / 16;
                }
                Flow::Fault | Flow::Meet => return Pause::Fault,
            }
            if left <= 0 {
                return Pause::Slice;
            }
        }
    }

    /// Moves lanes that a guard kept back past the instruction.
    fn step_rest(&mut self, at: usize, rest: u32, pc: u32) {
        if rest != 0 {
            self.splits[at].pc = pc + 1;
            self.merge(at);
        } else {
            self.splits.swap_remove(at);
            self.turn = 0;
        }
    }

    fn end(&mut self, at: usize, lanes: u32) {
        self.live &= !lanes;
        self.splits[at].mask &= !lanes;
        // Lanes that ended are no longer waited for.
        for s in &mut self.splits {
            if let State::Gather(_) = s.state {
                s.state = State::Ready;
            }
        }
    }

    /// Every split waits. Those at a `bar.warp.sync` of the same lanes, wherever it stands, may go on together.
    fn release_gathered(&mut self, launch: &LaunchState<'static>) -> bool {
        for n in 0..self.splits.len() {
            let State::Gather(members) = self.splits[n].state else {
                continue;
            };
            let code = &launch.code().insts;
            let same = |s: &Split| {
                s.state == State::Gather(members)
                    && code[s.pc as usize].aux == super::shuffle::SYNC_WARP_BARRIER
            };
            let arrived = self.splits.iter().filter(|s| same(s)).fold(0, |m, s| m | s.mask);
            if members & self.live & !arrived == 0 && arrived != 0 {
                let together: Vec<usize> = (0..self.splits.len())
                    .filter(|k| same(&self.splits[*k]))
                    .collect();
                for k in together {
                    self.splits[k].state = State::Ready;
                    self.splits[k].pc += 1;
                }
                return true;
            }
        }
        false
    }

    /// Lets the splits that wait at a barrier go on.
    pub fn release(&mut self, barrier: u32) {
        if let [only] = &mut self.splits[..] {
            if only.state == State::Barrier(barrier) {
                only.state = State::Ready;
                only.pc += 1;
            }
            return;
        }
        for s in &mut self.splits {
            if s.state == State::Barrier(barrier) {
                s.state = State::Ready;
                s.pc += 1;
            }
        }
        let mut n = 0;
        while n < self.splits.len() {
            let before = self.splits.len();
            self.merge(n);
            if self.splits.len() == before {
                n += 1;
            }
        }
    }

    /// Lanes of this warp at a barrier.
    pub fn at_barrier(&self, barrier: u32) -> u32 {
        self.splits
            .iter()
            .filter(|s| s.state == State::Barrier(barrier))
            .fold(0, |m, s| m | s.mask)
    }

    /// After `Pause::Barrier`: the split waits, or goes on where it only arrives.
    pub fn arrive(&mut self, split: usize, call: &BarrierCall) {
        if call.arrive_only {
            self.splits[split].pc += 1;
        } else {
            self.splits[split].state = State::Barrier(call.id);
        }
        self.turn = 0;
    }

    fn enter_function(
        &mut self,
        c: &mut Ctx,
        launch: &LaunchState<'static>,
        at: usize,
        lanes: u32,
        pc: u32,
    ) -> bool {
        let code = launch.code();
        let call = &code.calls[c.call as usize];
        let caller = self.splits[at].frame;
        let depth = self.frames[caller as usize].depth + 1;
        let caller_function = self.frames[caller as usize].function as usize;
        let callee_index = c.callee;
        let callee = &code.functions[callee_index as usize];
        let caller_end =
            self.frames[caller as usize].local_base + u64::from(code.functions[caller_function].local_bytes);
        let local_base = caller_end.next_multiple_of(callee.local_align.max(LOCAL_ALIGN));
        if depth > MAX_DEPTH || local_base + u64::from(callee.local_bytes) > c.local_stride {
            c.fault = Some(super::ctx::Stop::Illegal {
                address: local_base,
                access: crate::error::Access::Write,
            });
            return false;
        }
        c.set_mask(lanes);
        let caller_regs = c.regs;
        // SAFETY: as in `run`: the callee is reachable, so its area lies inside the warp's registers.
        let callee_regs = unsafe {
            c.file
                .add(self.base + launch.areas[callee_index as usize] as usize)
        };
        let arguments = super::functions::collect(c, &call.arguments);
        let saved = if callee.recursive {
            // SAFETY: the area is `area_bytes` long.
            unsafe { std::slice::from_raw_parts(callee_regs, callee.area_bytes as usize) }.to_vec()
        } else {
            Vec::new()
        };
        c.regs = callee_regs;
        super::functions::deliver(c, &callee.params, &arguments);
        c.regs = caller_regs;
        let frame = Frame {
            function: callee_index,
            parent: caller,
            depth,
            return_pc: pc + 1,
            call: c.call,
            local_base,
            lanes,
            saved,
        };
        let id = match self.free_frames.pop() {
            Some(id) => {
                self.frames[id as usize] = frame;
                id
            }
            None => {
                self.frames.push(frame);
                self.frames.len() as u32 - 1
            }
        };
        self.splits[at] = Split {
            pc: callee.entry,
            mask: lanes,
            frame: id,
            state: State::Ready,
            stamp: self.clock,
        };
        self.turn = 0;
        true
    }

    fn leave_function(&mut self, c: &mut Ctx, launch: &LaunchState<'static>, at: usize, lanes: u32) {
        let code = launch.code();
        let id = self.splits[at].frame;
        let frame = &mut self.frames[id as usize];
        let callee = &code.functions[frame.function as usize];
        let (parent, return_pc, call) = (frame.parent, frame.return_pc, &code.calls[frame.call as usize]);
        c.set_mask(lanes);
        let values = super::functions::collect(c, &callee.returns);
        if !frame.saved.is_empty() {
            super::functions::restore(c, callee, &frame.saved);
        }
        frame.lanes &= !lanes;
        if frame.lanes == 0 {
            frame.saved = Vec::new();
            self.free_frames.push(id);
        }
        let area = launch.areas[self.frames[parent as usize].function as usize] as usize;
        // SAFETY: as in `run`.
        c.regs = unsafe { c.file.add(self.base + area) };
        super::functions::deliver(c, &call.results, &values);
        self.splits.swap_remove(at);
        self.turn = 0;
        self.add(return_pc, lanes, parent);
    }

    /// The line of the instruction that the last split to run is at.
    pub fn fault_line(&self, launch: &LaunchState<'static>) -> u32 {
        self.splits
            .get(self.current)
            .map_or(0, |s| launch.code().insts[s.pc as usize].line)
    }
}
