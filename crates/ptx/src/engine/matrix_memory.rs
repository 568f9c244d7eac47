//! Matrices between memory and the registers of a warp: `wmma.load`, `wmma.store`, `ldmatrix`, `stmatrix`; and
//! `movmatrix`, which transposes one in registers.

use super::control::NONE;
use super::ctx::{Ctx, Stop};
use super::fragment::Fragment;
use super::matrix::{gathered, slots};
use super::memory::{failed, lane_address, reach};
use crate::error::Access;
use crate::inst::{Flow, Inst};

/// A fragment and how it lies in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub fragment: Fragment,
    /// Bytes from the address in the register.
    pub offset: i64,
    /// Columns of a row are neighbours, and rows of a column otherwise.
    pub by_rows: bool,
}

impl Transfer {
    /// Where an element is: bytes from the matrix's address. Elements of less than a byte are addressed by the register.
    pub(super) fn bytes(&self, stride: u64, (row, column): (u32, u32)) -> u64 {
        let (row, column) = (u64::from(row), u64::from(column));
        let element = if self.by_rows {
            row.wrapping_mul(stride).wrapping_add(column)
        } else {
            column.wrapping_mul(stride).wrapping_add(row)
        };
        element.wrapping_mul(u64::from(self.fragment.number.bits())) / 8
    }

    /// The matrix's address and stride, which are the same in all lanes.
    pub(super) fn origin(&self, c: &Ctx, i: &Inst) -> (u64, u64) {
        let first = c.mask().trailing_zeros() as usize & 31;
        let start = lane_address(c, i, first, self.offset);
        let stride = match i.b {
            NONE if self.by_rows => self.fragment.columns,
            NONE => self.fragment.rows,
            slot => c.lane::<u32>(slot, first),
        };
        (start, u64::from(stride))
    }
}

/// Bytes that are moved at once: those of an element, or of a register of smaller ones.
pub(super) fn unit(f: &Fragment) -> (u32, u64) {
    let bits = f.number.bits();
    if bits < 8 {
        (1, 4)
    } else {
        (f.elements(), u64::from(bits / 8))
    }
}

fn read(c: &Ctx, at: u64, bytes: u64) -> u64 {
    match bytes {
        1 => u64::from(c.peek::<u8>(at)),
        2 => u64::from(c.peek::<u16>(at)),
        4 => u64::from(c.peek::<u32>(at)),
        _ => c.peek::<u64>(at),
    }
}

fn write(c: &mut Ctx, at: u64, bytes: u64, value: u64) {
    match bytes {
        1 => c.poke(at, value as u8),
        2 => c.poke(at, value as u16),
        4 => c.poke(at, value as u32),
        _ => c.poke(at, value),
    }
}

/// `wmma.load`: the address in `a`, the stride in `b`, the transfer `imm`.
pub(crate) fn load(c: &mut Ctx, i: &Inst) -> Flow {
    if !gathered(c) {
        return Flow::Gather;
    }
    transfer(c, i, false).unwrap_or_else(|stop| failed(c, stop))
}

/// `wmma.store`.
pub(crate) fn store(c: &mut Ctx, i: &Inst) -> Flow {
    if !gathered(c) {
        return Flow::Gather;
    }
    c.polls = 0;
    transfer(c, i, true).unwrap_or_else(|stop| failed(c, stop))
}

fn transfer(c: &mut Ctx, i: &Inst, store: bool) -> Result<Flow, Stop> {
    let t = c.launch().code().transfers[i.imm as usize];
    let f = &t.fragment;
    let [slots] = slots(c, i, [f.registers]);
    let (start, stride) = t.origin(c, i);
    let (elements, bytes) = unit(f);
    let access = if store { Access::Write } else { Access::Read };
    for (register, slot) in slots.iter().take(f.registers as usize).enumerate() {
        for lane in c.active() {
            let mut word = match (store, bytes) {
                (false, _) => 0,
                (true, 8) => c.lane::<u64>(*slot, lane),
                (true, _) => u64::from(c.lane::<u32>(*slot, lane)),
            };
            for element in 0..elements {
                let place = f.place(lane as u32, register as u32, element);
                let at = reach(c, i, start.wrapping_add(t.bytes(stride, place)), bytes, access)?;
                let shift = u64::from(element) * bytes * 8;
                if store {
                    write(c, at, bytes, word >> shift);
                } else {
                    word |= read(c, at, bytes) << shift;
                }
            }
            match (store, bytes) {
                (true, _) => {}
                (false, 8) => c.put_lane(*slot, lane, word),
                (false, _) => c.put_lane(*slot, lane, word as u32),
            }
        }
    }
    Ok(Flow::Next)
}

/// Of `aux`: rows become columns.
pub(crate) const TRANSPOSE: u32 = 64;

/// The row and the column of the two halves of a lane's register.
fn halves(i: &Inst, lane: usize) -> [(usize, usize); 2] {
    let (row, column) = (lane / 4, 2 * (lane % 4));
    [(row, column), (row, column + 1)].map(|(row, column)| {
        if i.aux & TRANSPOSE != 0 {
            (column, row)
        } else {
            (row, column)
        }
    })
}

/// A matrix of 8 by 8 halves in the register `slot`, by rows; transposed where the instruction says so.
fn from_register(c: &Ctx, i: &Inst, slot: u32) -> [[u16; 8]; 8] {
    let mut matrix = [[0u16; 8]; 8];
    for lane in 0..32 {
        let word = c.lane::<u32>(slot, lane);
        for (half, (row, column)) in halves(i, lane).into_iter().enumerate() {
            matrix[row][column] = (word >> (16 * half)) as u16;
        }
    }
    matrix
}

fn to_register(c: &mut Ctx, i: &Inst, slot: u32, matrix: &[[u16; 8]; 8]) {
    for lane in c.active() {
        let [low, high] = halves(i, lane).map(|(row, column)| u32::from(matrix[row][column]));
        c.put_lane(slot, lane, high << 16 | low);
    }
}

/// Where the rows of matrix `n` are: eight lanes say it.
fn rows(c: &mut Ctx, i: &Inst, n: usize, access: Access) -> Result<[u64; 8], Stop> {
    let mut at = [0u64; 8];
    for (row, at) in at.iter_mut().enumerate() {
        let address = lane_address(c, i, 8 * n + row, i.imm as i64);
        *at = reach(c, i, address, 16, access)?;
    }
    Ok(at)
}

pub(super) fn count(i: &Inst) -> usize {
    (i.aux >> super::memory::COUNT_SHIFT & 15) as usize
}

/// `ldmatrix`: matrices of 8 by 8 halves into `d`, `b`, `c` and `e`.
pub(crate) fn load_rows(c: &mut Ctx, i: &Inst) -> Flow {
    if !gathered(c) {
        return Flow::Gather;
    }
    // A destination may be the address.
    let mut matrices = [[[0u16; 8]; 8]; 4];
    for (n, matrix) in matrices.iter_mut().enumerate().take(count(i)) {
        let at = match rows(c, i, n, Access::Read) {
            Ok(at) => at,
            Err(stop) => return failed(c, stop),
        };
        for (row, at) in matrix.iter_mut().zip(at) {
            for (column, value) in row.iter_mut().enumerate() {
                *value = c.peek::<u16>(at + 2 * column as u64);
            }
        }
    }
    for (slot, matrix) in [i.d, i.b, i.c, i.e].into_iter().zip(&matrices).take(count(i)) {
        to_register(c, i, slot, matrix);
    }
    Flow::Next
}

/// `stmatrix`.
pub(crate) fn store_rows(c: &mut Ctx, i: &Inst) -> Flow {
    if !gathered(c) {
        return Flow::Gather;
    }
    c.polls = 0;
    for (n, slot) in [i.d, i.b, i.c, i.e].into_iter().take(count(i)).enumerate() {
        let matrix = from_register(c, i, slot);
        let at = match rows(c, i, n, Access::Write) {
            Ok(at) => at,
            Err(stop) => return failed(c, stop),
        };
        for (row, at) in matrix.iter().zip(at) {
            for (column, value) in row.iter().enumerate() {
                c.poke(at + 2 * column as u64, *value);
            }
        }
    }
    Flow::Next
}

/// `movmatrix.trans`.
pub(crate) fn transpose(c: &mut Ctx, i: &Inst) -> Flow {
    if !gathered(c) {
        return Flow::Gather;
    }
    let matrix = from_register(c, i, i.a);
    let plain = Inst { aux: 0, ..*i };
    to_register(c, &plain, i.d, &matrix);
    Flow::Next
}
