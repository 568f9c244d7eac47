//! `mma`, `wmma`, `ldmatrix`, `stmatrix`, `movmatrix`.

use super::{B, C, D, Decoded, Decoder, E, Refusal, V};
use crate::engine::fragment::{Fragment, Number, Part};
use crate::engine::matrix::{Doubles, Floats, Integers, Multiplication, SingleBits, multiply};
use crate::engine::matrix_memory::{self, TRANSPOSE, Transfer};
use crate::engine::memory::{self, COUNT_SHIFT};
use crate::engine::watch::Seen;
use crate::inst::Exec;
use crate::parse::ast::Operand;
use crate::rounding::Mode;
use crate::types::Ty;

/// M, N and K.
type Shape = (u32, u32, u32);

/// The shapes of `mma` for a type of A and B.
fn shapes(number: Number) -> &'static [Shape] {
    use Number::*;
    match number {
        F16 => &[(8, 8, 4), (16, 8, 8), (16, 8, 16)],
        Bf16 => &[(16, 8, 8), (16, 8, 16)],
        Tf32 => &[(16, 8, 4), (16, 8, 8)],
        F64 => &[(8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)],
        E4m3 | E5m2 => &[(16, 8, 16), (16, 8, 32)],
        S8 | U8 => &[(8, 8, 16), (16, 8, 16), (16, 8, 32)],
        S4 | U4 => &[(8, 8, 32), (16, 8, 32), (16, 8, 64)],
        B1 => &[(8, 8, 128), (16, 8, 128), (16, 8, 256)],
        F32 | S32 => &[],
    }
}

/// The shapes of `wmma`.
fn wide_shapes(number: Number) -> &'static [Shape] {
    use Number::*;
    match number {
        F16 | Bf16 | S8 | U8 => &[(16, 16, 16), (8, 32, 16), (32, 8, 16)],
        Tf32 => &[(16, 16, 8)],
        F64 => &[(8, 8, 4)],
        S4 | U4 => &[(8, 8, 32)],
        B1 => &[(8, 8, 128)],
        _ => &[],
    }
}

/// The types that C and D may have beside a type of A and B.
fn sums(number: Number) -> &'static [Number] {
    use Number::*;
    match number {
        F16 | E4m3 | E5m2 => &[F16, F32],
        Bf16 | Tf32 => &[F32],
        F64 => &[F64],
        _ => &[S32],
    }
}

/// Types that A and B may have side by side.
fn agree(a: Number, b: Number) -> bool {
    use Number::*;
    a == b
        || matches!(
            (a, b),
            (S8, U8) | (U8, S8) | (S4, U4) | (U4, S4) | (E4m3, E5m2) | (E5m2, E4m3)
        )
}

fn shape(word: &str) -> Option<Shape> {
    let (m, rest) = word.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some((m.parse().ok()?, n.parse().ok()?, k.parse().ok()?))
}

fn fragment(part: Part, number: Number, (m, n, k): Shape) -> Fragment {
    let (rows, columns) = match part {
        Part::A => (m, k),
        Part::B => (k, n),
        Part::C => (m, n),
    };
    let mut fragment = Fragment {
        part,
        number,
        rows,
        columns,
        quads: None,
        registers: 0,
    };
    fragment.registers = fragment.distinct();
    fragment
}

/// As `wmma` has it: of `.f16` A and B are always eight registers.
fn wide_fragment(part: Part, number: Number, shape: Shape) -> Fragment {
    let mut fragment = fragment(part, number, shape);
    if part != Part::C && number == Number::F16 {
        fragment.registers = 8;
    }
    fragment
}

impl<'a> Decoder<'_, 'a> {
    pub(super) fn matrix(&mut self) -> Decoded {
        match (self.at.op[0], self.mods.first().copied()) {
            ("wmma", Some("load")) => self.wide_transfer(false),
            ("wmma", Some("store")) => self.wide_transfer(true),
            ("wmma", _) => self.multiply(true),
            ("mma", _) => self.multiply(false),
            ("ldmatrix", _) => self.rows(false),
            ("stmatrix", _) => self.rows(true),
            _ => self.transpose(),
        }
    }

    fn shape(&self) -> Decoded<Shape> {
        let found = self.mods.iter().find_map(|m| shape(m));
        found.ok_or_else(|| "the instruction names no shape".into())
    }

    fn numbers(&self) -> Vec<Number> {
        self.mods.iter().filter_map(|m| Number::read(m)).collect()
    }

    /// The registers of a fragment in operand `n`.
    fn registers(&mut self, n: usize, f: &Fragment, written: bool) -> Decoded<Vec<V>> {
        let operands = match self.operand(n)?.clone() {
            Operand::Vector(list) => list,
            one => vec![one],
        };
        if operands.len() != f.registers as usize {
            return Err(Refusal::Bad(format!(
                "the matrix has {} registers, {} are given",
                f.registers,
                operands.len()
            )));
        }
        let ty = if f.number == Number::F64 { Ty::F64 } else { Ty::B32 };
        operands
            .iter()
            .map(|operand| {
                if written {
                    self.target_of(operand, ty)
                } else {
                    self.source_of(operand, ty)
                }
            })
            .collect()
    }

    /// Gives the last draft a list of operands: those written, and then those read.
    pub(super) fn list(&mut self, written: Vec<V>, read: Vec<V>) {
        let registers = |list: &[V]| {
            let of = |v: &V| match v {
                V::Reg(register) => Some(*register),
                _ => None,
            };
            list.iter().filter_map(of).collect::<Vec<u32>>()
        };
        if let Some(draft) = self.drafts.last_mut() {
            draft.writes_more = registers(&written);
            draft.reads_more = registers(&read);
            draft.list = written;
            draft.list.extend(read);
        }
    }

    fn multiply(&mut self, wide: bool) -> Decoded {
        use Number::*;
        if self.mods.iter().any(|m| {
            m.starts_with("sp") || m.starts_with("kind") || m.contains("scale") || *m == "block_scale"
        }) {
            return Err(Refusal::Unsupported);
        }
        let shape = self.shape()?;
        // D, A, B, C; `wmma` of `.f16` names D and C.
        let (d, a, b, c) = match self.numbers()[..] {
            [d, a, b, c] => (d, a, b, c),
            [d, c] if wide => (d, F16, F16, c),
            _ => return Err("the instruction does not name its matrices' types".into()),
        };
        let known = if wide { wide_shapes(a) } else { shapes(a) };
        if known.is_empty() || !agree(a, b) || !sums(a).contains(&d) || !sums(a).contains(&c) {
            return Err("matrices of these types are not multiplied".into());
        }
        if !known.contains(&shape) {
            return Err("the types have no such shape".into());
        }
        let quads = !wide && a == F16 && shape == (8, 8, 4);
        let of = if wide { wide_fragment } else { fragment };
        let mut m = Multiplication {
            a: of(Part::A, a, shape),
            b: of(Part::B, b, shape),
            c: of(Part::C, c, shape),
            d: of(Part::C, d, shape),
            saturate: self.has("satfinite"),
            and: self.has("and"),
            rounding: self.rounding_mode().map_or(Mode::Nearest, |(mode, _)| mode),
        };
        let orders: Vec<bool> = self
            .mods
            .iter()
            .filter(|m| matches!(**m, "row" | "col"))
            .map(|m| *m == "row")
            .collect();
        let [a_by_rows, b_by_rows] = orders[..] else {
            return Err("the instruction does not name the order of A and B".into());
        };
        if quads {
            m.a.quads = Some(!a_by_rows);
            m.b.quads = Some(b_by_rows);
            (m.c.quads, m.d.quads) = (Some(false), Some(false));
            for f in [&mut m.a, &mut m.b, &mut m.c, &mut m.d] {
                f.registers = f.distinct();
            }
        } else if !wide && (!a_by_rows || b_by_rows) {
            return Err("the shape has A by rows and B by columns".into());
        }
        if m.saturate && matches!(a, F16 | Bf16 | Tf32 | F64 | E4m3 | E5m2) {
            return Err(Refusal::Unsupported);
        }
        self.expect_operands(4)?;
        let written = self.registers(0, &m.d, true)?;
        let mut read = self.registers(1, &m.a, false)?;
        read.extend(self.registers(2, &m.b, false)?);
        read.extend(self.registers(3, &m.c, false)?);
        let exec: Exec = match a {
            F64 => multiply::<Doubles>(self.set),
            S8 | U8 | S4 | U4 => multiply::<Integers>(self.set),
            B1 => multiply::<SingleBits>(self.set),
            _ => multiply::<Floats>(self.set),
        };
        self.code.matrices.push(m);
        let index = self.code.matrices.len() as u64 - 1;
        self.emit(exec, V::None, [V::None; 3], 0).imm = index;
        self.list(written, read);
        Ok(())
    }

    fn wide_transfer(&mut self, store: bool) -> Decoded {
        let (shape, numbers) = (self.shape()?, self.numbers());
        let [number] = numbers[..] else {
            return Err("the instruction does not name its matrix's type".into());
        };
        let part = match self.mods.get(1) {
            Some(&"a") if !store => Part::A,
            Some(&"b") if !store => Part::B,
            Some(&("c" | "d")) => Part::C,
            _ => return Err("the instruction does not name its matrix".into()),
        };
        let all = [
            Number::F16,
            Number::Bf16,
            Number::Tf32,
            Number::F64,
            Number::S8,
            Number::U8,
            Number::S4,
            Number::U4,
            Number::B1,
        ];
        let fits = |of: &Number| {
            wide_shapes(*of).contains(&shape)
                && if part == Part::C {
                    sums(*of).contains(&number)
                } else {
                    *of == number
                }
        };
        if !all.iter().any(fits) {
            return Err("the type has no such shape".into());
        }
        let by_rows = match (self.has("row"), self.has("col")) {
            (true, false) => true,
            (false, true) => false,
            _ => return Err("the instruction does not name the order in memory".into()),
        };
        // What shares a byte along K lies along K in memory.
        if number.bits() < 8 && by_rows != (part == Part::A) {
            return Err("the type has A by rows and B by columns".into());
        }
        let fragment = wide_fragment(part, number, shape);
        if !matches!(self.at.operands.len(), 2 | 3) {
            return Err("expected a matrix, an address and maybe a stride".into());
        }
        let (at, of) = if store { (0, 1) } else { (1, 0) };
        let registers = self.registers(of, &fragment, !store)?;
        let space = self.memory_space();
        if !matches!(space, memory::GLOBAL | memory::SHARED | memory::GENERIC) {
            return Err("the matrix is in global or shared memory".into());
        }
        let stride = if self.at.operands.len() == 3 {
            self.source(2, Ty::B32)?
        } else {
            V::None
        };
        let address = self.address(at, space)?;
        let site = self.site();
        self.code.transfers.push(Transfer {
            fragment,
            offset: address.offset,
            by_rows,
        });
        let index = self.code.transfers.len() as u64 - 1;
        let exec: Exec = if store {
            matrix_memory::store
        } else {
            matrix_memory::load
        };
        let draft = self.emit(exec, V::None, [address.base, stride, V::None], 0);
        draft.imm = index;
        draft.aux = address.aux | site;
        draft.seen = Seen::Matrix { store };
        if store {
            self.list(Vec::new(), registers);
        } else {
            self.list(registers, Vec::new());
        }
        Ok(())
    }

    /// `ldmatrix` and `stmatrix` of 8 by 8 halves.
    fn rows(&mut self, store: bool) -> Decoded {
        if !self.has("m8n8") || !self.has("b16") {
            return Err(Refusal::Unsupported);
        }
        let count: u32 = match () {
            () if self.has("x4") => 4,
            () if self.has("x2") => 2,
            () if self.has("x1") => 1,
            () => return Err("the instruction does not say how many matrices".into()),
        };
        self.expect_operands(2)?;
        let (at, of) = if store { (0, 1) } else { (1, 0) };
        let operands = match self.operand(of)?.clone() {
            Operand::Vector(list) => list,
            one => vec![one],
        };
        if operands.len() != count as usize {
            return Err(Refusal::Bad(format!(
                "{count} matrices in {} registers",
                operands.len()
            )));
        }
        let mut places = [V::None; 4];
        for (place, operand) in places.iter_mut().zip(&operands) {
            *place = if store {
                self.source_of(operand, Ty::B32)?
            } else {
                self.target_of(operand, Ty::B32)?
            };
        }
        let space = self.memory_space();
        if !matches!(space, memory::SHARED | memory::GENERIC) {
            return Err("the matrices are in shared memory".into());
        }
        let address = self.address(at, space)?;
        let site = self.site();
        let (exec, writes): (Exec, u8) = if store {
            (matrix_memory::store_rows, 0)
        } else {
            (matrix_memory::load_rows, D | B | C | E)
        };
        let transpose = if self.has("trans") { TRANSPOSE } else { 0 };
        let draft = self.emit(exec, places[0], [address.base, places[1], places[2]], writes);
        draft.e = places[3];
        draft.imm = address.offset as u64;
        draft.aux = address.aux | site | transpose | count << COUNT_SHIFT;
        draft.seen = Seen::Rows { store };
        Ok(())
    }

    fn transpose(&mut self) -> Decoded {
        if !self.has("m8n8") || !self.has("trans") || !self.has("b16") {
            return Err(Refusal::Unsupported);
        }
        self.expect_operands(2)?;
        let (d, a) = (self.target(0, Ty::B32)?, self.source(1, Ty::B32)?);
        self.emit(matrix_memory::transpose, d, [a, V::None, V::None], D)
            .aux = TRANSPOSE;
        Ok(())
    }
}
