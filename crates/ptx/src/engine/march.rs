//! Warps of a block that go the same way: compiled code takes one after the other from barrier to barrier, or to their
//! end, without a split, a frame or a turn of their own. The first warp that does anything else ends that: all of them
//! are then put where they are, and the block's loop goes on.

use super::block::Block;
use super::ctx::{BarrierCall, Ctx, FULL, Following};
use super::launch::LaunchState;
use super::warp::Issued;
use crate::compile::Kind;
use crate::inst::Flow;

/// How far warps went together.
pub(super) enum Marched {
    /// All of them ended.
    Done,
    /// Its time is up. They stand at one place, and go on there together.
    Slice,
    /// The block's next warp came to something else. `Ctx` has what belongs to that.
    Apart(Flow),
    /// They go on one by one.
    Over,
}

impl Block {
    /// Runs all warps from the instruction `from` on, at which each of them stands with all its lanes, until about
    /// `stop_at` instructions in `sum`.
    pub(super) fn march(
        &mut self,
        c: &mut Ctx,
        launch: &LaunchState<'static>,
        mut from: u32,
        [turn, stop_at]: [u64; 2],
        sum: &mut Issued,
    ) -> Marched {
        let code = launch.code();
        let Some(native) = launch.native() else {
            return Marched::Over;
        };
        let area = launch.areas[launch.function as usize] as usize;
        c.set_mask(FULL);
        c.live = FULL;
        c.local_base = 0;
        c.horizon = u32::MAX;
        c.limit = turn as i64;
        loop {
            let Some(entry) = native.entry(code, from, Kind::whole(launch.rows)) else {
                self.part(launch, from, 0);
                return Marched::Over;
            };
            // The instruction that a warp ended at, and what barrier that is, if it is one.
            let mut ended = None;
            let mut turn = 0;
            while turn < self.warps.len() {
                let at = self.in_turn(turn);
                // A new warp's local memory: forget the last one's.
                c.forget_windows();
                self.enter(c, launch, at);
                // Once the first one's end is known, code goes on by itself from warps that end there.
                let left = (self.warps.len() - turn.max(at) - 1) as u64;
                c.following = Following {
                    left,
                    end: ended.map_or(u32::MAX, |(pc, _)| pc),
                    registers: launch.warp_bytes as u64,
                    local: 32 * launch.local_stride,
                    entry: entry.address(),
                    count: 0,
                };
                // SAFETY: as in `Warp::run`: the kernel's area lies inside the warp's registers.
                c.regs = unsafe { c.file.add(self.warps[at].base + area) };
                c.time_ps = 0;
                c.count = 0;
                // SAFETY: `regs` are those of the kernel, and every lane is active.
                let flow = unsafe { native.run(c, &code.insts, entry) };
                let passed = left - c.following.left;
                if passed > 0 {
                    turn += passed as usize;
                    sum.warp += c.following.count as u64;
                    sum.lane += c.following.count as u64 * 32;
                }
                let met = match flow {
                    Flow::Meet => Some((c.at, c.other)),
                    Flow::Return | Flow::Exit if c.full() => None,
                    _ => Some((u32::MAX, 0)),
                };
                let alike =
                    met.is_none_or(|(at, _)| at != u32::MAX) && ended.is_none_or(|(_, first)| first == met);
                if !alike {
                    let at = self.in_turn(turn);
                    self.meet_before(c, launch, turn, ended.and_then(|(_, met)| met));
                    self.part(launch, from, turn);
                    self.next = at;
                    return Marched::Apart(flow);
                }
                ended = Some((c.at, met));
                let count = c.count as u64;
                sum.warp += count;
                sum.lane += count * 32;
                turn += 1;
            }
            let Some((_, Some((pc, _)))) = ended else {
                self.end_all();
                return Marched::Done;
            };
            from = pc + 1;
            // The warp that opens a barrier goes on behind it.
            self.next = self.in_turn(self.warps.len() - 1);
            for warp in &mut self.warps {
                warp.begin_with_others();
            }
            if sum.warp >= stop_at {
                self.standing = Some(from);
                return Marched::Slice;
            }
        }
    }

    /// The warp that has this turn.
    fn in_turn(&self, turn: usize) -> usize {
        let at = self.next + turn;
        if at < self.warps.len() {
            at
        } else {
            at - self.warps.len()
        }
    }

    /// Warps that had a turn before this one wait at the barrier that they came to, or have ended.
    fn meet_before(
        &mut self,
        c: &mut Ctx,
        launch: &LaunchState<'static>,
        turn: usize,
        met: Option<(u32, u32)>,
    ) {
        let call = c.barrier;
        for n in (0..turn).map(|turn| self.in_turn(turn)).collect::<Vec<_>>() {
            match met {
                Some((pc, id)) => {
                    self.warps[n].stand(launch.function, pc);
                    c.barrier = BarrierCall {
                        id,
                        ..BarrierCall::default()
                    };
                    self.arrive(c, launch, n, 0);
                }
                None => {
                    self.warps[n].over_with_others();
                    self.live_threads -= 32;
                }
            }
        }
        c.barrier = call;
    }

    /// Warps from this turn on stand at `from`; those that have not begun stay so.
    fn part(&mut self, launch: &LaunchState<'static>, from: u32, turn: usize) {
        for other in turn..self.warps.len() {
            let at = self.in_turn(other);
            let warp = &mut self.warps[at];
            if other == turn || warp.begun() {
                warp.stand(launch.function, from);
            }
        }
    }

    fn end_all(&mut self) {
        for warp in &mut self.warps {
            warp.over_with_others();
        }
        self.live_threads = 0;
    }
}
