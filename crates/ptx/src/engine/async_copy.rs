//! `cp.async`: a copy from global to shared memory that may end any time before it is waited for. Here it ends at once.

use super::control::NONE;
use super::ctx::{Ctx, Stop};
use super::memory::{NARROW, failed, resolve, shared_address};
use crate::error::Access;
use crate::inst::{Flow, Inst};

/// Of `aux`: the destination's address register is 32 bits wide.
pub(crate) const NARROW_TARGET: u32 = 1 << 12;
/// Of `aux`: the logarithm of the bytes, from this bit.
pub(crate) const SIZE_SHIFT: u32 = 8;

/// The offsets of an instruction with two addresses, in one word.
pub(crate) fn offsets(to: i32, from: i32) -> u64 {
    u64::from(from as u32) << 32 | u64::from(to as u32)
}

/// A lane's address in `slot`.
pub(super) fn address(c: &Ctx, slot: u32, narrow: bool, offset: i32, lane: usize) -> u64 {
    if narrow {
        u64::from(c.lane::<u32>(slot, lane).wrapping_add(offset as u32))
    } else {
        c.lane::<u64>(slot, lane).wrapping_add(i64::from(offset) as u64)
    }
}

/// `cp.async [a], [b], size, c`: `c` bytes are read, the others of the destination become zero. Where the predicate
/// `e` holds none is read.
pub(crate) fn copy(c: &mut Ctx, i: &Inst) -> Flow {
    c.polls = 0;
    for lane in c.active() {
        if let Err(stop) = copy_lane(c, i, lane) {
            return failed(c, stop);
        }
    }
    Flow::Next
}

fn copy_lane(c: &mut Ctx, i: &Inst, lane: usize) -> Result<(), Stop> {
    let size = 1u64 << (i.aux >> SIZE_SHIFT & 15);
    let to = address(c, i.a, i.aux & NARROW_TARGET != 0, i.imm as i32, lane);
    let from = address(c, i.b, i.aux & NARROW != 0, (i.imm >> 32) as i32, lane);
    let to = shared_address(c, to, size, Access::Write)?;
    let ignored = i.e != NONE && c.pred_signed(i.e) >> lane & 1 != 0;
    let read = match i.c {
        _ if ignored => 0,
        NONE => size,
        slot => u64::from(c.lane::<u32>(slot, lane)).min(size),
    };
    if read > 0 {
        if from & (size - 1) != 0 {
            return Err(Stop::Misaligned {
                address: from,
                access: Access::Read,
            });
        }
        resolve(c, i, from, read, Access::Read)?;
    }
    for word in 0..size / 4 {
        let at = 4 * word;
        let value = if at + 4 <= read {
            c.peek::<u32>(from + at)
        } else {
            (at..read).fold(0, |value, byte| {
                value | u32::from(c.peek::<u8>(from + byte)) << (8 * (byte - at))
            })
        };
        c.poke(to + at, value);
    }
    Ok(())
}
