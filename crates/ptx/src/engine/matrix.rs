//! `mma` and `wmma.mma`: `d = a * b + c` over the registers of a warp.
//!
//! Products of small floats are exact in f64, sums are made there and rounded once: at least as exact as the ISA asks.

use super::ctx::{Ctx, FULL};
use super::fragment::{Fragment, MOST, Number};
use super::half::{Binary16, Brain16, Format, narrow};
use super::small_float;
use crate::inst::{Flow, Inst, vectorised};
use crate::rounding::{self, Mode};

/// One instruction's matrices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Multiplication {
    pub a: Fragment,
    pub b: Fragment,
    pub c: Fragment,
    pub d: Fragment,
    /// Of whole numbers: sums are clamped, and wrap otherwise.
    pub saturate: bool,
    /// Of bits: `.and.popc`, and `.xor.popc` otherwise.
    pub and: bool,
    /// Of `.f64`.
    pub rounding: Mode,
}

/// The most elements of A or B, and of C.
const MOST_ELEMENTS: usize = 16 * 64;
const MOST_SUMS: usize = 256;
/// The most columns of B.
const MOST_COLUMNS: usize = 32;

/// Lanes of each of the four matrices of `mma.m8n8k4`.
const QUAD: u32 = 0x000f_000f;

/// The canonical NaN of `.f32`.
const NAN: u64 = 0x7fff_ffff;

/// Every lane takes part: those that have not come are waited for.
pub(super) fn gathered(c: &mut Ctx) -> bool {
    if c.live & !c.mask() != 0 {
        c.members = FULL;
        return false;
    }
    true
}

/// Copies `N` lists of slots, as long as `counts` says, from the code's.
pub(super) fn slots<const N: usize>(c: &Ctx, i: &Inst, counts: [u32; N]) -> [[u32; MOST]; N] {
    let list = &c.launch().code().slots;
    let mut at = i.e as usize;
    counts.map(|count| {
        let mut out = [0; MOST];
        out[..count as usize].copy_from_slice(&list[at..at + count as usize]);
        at += count as usize;
        out
    })
}

/// How numbers are multiplied and summed.
pub(crate) trait Arithmetic {
    fn multiply(c: &mut Ctx, m: &Multiplication, slots: &[[u32; MOST]; 4], lanes: u32);
}

#[inline(always)]
fn run<A: Arithmetic>(c: &mut Ctx, i: &Inst) -> Flow {
    if !gathered(c) {
        return Flow::Gather;
    }
    let m = c.launch().code().matrices[i.imm as usize];
    // As the list has them.
    let slots = slots(c, i, [&m.d, &m.a, &m.b, &m.c].map(|f| f.registers));
    if m.a.quads.is_some() {
        for quad in 0..4 {
            A::multiply(c, &m, &slots, QUAD << (4 * quad));
        }
    } else {
        A::multiply(c, &m, &slots, FULL);
    }
    Flow::Next
}

vectorised!(multiply, run, Arithmetic);

/// The value of a float that f32 can hold.
#[inline(always)]
fn float(number: Number, bits: u64) -> f64 {
    match number {
        Number::F16 => Binary16::widen(bits as u16),
        Number::Bf16 => Brain16::widen(bits as u16),
        // The lowest 13 bits of `.tf32` are not looked at.
        Number::Tf32 => f64::from(f32::from_bits(bits as u32 & !0x1fff)),
        Number::E4m3 => Binary16::widen(small_float::decode(bits as u32, 0) as u16),
        Number::E5m2 => Binary16::widen(small_float::decode(bits as u32, small_float::E5M2) as u16),
        Number::F64 => f64::from_bits(bits),
        _ => f64::from(f32::from_bits(bits as u32)),
    }
}

#[inline(always)]
fn take_floats(c: &Ctx, f: &Fragment, slots: &[u32], lanes: u32, out: &mut [f64]) {
    let columns = f.columns as usize;
    f.each(c, slots, lanes, |row, column, bits| {
        out[row * columns + column] = float(f.number, bits);
    });
}

/// Floats of 32 bits and less.
pub(crate) struct Floats;

impl Arithmetic for Floats {
    #[inline(always)]
    fn multiply(c: &mut Ctx, m: &Multiplication, slots: &[[u32; MOST]; 4], lanes: u32) {
        let (mut a, mut b) = ([0f64; MOST_ELEMENTS], [0f64; MOST_ELEMENTS]);
        let mut sums = [0f64; MOST_SUMS];
        take_floats(c, &m.a, &slots[1], lanes, &mut a);
        take_floats(c, &m.b, &slots[2], lanes, &mut b);
        take_floats(c, &m.c, &slots[3], lanes, &mut sums);
        let (depth, columns) = (m.a.columns as usize, m.b.columns as usize);
        for (row, sums) in a.chunks_exact(depth).zip(sums.chunks_exact_mut(columns)) {
            for (x, others) in row.iter().zip(b.chunks_exact(columns)) {
                for (sum, y) in sums.iter_mut().zip(others) {
                    *sum += x * y;
                }
            }
        }
        m.d.fill(c, &slots[0][..m.d.registers as usize], lanes, |row, column| {
            let sum = sums[row * columns + column];
            match m.d.number {
                Number::F16 => u64::from(narrow::<Binary16>(sum)),
                _ if sum.is_nan() => NAN,
                _ => u64::from((sum as f32).to_bits()),
            }
        });
    }
}

/// `.f64`: a fused multiply-add a step, in the order of K.
pub(crate) struct Doubles;

impl Arithmetic for Doubles {
    #[inline(always)]
    fn multiply(c: &mut Ctx, m: &Multiplication, slots: &[[u32; MOST]; 4], lanes: u32) {
        let (mut a, mut b) = ([0f64; MOST_SUMS], [0f64; MOST_SUMS]);
        let mut sums = [0f64; MOST_SUMS];
        take_floats(c, &m.a, &slots[1], lanes, &mut a);
        take_floats(c, &m.b, &slots[2], lanes, &mut b);
        take_floats(c, &m.c, &slots[3], lanes, &mut sums);
        let (depth, columns) = (m.a.columns as usize, m.b.columns as usize);
        for (row, sums) in a.chunks_exact(depth).zip(sums.chunks_exact_mut(columns)) {
            for (x, others) in row.iter().zip(b.chunks_exact(columns)) {
                for (sum, y) in sums.iter_mut().zip(others) {
                    *sum = match m.rounding {
                        Mode::Nearest => x.mul_add(*y, *sum),
                        mode => {
                            let [x, y, sum] = [*x, *y, *sum].map(f64::to_bits);
                            f64::from_bits(rounding::fma(x, y, sum, rounding::F64, mode))
                        }
                    };
                }
            }
        }
        m.d.fill(c, &slots[0][..m.d.registers as usize], lanes, |row, column| {
            sums[row * columns + column].to_bits()
        });
    }
}

/// A whole number of 8 or 4 bits.
#[inline(always)]
fn integer(number: Number, bits: u64) -> i32 {
    match number {
        Number::S8 => i32::from(bits as i8),
        Number::S4 => (bits as i32) << 28 >> 28,
        _ => bits as i32,
    }
}

#[inline(always)]
fn take_integers(c: &Ctx, f: &Fragment, slots: &[u32], lanes: u32, out: &mut [i32]) {
    let columns = f.columns as usize;
    f.each(c, slots, lanes, |row, column, bits| {
        out[row * columns + column] = integer(f.number, bits);
    });
}

/// `c` plus a sum of products, which is small.
#[inline(always)]
fn summed(m: &Multiplication, c: i32, products: i32) -> u64 {
    let sum = if m.saturate {
        c.saturating_add(products)
    } else {
        c.wrapping_add(products)
    };
    u64::from(sum as u32)
}

/// Whole numbers of 8 and 4 bits.
pub(crate) struct Integers;

impl Arithmetic for Integers {
    #[inline(always)]
    fn multiply(c: &mut Ctx, m: &Multiplication, slots: &[[u32; MOST]; 4], lanes: u32) {
        let (mut a, mut b) = ([0i32; MOST_ELEMENTS], [0i32; MOST_ELEMENTS]);
        let (mut addends, mut sums) = ([0i32; MOST_SUMS], [0i32; MOST_SUMS]);
        take_integers(c, &m.a, &slots[1], lanes, &mut a);
        take_integers(c, &m.b, &slots[2], lanes, &mut b);
        take_integers(c, &m.c, &slots[3], lanes, &mut addends);
        let (depth, columns) = (m.a.columns as usize, m.b.columns as usize);
        for (row, sums) in a.chunks_exact(depth).zip(sums.chunks_exact_mut(columns)) {
            for (x, others) in row.iter().zip(b.chunks_exact(columns)) {
                for (sum, y) in sums.iter_mut().zip(others) {
                    *sum += x * y;
                }
            }
        }
        m.d.fill(c, &slots[0][..m.d.registers as usize], lanes, |row, column| {
            let at = row * columns + column;
            summed(m, addends[at], sums[at])
        });
    }
}

/// Single bits: what is counted is where both are set, or where they differ.
pub(crate) struct SingleBits;

impl Arithmetic for SingleBits {
    #[inline(always)]
    fn multiply(c: &mut Ctx, m: &Multiplication, slots: &[[u32; MOST]; 4], lanes: u32) {
        // Words of 32 bits along K: by row of A, by column of B.
        let words = m.a.columns as usize / 32;
        let mut of_a = [0u32; 16 * 8];
        let mut of_b = [0u32; MOST_COLUMNS * 8];
        let mut addends = [0i32; MOST_SUMS];
        for (register, slot) in slots[1][..m.a.registers as usize].iter().enumerate() {
            for lane in super::ctx::Bits(lanes) {
                let (row, bit) = m.a.place(lane as u32, register as u32, 0);
                of_a[row as usize * words + bit as usize / 32] = c.lane(*slot, lane);
            }
        }
        for (register, slot) in slots[2][..m.b.registers as usize].iter().enumerate() {
            for lane in super::ctx::Bits(lanes) {
                let (bit, column) = m.b.place(lane as u32, register as u32, 0);
                of_b[column as usize * words + bit as usize / 32] = c.lane(*slot, lane);
            }
        }
        take_integers(c, &m.c, &slots[3], lanes, &mut addends);
        let columns = m.b.columns as usize;
        m.d.fill(c, &slots[0][..m.d.registers as usize], lanes, |row, column| {
            let pairs = of_a[row * words..][..words]
                .iter()
                .zip(&of_b[column * words..][..words]);
            let counted: u32 = pairs
                .map(|(x, y)| if m.and { x & y } else { x ^ y }.count_ones())
                .sum();
            summed(m, addends[row * columns + column], counted as i32)
        });
    }
}
