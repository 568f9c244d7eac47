//! `mbarrier`: a barrier that lies in shared memory as a word of 64 bits. Its threads arrive at it and test it.
//!
//! A phase ends when no arrival and no byte of a copy is awaited any more; the next begins at once. Only the block's
//! own threads reach it, and they run on one thread of the host.

use super::control::NONE;
use super::ctx::{Ctx, Stop};
use super::memory::{failed, lane_address, polled, reach};
use crate::error::Access;
use crate::inst::{Flow, Inst};

/// Arrivals that a barrier can await.
const MOST: u32 = (1 << 20) - 1;
/// Bytes are counted from here, since more may have come than are awaited.
const NO_BYTES: i64 = 1 << 21;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Barrier {
    /// Arrivals that this phase awaits still, and that the next one will.
    pending: u32,
    expected: u32,
    /// Bytes that this phase awaits.
    bytes: i64,
    /// Alternates from phase to phase; the first is even.
    odd: bool,
}

impl Barrier {
    fn read(word: u64) -> Barrier {
        Barrier {
            pending: word as u32 & MOST,
            expected: (word >> 20) as u32 & MOST,
            bytes: (word >> 40 & 0x3f_ffff) as i64 - NO_BYTES,
            odd: word >> 63 != 0,
        }
    }

    fn word(self) -> u64 {
        let bytes = (self.bytes + NO_BYTES) as u64 & 0x3f_ffff;
        u64::from(self.odd) << 63 | bytes << 40 | u64::from(self.expected) << 20 | u64::from(self.pending)
    }

    fn arrive(&mut self, count: u32) {
        self.pending = self.pending.saturating_sub(count);
        self.complete();
    }

    fn complete(&mut self) {
        if self.pending == 0 && self.bytes == 0 {
            self.pending = self.expected;
            self.odd = !self.odd;
        }
    }
}

/// What an instruction does: the bits of `aux` from [`OPERATION_SHIFT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Init,
    Invalidate,
    ExpectBytes,
    CompleteBytes,
    Arrive,
    ArriveAndDrop,
    /// Awaits more bytes, and arrives.
    ArriveExpectingBytes,
    DropExpectingBytes,
}

const OPERATIONS: [Operation; 8] = [
    Operation::Init,
    Operation::Invalidate,
    Operation::ExpectBytes,
    Operation::CompleteBytes,
    Operation::Arrive,
    Operation::ArriveAndDrop,
    Operation::ArriveExpectingBytes,
    Operation::DropExpectingBytes,
];
pub(crate) const OPERATION_SHIFT: u32 = 8;
/// Of a wait: by the parity of the phase, and by a state otherwise.
pub(crate) const PARITY: u32 = 1 << 8;
/// Of a wait: others run before the answer is no.
pub(crate) const PATIENT: u32 = 1 << 9;

/// The barrier of a lane: its host address.
fn place(c: &mut Ctx, i: &Inst, lane: usize) -> Result<u64, Stop> {
    let address = lane_address(c, i, lane, i.imm as i64);
    reach(c, i, address, 8, Access::Atomic)
}

/// The barrier at `a` with the count `b`; its state from before goes to `d`.
pub(crate) fn change(c: &mut Ctx, i: &Inst) -> Flow {
    c.polls = 0;
    let operation = OPERATIONS[(i.aux >> OPERATION_SHIFT & 7) as usize];
    for lane in c.active() {
        let at = match place(c, i, lane) {
            Ok(at) => at,
            Err(stop) => return failed(c, stop),
        };
        let count = if i.b == NONE { 1 } else { c.lane::<u32>(i.b, lane) };
        let before = c.peek::<u64>(at);
        let mut barrier = Barrier::read(before);
        match operation {
            Operation::Init => {
                barrier = Barrier {
                    pending: count & MOST,
                    expected: count & MOST,
                    bytes: 0,
                    odd: false,
                }
            }
            Operation::Invalidate => {}
            Operation::ExpectBytes => barrier.bytes += i64::from(count),
            Operation::CompleteBytes => {
                barrier.bytes -= i64::from(count);
                barrier.complete();
            }
            Operation::Arrive => barrier.arrive(count),
            Operation::ArriveAndDrop => {
                barrier.expected = barrier.expected.saturating_sub(count);
                barrier.arrive(count);
            }
            Operation::ArriveExpectingBytes => {
                barrier.bytes += i64::from(count);
                barrier.arrive(1);
            }
            Operation::DropExpectingBytes => {
                barrier.bytes += i64::from(count);
                barrier.expected = barrier.expected.saturating_sub(1);
                barrier.arrive(1);
            }
        }
        c.poke(at, barrier.word());
        if i.d != NONE {
            c.put_lane(i.d, lane, before);
        }
    }
    Flow::Next
}

/// `mbarrier.test_wait` and `try_wait`: whether the phase that `b` names has ended, into the predicate `d`.
pub(crate) fn wait(c: &mut Ctx, i: &Inst) -> Flow {
    let mut ended = 0u32;
    for lane in c.active() {
        let at = match place(c, i, lane) {
            Ok(at) => at,
            Err(stop) => return failed(c, stop),
        };
        let odd = if i.aux & PARITY != 0 {
            c.lane::<u32>(i.b, lane) & 1 != 0
        } else {
            Barrier::read(c.lane::<u64>(i.b, lane)).odd
        };
        ended |= u32::from(Barrier::read(c.peek::<u64>(at)).odd != odd) << lane;
    }
    c.put_pred(i.d, ended);
    if ended == c.mask() {
        c.polls = 0;
        Flow::Next
    } else if i.aux & PATIENT != 0 || polled(c) {
        Flow::Yield
    } else {
        Flow::Next
    }
}

/// `mbarrier.pending_count` of the state `a`.
pub(crate) fn pending(c: &mut Ctx, i: &Inst) -> Flow {
    for lane in c.active() {
        let barrier = Barrier::read(c.lane::<u64>(i.a, lane));
        c.put_lane(i.d, lane, barrier.pending);
    }
    Flow::Next
}

/// Its number in `aux`.
pub(crate) fn number(operation: Operation) -> u32 {
    (operation as u32) << OPERATION_SHIFT
}
