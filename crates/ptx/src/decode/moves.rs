//! `mov`, `cvta`, `isspacep`.

use super::{B, C, D, Decoded, Decoder, E, Home, Refusal, V};
use crate::engine::map::moved;
use crate::engine::{memory, moves};
use crate::parse::ast::Operand;
use crate::types::Ty;

impl<'a> Decoder<'_, 'a> {
    pub(super) fn moves(&mut self) -> Decoded {
        match self.at.op[0] {
            "mov" => self.mov(),
            "cvta" => self.cvta(),
            _ => self.isspacep(),
        }
    }

    fn mov(&mut self) -> Decoded {
        self.expect_operands(2)?;
        let ty = self.ty()?;
        let (to, mut from) = (self.operand(0)?.clone(), self.operand(1)?.clone());
        if let Operand::ElementAt(array) = from {
            from = *array;
        }
        if let Operand::Element(array, register, bytes) = from {
            return self.move_element(&to, *array, register, bytes, ty);
        }
        match (&to, &from) {
            (Operand::Vector(elements), _) => return self.unpack(elements, &from, ty),
            (_, Operand::Vector(elements)) => return self.pack(&to, elements, ty),
            (_, Operand::Special(name)) => {
                let which = match *name {
                    "%clock" | "%clock64" => Some(moves::CLOCK),
                    "%clock_hi" => Some(moves::CLOCK_HI),
                    "%globaltimer" | "%globaltimer_lo" => Some(moves::GLOBAL_TIMER),
                    "%globaltimer_hi" => Some(moves::GLOBAL_TIMER_HI),
                    _ => None,
                };
                if let Some(which) = which {
                    let d = self.target(0, ty)?;
                    let wide = if ty.bytes() == 8 { moves::WIDE } else { 0 };
                    let wait = self.wait(&to, ty);
                    let draft = self.emit(moves::clock, d, [wait.bound, wait.start, V::None], D);
                    draft.aux = which | wide | wait.kind;
                    return Ok(());
                }
            }
            (_, Operand::Var(index, addend)) => {
                if let Home::Local(offset) = self.homes[*index as usize]
                    && !self.function.kernel
                {
                    let d = self.target(0, ty)?;
                    let draft = self.emit(memory::local_address, d, [V::None; 3], D);
                    draft.imm = addend.wrapping_add(i64::from(offset)) as u64;
                    draft.aux = if ty.bytes() == 8 { 0 } else { memory::NARROW };
                    return Ok(());
                }
            }
            _ => {}
        }
        if ty == Ty::Pred {
            if let Operand::Int(value) = from {
                let d = self.target(0, ty)?;
                self.emit(moves::predicate_constant, d, [V::None; 3], D).imm =
                    if value != 0 { u64::MAX } else { 0 };
                return Ok(());
            }
            return self.predicates(moves::PRED_MOVE);
        }
        let (d, a) = (self.target_of(&to, ty)?, self.source_of(&from, ty)?);
        self.copy(d, a, ty.bytes() == 8);
        Ok(())
    }

    /// `mov.u64 %rd, array[%r];`
    fn move_element(
        &mut self,
        to: &Operand<'a>,
        array: Operand<'a>,
        register: u32,
        bytes: u64,
        ty: Ty,
    ) -> Decoded {
        let d = self.target_of(to, ty)?;
        if let Operand::Var(index, addend) = array
            && let Home::Local(offset) = self.homes[index as usize]
            && !self.function.kernel
        {
            let draft = self.emit(memory::local_address, V::Trash, [V::None; 3], D);
            draft.imm = addend.wrapping_add(i64::from(offset)) as u64;
            self.element(V::Trash, V::Trash, register, bytes)?;
        } else {
            let array = self.source_of(&array, Ty::U64)?;
            self.element(V::Trash, array, register, bytes)?;
        }
        if ty.bytes() == 8 {
            self.copy(d, V::Trash, true);
        } else {
            self.emit(memory::narrow_address, d, [V::Trash, V::None, V::None], D);
        }
        Ok(())
    }

    pub(super) fn copy(&mut self, d: V, a: V, wide: bool) {
        let exec = if wide {
            moved::<u64>(self.set)
        } else {
            moved::<u32>(self.set)
        };
        self.emit(exec, d, [a, V::None, V::None], D);
    }

    fn element_bits(&self, elements: &[Operand<'a>], ty: Ty) -> Decoded<(u32, Ty)> {
        let count = elements.len() as u32;
        if !matches!(count, 2 | 4) {
            return Err("a vector has 2 or 4 elements".into());
        }
        let bits = ty.bytes() * 8 / count;
        let element = match bits {
            8 => Ty::B8,
            16 => Ty::B16,
            32 => Ty::B32,
            64 => return Err(Refusal::Unsupported),
            _ => return Err("the elements do not make up the whole".into()),
        };
        Ok((bits | count << 8, element))
    }

    fn pack(&mut self, to: &Operand<'a>, elements: &[Operand<'a>], ty: Ty) -> Decoded {
        let (aux, element) = self.element_bits(elements, ty)?;
        let d = self.target_of(to, ty)?;
        let mut parts = [V::None; 4];
        for (part, operand) in parts.iter_mut().zip(elements) {
            *part = self.source_of(operand, element)?;
        }
        let draft = self.emit(moves::pack, d, [parts[0], parts[1], parts[2]], D);
        draft.e = parts[3];
        draft.aux = aux | if ty.bytes() == 8 { moves::WIDE } else { 0 };
        Ok(())
    }

    fn unpack(&mut self, elements: &[Operand<'a>], from: &Operand<'a>, ty: Ty) -> Decoded {
        let (aux, element) = self.element_bits(elements, ty)?;
        let a = self.source_of(from, ty)?;
        let mut parts = [V::None; 4];
        for (part, operand) in parts.iter_mut().zip(elements) {
            *part = self.target_of(operand, element)?;
        }
        let draft = self.emit(moves::unpack, parts[0], [a, parts[1], parts[2]], D | B | C | E);
        draft.e = parts[3];
        draft.aux = aux | if ty.bytes() == 8 { moves::WIDE } else { 0 };
        Ok(())
    }

    fn space(&self) -> Option<u32> {
        self.mods.iter().find_map(|m| match m.split("::").next()? {
            "global" | "const" => Some(memory::GLOBAL),
            "shared" => Some(memory::SHARED),
            "local" => Some(memory::LOCAL),
            "param" => Some(memory::PARAM),
            _ => None,
        })
    }

    fn cvta(&mut self) -> Decoded {
        self.expect_operands(2)?;
        let ty = self.ty()?;
        let Some(space) = self.space() else {
            return Err("`cvta` names no space".into());
        };
        let to = self.has("to");
        if ty.bytes() != 8 {
            return Err(Refusal::Unsupported);
        }
        let from = self.operand(1)?.clone();
        let d = self.target(0, ty)?;
        if let Operand::Var(index, addend) = from
            && let Home::Local(offset) = self.homes[index as usize]
            && !self.function.kernel
            && !to
        {
            // A function's variable: first its place in the frame, then the window.
            let draft = self.emit(memory::local_address, d, [V::None; 3], D);
            draft.imm = addend.wrapping_add(i64::from(offset)) as u64;
            self.emit(memory::convert_address, d, [d, V::None, V::None], D)
                .aux = memory::LOCAL;
            return Ok(());
        }
        let a = self.source_of(&from, ty)?;
        if matches!(space, memory::GLOBAL | memory::PARAM) {
            self.copy(d, a, true);
            return Ok(());
        }
        let draft = self.emit(memory::convert_address, d, [a, V::None, V::None], D);
        draft.aux = space;
        draft.imm = u64::from(to);
        Ok(())
    }

    fn isspacep(&mut self) -> Decoded {
        self.expect_operands(2)?;
        let Some(space) = self.space() else {
            return Err("`isspacep` names no space".into());
        };
        let (d, a) = (self.target(0, Ty::Pred)?, self.source(1, Ty::U64)?);
        self.emit(memory::in_space, d, [a, V::None, V::None], D).aux = space;
        Ok(())
    }
}
