//! `ld`, `st`, `atom`, `red`, prefetches.

use super::{B, C, D, Decoded, Decoder, E, Home, Refusal, V};
use crate::code::Const;
use crate::engine::atomics;
use crate::engine::control::nop;
use crate::engine::ctx::SITES;
use crate::engine::memory::{self, load, param_load, param_store, store};
use crate::engine::watch::{Order, Seen};
use crate::inst::Exec;
use crate::parse::ast::Operand;
use crate::types::Ty;

/// A memory operand, decoded.
pub(super) struct Address {
    pub base: V,
    pub offset: i64,
    /// Space and flags for `Inst::aux`.
    pub aux: u32,
}

impl<'a> Decoder<'_, 'a> {
    pub(super) fn memory_access(&mut self) -> Decoded {
        match self.at.op[0] {
            "ld" | "ldu" => self.load(),
            "st" => self.store(),
            "atom" | "red" => self.atomic(),
            _ => {
                self.emit(nop, V::None, [V::None; 3], 0);
                Ok(())
            }
        }
    }

    pub(super) fn memory_space(&self) -> u32 {
        for m in &self.mods {
            match m.split("::").next().unwrap_or("") {
                "global" | "const" => return memory::GLOBAL,
                "shared" => return memory::SHARED,
                "local" => return memory::LOCAL,
                "param" => return memory::PARAM,
                _ => {}
            }
        }
        memory::GENERIC
    }

    /// How the access is ordered, for those who watch.
    fn order(&self) -> Order {
        let acquire = self.has("acquire") || self.has("acq_rel");
        let release = self.has("release") || self.has("acq_rel");
        let relaxed = ["volatile", "relaxed", "mmio"].iter().any(|m| self.has(m));
        Order {
            strong: acquire || release || relaxed,
            acquire,
            release,
            compares: false,
        }
    }

    fn polling(&self) -> u32 {
        let waits = ["volatile", "relaxed", "acquire", "mmio"]
            .iter()
            .any(|m| self.has(m));
        if waits { memory::POLL } else { 0 }
    }

    /// Where an instruction at this address remembers its last range: all at the same register remember one.
    fn site_at(&mut self, base: V) -> u32 {
        let V::Reg(register) = base else {
            return self.site();
        };
        if let Some(site) = self.sites.get(&register) {
            return *site;
        }
        let site = self.site();
        self.sites.insert(register, site);
        site
    }

    /// Where the next memory instruction remembers its last range.
    pub(super) fn site(&mut self) -> u32 {
        let site = self.code.sites % SITES as u32;
        self.code.sites = self.code.sites.wrapping_add(1);
        site << memory::SITE_SHIFT
    }

    fn vector(&self) -> u32 {
        if self.has("v8") {
            8
        } else if self.has("v4") {
            4
        } else if self.has("v2") {
            2
        } else {
            1
        }
    }

    /// The operand `n` as a memory operand: what the address counts from, and the bytes from there. `array[n]` is one
    /// as `[array+n]` is; an index in a register is left to [`Self::address`].
    fn memory_operand(&self, n: usize) -> Decoded<(Operand<'a>, i64)> {
        let without_offset = |array: Operand<'a>| match array {
            Operand::Var(variable, offset) => (Operand::Var(variable, 0), offset),
            Operand::Name(name, offset) => (Operand::Name(name, 0), offset),
            other => (other, 0),
        };
        match self.operand(n)?.clone() {
            Operand::Address(base, offset) => Ok((*base, offset)),
            Operand::ElementAt(array) => Ok(without_offset(*array)),
            Operand::Element(array, register, bytes) => {
                let (array, offset) = without_offset(*array);
                Ok((Operand::Element(Box::new(array), register, bytes), offset))
            }
            _ => Err("expected an address in brackets".into()),
        }
    }

    /// The address of an array's element whose index is in a register, for the instruction that follows. No other
    /// instruction is in between, so the register that nothing else reads can hold it.
    pub(super) fn element(&mut self, d: V, array: V, register: u32, bytes: u64) -> Decoded {
        let ty = self.register_type(register);
        let flags = match ty {
            Ty::U64 | Ty::S64 | Ty::B64 => 0,
            Ty::U32 | Ty::B32 => memory::NARROW,
            Ty::S32 => memory::NARROW | memory::SIGNED,
            _ => return Err("an index is a whole number of 32 or 64 bits".into()),
        };
        let draft = self.emit(memory::element_address, d, [V::Reg(register), array, V::None], D);
        draft.imm = bytes;
        draft.aux = flags;
        Ok(())
    }

    /// The address in operand `n`, for an access in `space`.
    pub(super) fn address(&mut self, n: usize, space: u32) -> Decoded<Address> {
        let (base, offset) = self.memory_operand(n)?;
        if let Operand::Element(array, register, bytes) = base {
            let array = self.address_of(*array, offset, space)?;
            self.element(V::Trash, array.base, register, bytes)?;
            return Ok(Address {
                base: V::Trash,
                ..array
            });
        }
        self.address_of(base, offset, space)
    }

    fn address_of(&mut self, base: Operand<'a>, offset: i64, space: u32) -> Decoded<Address> {
        let mut aux = space;
        let base = match base {
            Operand::Reg(register) => {
                let ty = self.register_type(register);
                match ty.bytes() {
                    8 => {}
                    4 => aux |= memory::NARROW,
                    _ => return Err("an address is 32 or 64 bits wide".into()),
                }
                V::Reg(register)
            }
            Operand::Int(value) => self.bits(value, true),
            Operand::Var(index, _) => match self.homes[index as usize] {
                Home::Local(at) if !self.function.kernel => {
                    aux |= memory::FRAME;
                    self.bits(u64::from(at), true)
                }
                Home::Register(register) => V::Reg(register),
                _ => self.source_of(&Operand::Var(index, 0), Ty::U64)?,
            },
            other => self.source_of(&other, Ty::U64)?,
        };
        Ok(Address { base, offset, aux })
    }

    fn load(&mut self) -> Decoded {
        let ty = self.ty()?;
        if ty == Ty::B128 || self.has("v8") || ty == Ty::Pred {
            return Err(Refusal::Unsupported);
        }
        // An eviction policy may follow the address: it changes nothing here.
        if !matches!(self.at.operands.len(), 2 | 3) {
            return Err("expected a destination and an address".into());
        }
        let space = self.memory_space();
        let count = self.vector();
        let targets = match self.operand(0)?.clone() {
            Operand::Vector(list) => list,
            one => vec![one],
        };
        if targets.len() != count as usize {
            return Err(Refusal::Bad(format!(
                "the load gives {count} values to {} registers",
                targets.len()
            )));
        }
        let mut places = [V::None; 4];
        let mut wide = None;
        for (place, operand) in places.iter_mut().zip(&targets) {
            if matches!(operand, Operand::Sink) {
                continue;
            }
            let (v, w) = self.loose_target(operand, ty)?;
            if wide.is_some_and(|before| before != w) {
                return Err("the destinations differ in width".into());
            }
            wide = Some(w);
            *place = v;
        }
        let wide = wide.unwrap_or(ty.bytes() == 8);
        for place in places.iter_mut().take(count as usize).filter(|p| **p == V::None) {
            *place = V::Trash;
        }
        if space == memory::PARAM
            && let (Operand::Var(index, _), offset) = self.memory_operand(1)?
        {
            return self.load_param(index, offset, ty, wide, &places[..count as usize]);
        }
        let exec = load_exec(ty, wide, self);
        let address = self.address(1, space)?;
        let polling = self.polling();
        let (element, order) = (ty.bytes() as u8, self.order());
        let site = self.site_at(address.base);
        let draft = self.emit(
            exec,
            places[0],
            [address.base, places[1], places[2]],
            D | B | C | E,
        );
        draft.e = places[3];
        draft.imm = address.offset as u64;
        draft.aux = address.aux | polling | site | count << memory::COUNT_SHIFT;
        draft.seen = Seen::Load { element, order };
        Ok(())
    }

    /// `ld.param` by name: a launch constant in a kernel, the register area in a function.
    fn load_param(&mut self, index: u32, offset: i64, ty: Ty, wide: bool, places: &[V]) -> Decoded {
        let size = self.body.variables[index as usize].size;
        let end = offset.checked_add(i64::from(ty.bytes()) * places.len() as i64);
        if offset < 0 || end.is_none_or(|e| e as u64 > size) {
            return Err("the access reaches beyond the parameter".into());
        }
        match self.homes[index as usize] {
            Home::KernelParam(at) => {
                for (n, place) in places.iter().enumerate() {
                    let offset = at + offset as u32 + n as u32 * ty.bytes();
                    let value = Const::Param {
                        offset,
                        bytes: ty.bytes() as u8,
                        signed: ty.signed(),
                    };
                    let from = self.constant(value, wide);
                    self.copy(*place, from, wide);
                }
                Ok(())
            }
            Home::Memory(n) => {
                let exec = param_load_exec(ty, wide);
                self.param_access(exec, n, offset, places, D | B | C | E);
                Ok(())
            }
            Home::Register(register) => {
                self.copy(places[0], V::Reg(register), wide);
                Ok(())
            }
            _ => Err("not a parameter".into()),
        }
    }

    fn param_access(&mut self, exec: Exec, memory_index: u32, offset: i64, places: &[V], writes: u8) {
        let stride = self.memory[memory_index as usize];
        let at = |n: usize| places.get(n).copied().unwrap_or(V::None);
        let draft = self.emit(exec, at(0), [V::Memory(memory_index), at(1), at(2)], writes);
        draft.e = at(3);
        draft.imm = u64::from(stride) << 32 | offset as u64;
        draft.aux = (places.len() as u32) << memory::COUNT_SHIFT;
    }

    fn store(&mut self) -> Decoded {
        let ty = self.ty()?;
        if ty == Ty::B128 || self.has("v8") || ty == Ty::Pred || self.has("async") || self.has("bulk") {
            return Err(Refusal::Unsupported);
        }
        if !matches!(self.at.operands.len(), 2 | 3) {
            return Err("expected an address and a source".into());
        }
        let space = self.memory_space();
        let count = self.vector();
        let sources = match self.operand(1)?.clone() {
            Operand::Vector(list) => list,
            one => vec![one],
        };
        if sources.len() != count as usize {
            return Err(Refusal::Bad(format!(
                "the store takes {count} values from {} operands",
                sources.len()
            )));
        }
        // One width for all: that of the registers among them.
        let wide = ty.bytes() == 8
            || sources
                .iter()
                .any(|s| matches!(s, Operand::Reg(r) if self.register_type(*r).bytes() == 8));
        let mut places = [V::None; 4];
        for (place, operand) in places.iter_mut().zip(&sources) {
            let (v, w) = match operand {
                Operand::Reg(_) => self.loose_source(operand, ty)?,
                _ if wide && ty.float() => (self.source_of(operand, ty)?, ty.bytes() == 8),
                _ if wide => (self.source_of(operand, Ty::U64)?, true),
                _ => (self.source_of(operand, ty)?, false),
            };
            if w != wide {
                return Err("the sources differ in width".into());
            }
            *place = v;
        }
        if space == memory::PARAM
            && let (Operand::Var(index, _), offset) = self.memory_operand(0)?
        {
            let size = self.body.variables[index as usize].size;
            let end = offset.checked_add(i64::from(ty.bytes() * count));
            if offset < 0 || end.is_none_or(|e| e as u64 > size) {
                return Err("the access reaches beyond the parameter".into());
            }
            return match self.homes[index as usize] {
                Home::Memory(n) => {
                    let exec = param_store_exec(ty, wide);
                    self.param_access(exec, n, offset, &places[..count as usize], 0);
                    Ok(())
                }
                Home::Register(register) => {
                    self.copy(V::Reg(register), places[0], wide);
                    Ok(())
                }
                _ => Err("a kernel's parameters cannot be written".into()),
            };
        }
        if space == memory::PARAM || self.has("const") {
            return Err("this space cannot be written".into());
        }
        let exec = store_exec(ty, wide, self);
        let order = self.order();
        let address = self.address(0, space)?;
        let site = self.site_at(address.base);
        let draft = self.emit(exec, places[0], [address.base, places[1], places[2]], 0);
        draft.e = places[3];
        draft.imm = address.offset as u64;
        draft.aux = address.aux | site | count << memory::COUNT_SHIFT;
        draft.seen = Seen::Store {
            element: ty.bytes() as u8,
            wide,
            order,
        };
        Ok(())
    }

    /// `red.global.v2.f32.add` and its like: each element by itself, as the ISA has it.
    fn vector_reduction(&mut self, ty: Ty, space: u32, count: u32) -> Decoded {
        let op = ["add", "min", "max"].into_iter().find(|op| self.has(op));
        let (Some(exec), "red", memory::GLOBAL | memory::GENERIC, true) = (
            op.and_then(|op| atomics::pick(op, ty)),
            self.at.op[0],
            space,
            ty == Ty::F32 && count <= 4,
        ) else {
            return Err(Refusal::Unsupported);
        };
        if !matches!(self.at.operands.len(), 2 | 3) {
            return Err("expected an address and a vector".into());
        }
        let Operand::Vector(sources) = self.operand(1)?.clone() else {
            return Err("expected a vector".into());
        };
        if sources.len() != count as usize {
            return Err("the vector's length is not the instruction's".into());
        }
        for (n, source) in sources.iter().enumerate() {
            // Checked for each element; the first of a misaligned vector is misaligned too.
            let address = self.address(0, space)?;
            let b = self.source_of(source, ty)?;
            let site = self.site_at(address.base);
            let draft = self.emit(exec, V::None, [address.base, b, V::None], 0);
            draft.imm = address.offset.wrapping_add(n as i64 * i64::from(ty.bytes())) as u64;
            draft.aux = address.aux | site | 1 << memory::COUNT_SHIFT;
            draft.seen = Seen::Atomic {
                element: ty.bytes() as u8,
                reads: true,
                order: Order::RELAXED,
            };
        }
        Ok(())
    }

    fn atomic(&mut self) -> Decoded {
        let returns = self.at.op[0] == "atom";
        let first = usize::from(returns);
        let ty = self.ty()?;
        let space = self.memory_space();
        let count = self.vector();
        if count != 1 {
            return self.vector_reduction(ty, space, count);
        }
        if !matches!(space, memory::GLOBAL | memory::SHARED | memory::GENERIC) || self.has("async") {
            return Err(Refusal::Unsupported);
        }
        const OPS: [&str; 11] = [
            "add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas", "sub",
        ];
        let Some(op) = OPS.iter().find(|o| self.has(o)) else {
            return Err("no atomic operation is named".into());
        };
        let Some(exec) = atomics::pick(op, ty) else {
            return Err(Refusal::Unsupported);
        };
        let sources = 1 + usize::from(*op == "cas");
        let given = self.at.operands.len();
        // A cache policy may follow.
        if given < first + 1 + sources || given > first + 2 + sources {
            return Err(Refusal::Bad(format!(
                "expected {} operands, found {given}",
                first + 1 + sources
            )));
        }
        let d = if returns { self.target(0, ty)? } else { V::None };
        let address = self.address(first, space)?;
        let b = self.source(first + 1, ty)?;
        let c = if *op == "cas" {
            self.source(first + 2, ty)?
        } else {
            V::None
        };
        let site = self.site_at(address.base);
        let order = self.order();
        let draft = self.emit(exec, d, [address.base, b, c], D);
        draft.imm = address.offset as u64;
        draft.aux = address.aux | site | 1 << memory::COUNT_SHIFT;
        draft.seen = Seen::Atomic {
            element: ty.bytes() as u8,
            reads: *op != "exch",
            order: Order {
                strong: true,
                compares: *op == "cas",
                ..order
            },
        };
        Ok(())
    }
}

/// The row of `memory!` for a type and a register width.
macro_rules! by_type {
    ($pick:ident, $ty:expr, $wide:expr, ($($set:expr)?)) => {
        match ($ty, $wide) {
            (Ty::U8 | Ty::B8, false) => $pick::<memory::M8>($($set)?),
            (Ty::S8, false) => $pick::<memory::M8S>($($set)?),
            (Ty::U16 | Ty::B16 | Ty::F16 | Ty::Bf16, false) => $pick::<memory::M16>($($set)?),
            (Ty::S16, false) => $pick::<memory::M16S>($($set)?),
            (Ty::U8 | Ty::B8, true) => $pick::<memory::M8To64>($($set)?),
            (Ty::S8, true) => $pick::<memory::M8STo64>($($set)?),
            (Ty::U16 | Ty::B16 | Ty::F16 | Ty::Bf16, true) => $pick::<memory::M16To64>($($set)?),
            (Ty::S16, true) => $pick::<memory::M16STo64>($($set)?),
            (Ty::B64 | Ty::U64 | Ty::S64 | Ty::F64, _) => $pick::<memory::M64>($($set)?),
            (Ty::S32, true) => $pick::<memory::M32STo64>($($set)?),
            (_, true) => $pick::<memory::M32To64>($($set)?),
            (_, false) => $pick::<memory::M32>($($set)?),
        }
    };
}

fn load_exec(ty: Ty, wide: bool, d: &Decoder<'_, '_>) -> Exec {
    by_type!(load, ty, wide, (d.set))
}

fn store_exec(ty: Ty, wide: bool, d: &Decoder<'_, '_>) -> Exec {
    by_type!(store, ty, wide, (d.set))
}

fn param_load_exec(ty: Ty, wide: bool) -> Exec {
    by_type!(param_load, ty, wide, ())
}

fn param_store_exec(ty: Ty, wide: bool) -> Exec {
    by_type!(param_store, ty, wide, ())
}
