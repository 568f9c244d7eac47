//! Operands of instructions to virtual places, with their widths checked.

use super::{Decoded, Decoder, Home, Refusal, Symbol, V};
use crate::code::{Const, RESERVED_SHARED, Special};
use crate::parse::ast::Operand;
use crate::types::Ty;

/// The three kinds of register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Pred,
    Narrow,
    Wide,
}

pub(crate) fn class(ty: Ty) -> Class {
    match ty {
        Ty::Pred => Class::Pred,
        Ty::B64 | Ty::U64 | Ty::S64 | Ty::F64 | Ty::B128 => Class::Wide,
        _ => Class::Narrow,
    }
}

impl<'a> Decoder<'_, 'a> {
    pub fn register_type(&self, register: u32) -> Ty {
        self.body.registers[register as usize].ty
    }

    pub fn operand(&self, n: usize) -> Decoded<&'_ Operand<'a>> {
        // Borrowed from the statement, not from self.
        let operands: &[Operand<'a>] = &self.at.operands;
        operands
            .get(n)
            .ok_or_else(|| Refusal::Bad(format!("operand {} is missing", n + 1)))
    }

    pub fn expect_operands(&self, n: usize) -> Decoded {
        if self.at.operands.len() == n {
            return Ok(());
        }
        Err(Refusal::Bad(format!(
            "expected {n} operands, found {}",
            self.at.operands.len()
        )))
    }

    pub fn constant(&mut self, value: Const, wide: bool) -> V {
        let next = self.consts.len() as u32;
        let index = *self.const_index.entry((value, wide)).or_insert(next);
        if index == next {
            self.consts.push((value, wide));
        }
        V::Const(index)
    }

    pub fn bits(&mut self, value: u64, wide: bool) -> V {
        self.constant(Const::Bits(if wide { value } else { value & 0xffff_ffff }), wide)
    }

    /// A source operand of type `ty`; its register may not be narrower or wider.
    pub fn source(&mut self, n: usize, ty: Ty) -> Decoded<V> {
        let operand = self.operand(n)?.clone();
        self.source_of(&operand, ty)
    }

    pub fn source_of(&mut self, operand: &Operand<'a>, ty: Ty) -> Decoded<V> {
        let want = class(ty);
        let wide = want == Class::Wide;
        match operand {
            Operand::Reg(register) => {
                let has = self.register_type(*register);
                if has == Ty::B128 || ty == Ty::B128 {
                    return Err(Refusal::Unsupported);
                }
                if class(has) != want {
                    return Err(Refusal::Bad(format!(
                        "a register of type {has:?} cannot be read as {ty:?}"
                    )));
                }
                Ok(V::Reg(*register))
            }
            _ if want == Class::Pred => Err("expected a predicate".into()),
            Operand::Int(value) => Ok(match ty {
                Ty::F32 => self.bits(u64::from((*value as i64 as f32).to_bits()), false),
                Ty::F64 => self.bits((*value as i64 as f64).to_bits(), true),
                _ => self.bits(*value, wide),
            }),
            Operand::F32(bits) => Ok(match ty {
                Ty::F64 => self.bits(f64::from(f32::from_bits(*bits)).to_bits(), true),
                _ => self.bits(u64::from(*bits), wide),
            }),
            Operand::F64(bits) => Ok(match ty {
                Ty::F32 => self.bits(u64::from((f64::from_bits(*bits) as f32).to_bits()), false),
                _ => self.bits(*bits, wide),
            }),
            Operand::Special(name) => {
                let special = special(name).ok_or(Refusal::Unsupported)?;
                self.out.reserved_shared |= matches!(special, Special::ReservedShared(_));
                Ok(self.constant(Const::Special(special), wide))
            }
            Operand::Var(index, addend) => self.address_of_variable(*index, *addend, wide),
            Operand::Name(name, addend) => self.address_of_name(name, *addend, wide),
            Operand::ElementAt(array) => self.source_of(array, ty),
            Operand::Sink => Err("`_` cannot be read".into()),
            _ => Err("expected a register or a constant".into()),
        }
    }

    fn address_of_variable(&mut self, index: u32, addend: i64, wide: bool) -> Decoded<V> {
        match self.homes[index as usize] {
            Home::KernelParam(offset) => {
                Ok(self.constant(Const::ParamAddress(addend.wrapping_add(i64::from(offset))), wide))
            }
            Home::Shared(n) => {
                self.out.shared.push(n);
                Ok(self.constant(Const::Shared(n, addend), wide))
            }
            Home::Local(offset) if self.function.kernel => {
                Ok(self.bits(addend.wrapping_add(i64::from(offset)) as u64, wide))
            }
            // A function's local variables move with its frame: `mov` handles them; no compiler does otherwise.
            Home::Local(_) | Home::Memory(_) => Err(Refusal::Unsupported),
            Home::Register(_) => Err("a register has no address".into()),
        }
    }

    fn address_of_name(&mut self, name: &str, addend: i64, wide: bool) -> Decoded<V> {
        match self.symbols.get(name) {
            Some(Symbol::Global(n)) => Ok(self.constant(Const::Global(*n, addend), wide)),
            Some(Symbol::Shared(n)) => {
                self.out.shared.push(*n);
                Ok(self.constant(Const::Shared(*n, addend), wide))
            }
            Some(Symbol::Function(n)) => {
                self.code.addressed.insert(*n);
                Ok(self.constant(Const::Function(*n), wide))
            }
            Some(Symbol::Local) => Err(Refusal::Unsupported),
            None => Err(Refusal::Bad(format!("`{name}` is not declared"))),
        }
    }

    /// A destination of type `ty`, or the trash where the text says `_`.
    pub fn target(&mut self, n: usize, ty: Ty) -> Decoded<V> {
        let operand = self.operand(n)?.clone();
        self.target_of(&operand, ty)
    }

    pub fn target_of(&mut self, operand: &Operand<'a>, ty: Ty) -> Decoded<V> {
        match operand {
            Operand::Reg(register) => {
                let has = self.register_type(*register);
                if has == Ty::B128 || ty == Ty::B128 {
                    return Err(Refusal::Unsupported);
                }
                if class(has) != class(ty) {
                    return Err(Refusal::Bad(format!(
                        "a register of type {has:?} cannot take {ty:?}"
                    )));
                }
                Ok(V::Reg(*register))
            }
            Operand::Sink if ty == Ty::Pred => Ok(V::TrashPred),
            Operand::Sink => Ok(V::Trash),
            _ => Err("expected a register to write".into()),
        }
    }

    /// A predicate source, maybe negated.
    pub fn predicate(&mut self, operand: &Operand<'a>) -> Decoded<(V, bool)> {
        match operand {
            Operand::Not(register) if self.register_type(*register) == Ty::Pred => {
                Ok((V::Reg(*register), true))
            }
            Operand::Reg(register) if self.register_type(*register) == Ty::Pred => {
                Ok((V::Reg(*register), false))
            }
            _ => Err("expected a predicate".into()),
        }
    }

    /// A register that may be wider than the type, as `ld`, `st` and `cvt` allow: its place and whether it is 64 bits.
    pub fn loose_source(&mut self, operand: &Operand<'a>, ty: Ty) -> Decoded<(V, bool)> {
        if let Operand::Reg(register) = operand {
            let has = self.register_type(*register);
            if has == Ty::Pred || has.bytes() < ty.bytes() {
                return Err(Refusal::Bad(format!(
                    "a register of type {has:?} is too narrow for {ty:?}"
                )));
            }
            return Ok((self.source_of(operand, has)?, class(has) == Class::Wide));
        }
        Ok((self.source_of(operand, ty)?, class(ty) == Class::Wide))
    }

    pub fn loose_target(&mut self, operand: &Operand<'a>, ty: Ty) -> Decoded<(V, bool)> {
        if let Operand::Reg(register) = operand {
            let has = self.register_type(*register);
            if has == Ty::Pred || has.bytes() < ty.bytes() {
                return Err(Refusal::Bad(format!(
                    "a register of type {has:?} is too narrow for {ty:?}"
                )));
            }
            return Ok((self.target_of(operand, has)?, class(has) == Class::Wide));
        }
        Ok((self.target_of(operand, ty)?, class(ty) == Class::Wide))
    }
}

/// Special registers that are constants of a block. The clocks are not.
fn special(name: &str) -> Option<Special> {
    let component = |c: &str| match c {
        "x" => 0u8,
        "y" => 1,
        "z" => 2,
        _ => 3,
    };
    if let Some((base, c)) = name.rsplit_once('.') {
        let c = component(c);
        return Some(match base {
            "%tid" => Special::Tid(c),
            "%ntid" | "%nctaid" | "%nclusterid" if c == 3 => Special::One,
            "%ntid" => Special::Ntid(c),
            // Without clusters every block is a cluster of its own.
            "%ctaid" | "%clusterid" => Special::Ctaid(c),
            "%nctaid" | "%nclusterid" => Special::Nctaid(c),
            "%cluster_ctaid" => Special::Zero,
            "%cluster_nctaid" => Special::One,
            _ => return None,
        });
    }
    Some(match name {
        "%laneid" => Special::LaneId,
        "%warpid" => Special::WarpId,
        "%nwarpid" => Special::WarpCount,
        "%smid" => Special::Sm,
        "%nsmid" => Special::SmCount,
        "%gridid" => Special::Grid,
        "%lanemask_eq" => Special::MaskEq,
        "%lanemask_le" => Special::MaskLe,
        "%lanemask_lt" => Special::MaskLt,
        "%lanemask_ge" => Special::MaskGe,
        "%lanemask_gt" => Special::MaskGt,
        "%dynamic_smem_size" => Special::DynamicShared,
        "%total_smem_size" | "%aggr_smem_size" => Special::TotalShared,
        "%cluster_nctarank" => Special::One,
        "%envreg1" => Special::Workspace { high: true },
        "%envreg2" => Special::Workspace { high: false },
        "%reserved_smem_offset_begin" | "%reserved_smem_offset_0" => Special::ReservedShared(0),
        "%reserved_smem_offset_1" => Special::ReservedShared(RESERVED_SHARED as u16 / 2),
        "%reserved_smem_offset_end" => Special::ReservedShared(RESERVED_SHARED as u16),
        "%reserved_smem_offset_cap" => Special::ReservedCapacity,
        "%envreg" | "%pm" | "%is_explicit_cluster" | "%cluster_ctarank" | "%current_graph_exec" => {
            Special::Zero
        }
        _ => return None,
    })
}
