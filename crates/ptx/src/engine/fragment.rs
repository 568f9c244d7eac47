//! How a warp's lanes hold a matrix: the fragments of `mma` and `wmma`.
//!
//! The ISA's tables of `mma` follow one rule. Lane `l` is number `l % 4` of group `l / 4`. Of A and B a register holds
//! consecutive elements along K, of C and D along N; the registers go over blocks of eight groups by four lanes. The
//! fragments of `wmma` are open in the ISA, and follow the same rule here.

use super::ctx::Ctx;

/// What an element of a matrix is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    F16,
    Bf16,
    Tf32,
    F32,
    F64,
    E4m3,
    E5m2,
    S32,
    S8,
    U8,
    S4,
    U4,
    B1,
}

impl Number {
    /// By its name in an opcode.
    pub fn read(word: &str) -> Option<Number> {
        use Number::*;
        Some(match word {
            "f16" => F16,
            "bf16" => Bf16,
            "tf32" => Tf32,
            "f32" => F32,
            "f64" => F64,
            "e4m3" => E4m3,
            "e5m2" => E5m2,
            "s32" => S32,
            "s8" => S8,
            "u8" => U8,
            "s4" => S4,
            "u4" => U4,
            "b1" => B1,
            _ => return None,
        })
    }

    pub fn bits(self) -> u32 {
        use Number::*;
        match self {
            F64 => 64,
            F32 | Tf32 | S32 => 32,
            F16 | Bf16 => 16,
            S8 | U8 | E4m3 | E5m2 => 8,
            S4 | U4 => 4,
            B1 => 1,
        }
    }

    /// Bits of a register that holds it.
    pub fn register_bits(self) -> u32 {
        self.bits().max(32)
    }
}

/// Which operand of `d = a * b + c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// M rows, K columns.
    A,
    /// K rows, N columns.
    B,
    /// M rows, N columns: C and D.
    C,
}

/// The most registers of one fragment.
pub(crate) const MOST: usize = 8;

/// A matrix over the registers of a warp.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fragment {
    pub part: Part,
    pub number: Number,
    pub rows: u32,
    pub columns: u32,
    /// `mma.m8n8k4` of `.f16`: four matrices, each over eight lanes. Where the memory has the other operand's order
    /// (rows of B, columns of A) the lanes' elements are the transpose's.
    pub quads: Option<bool>,
    /// Registers a lane; `wmma` has matrices of `.f16` twice and more.
    pub registers: u32,
}

impl Fragment {
    /// Elements in a register.
    pub fn elements(&self) -> u32 {
        self.number.register_bits() / self.number.bits()
    }

    /// Registers that a lane has if each element is there once.
    pub fn distinct(&self) -> u32 {
        let lanes = if self.quads.is_some() { 8 } else { 32 };
        self.rows * self.columns / (lanes * self.elements())
    }

    /// Row and column of an element of a lane's register.
    #[inline(always)]
    pub fn place(&self, lane: u32, register: u32, element: u32) -> (u32, u32) {
        if let Some(transposed) = self.quads {
            return self.place_in_quad(lane, register * self.elements() + element, transposed);
        }
        let (group, place) = (lane / 4, lane % 4);
        let n = self.elements();
        let register = register % self.distinct();
        match self.part {
            Part::A => {
                let high = self.rows / 8;
                let along = place * n + element + 4 * n * (register / high);
                (group + 8 * (register % high), along)
            }
            Part::B => {
                let high = self.rows / (4 * n);
                let along = place * n + element + 4 * n * (register % high);
                (along, group + 8 * (register / high))
            }
            Part::C => {
                let at = register * n + element;
                let (block, high) = (at / 2, self.rows / 8);
                (
                    group + 8 * (block % high),
                    place * 2 + at % 2 + 8 * (block / high),
                )
            }
        }
    }

    fn place_in_quad(&self, lane: u32, at: u32, transposed: bool) -> (u32, u32) {
        let upper = if lane < 16 { 0 } else { 4 };
        match self.part {
            Part::A if transposed => (at + upper, lane % 4),
            Part::A => (lane % 4 + upper, at),
            Part::B if transposed => (lane % 4, at + upper),
            Part::B => (at, lane % 4 + upper),
            Part::C if self.number == Number::F16 => (lane % 4 + upper, at),
            Part::C => ((lane & 1) + (at & 2) + upper, (at & 4) + (lane & 2) + (at & 1)),
        }
    }

    /// Calls `f` with row, column and bits of each element, of the lanes in `lanes`. `slots` are its registers.
    #[inline(always)]
    pub fn each(&self, c: &Ctx, slots: &[u32], lanes: u32, mut f: impl FnMut(usize, usize, u64)) {
        let (bits, n) = (self.number.bits(), self.elements());
        for (register, slot) in slots.iter().take(self.distinct() as usize).enumerate() {
            for lane in super::ctx::Bits(lanes) {
                let word = if bits == 64 {
                    c.lane::<u64>(*slot, lane)
                } else {
                    u64::from(c.lane::<u32>(*slot, lane))
                };
                for element in 0..n {
                    let (row, column) = self.place(lane as u32, register as u32, element);
                    f(
                        row as usize,
                        column as usize,
                        word >> (element * bits) & u64::MAX >> (64 - bits),
                    );
                }
            }
        }
    }

    /// Writes the registers of the lanes in `lanes` with what `f` says of a row and a column.
    #[inline(always)]
    pub fn fill(&self, c: &mut Ctx, slots: &[u32], lanes: u32, f: impl Fn(usize, usize) -> u64) {
        let (bits, n) = (self.number.bits(), self.elements());
        for (register, slot) in slots.iter().enumerate() {
            for lane in super::ctx::Bits(lanes) {
                let mut word = 0;
                for element in 0..n {
                    let (row, column) = self.place(lane as u32, register as u32, element);
                    word |= f(row as usize, column as usize) << (element * bits);
                }
                if bits == 64 {
                    c.put_lane(*slot, lane, word);
                } else {
                    c.put_lane(*slot, lane, word as u32);
                }
            }
        }
    }
}
