//! `cp.async` and `mbarrier`.

use super::{D, Decoded, Decoder, Refusal, V};
use crate::engine::async_copy::{self, NARROW_TARGET, SIZE_SHIFT};
use crate::engine::control::nop;
use crate::engine::mbarrier::{self, Operation, PARITY, YIELDING};
use crate::engine::memory;
use crate::engine::watch::Seen;
use crate::parse::ast::Operand;
use crate::types::Ty;

impl Decoder<'_, '_> {
    /// `cp`: of its forms only `cp.async` itself.
    pub(super) fn asynchronous(&mut self) -> Decoded {
        match self.mods[..] {
            ["async", "commit_group"] => self.nothing(0),
            ["async", "wait_all"] => self.nothing(0),
            ["async", "wait_group"] => self.nothing(1),
            ["async", "mbarrier", "arrive", ..] => {
                self.expect_operands(1)?;
                // The copies of this thread have ended. What would be awaited for them has come.
                let (operation, none) = if self.has("noinc") {
                    (Operation::Arrive, V::None)
                } else {
                    (Operation::ExpectBytes, self.bits(0, false))
                };
                self.change(operation, V::None, 0, none)
            }
            ["async", "ca" | "cg", ..] => self.copy_to_shared(),
            _ => Err(Refusal::Unsupported),
        }
    }

    fn nothing(&mut self, operands: usize) -> Decoded {
        self.expect_operands(operands)?;
        self.emit(nop, V::None, [V::None; 3], 0);
        Ok(())
    }

    fn copy_to_shared(&mut self) -> Decoded {
        let count = self.at.operands.len();
        if !(3..=5).contains(&count) {
            return Err("expected two addresses and a size".into());
        }
        let Operand::Int(size @ (4 | 8 | 16)) = *self.operand(2)? else {
            return Err("a copy has 4, 8 or 16 bytes".into());
        };
        if self.has("cg") && size != 16 {
            return Err("`.cg` copies 16 bytes".into());
        }
        let (mut read, mut ignored, mut negated) = (V::None, V::None, false);
        match self.at.operands.get(3).cloned() {
            None => {}
            Some(operand @ (Operand::Reg(_) | Operand::Not(_))) if self.is_predicate(&operand) => {
                (ignored, negated) = self.predicate(&operand)?;
            }
            // A cache policy may be there instead.
            Some(Operand::Reg(r)) if self.register_type(r).bytes() == 8 => {}
            Some(operand) => read = self.source_of(&operand, Ty::U32)?,
        }
        let to = self.address(0, memory::SHARED)?;
        let from = self.address(1, memory::GLOBAL)?;
        if to.base == V::Trash || from.base == V::Trash {
            return Err(Refusal::Unsupported);
        }
        let offset = |offset: i64| i32::try_from(offset).map_err(|_| Refusal::Unsupported);
        let imm = async_copy::offsets(offset(to.offset)?, offset(from.offset)?);
        let site = self.site();
        let draft = self.emit(async_copy::copy, V::None, [to.base, from.base, read], 0);
        draft.e = ignored;
        draft.not_e = negated;
        draft.imm = imm;
        draft.aux = from.aux | site | size.trailing_zeros() << SIZE_SHIFT;
        draft.seen = Seen::Copy;
        if to.aux & memory::NARROW != 0 {
            draft.aux |= NARROW_TARGET;
        }
        Ok(())
    }

    fn is_predicate(&self, operand: &Operand<'_>) -> bool {
        matches!(operand, Operand::Reg(r) | Operand::Not(r) if self.register_type(*r) == Ty::Pred)
    }

    /// A change of the barrier in operand `at`.
    fn change(&mut self, operation: Operation, d: V, at: usize, count: V) -> Decoded {
        let space = self.memory_space();
        if !matches!(space, memory::SHARED | memory::GENERIC) {
            return Err("the barrier is in shared memory".into());
        }
        let address = self.address(at, space)?;
        let site = self.site();
        let draft = self.emit(mbarrier::change, d, [address.base, count, V::None], D);
        draft.imm = address.offset as u64;
        draft.aux = address.aux | site | mbarrier::number(operation);
        draft.seen = Seen::Object { waits: false };
        Ok(())
    }

    pub(super) fn barrier_object(&mut self) -> Decoded {
        let expects = self.has("expect_tx");
        let operation = match self.mods.first().copied() {
            Some("init") => Operation::Init,
            Some("inval") => Operation::Invalidate,
            Some("expect_tx") => Operation::ExpectBytes,
            Some("complete_tx") => Operation::CompleteBytes,
            Some("arrive") if expects => Operation::ArriveExpectingBytes,
            Some("arrive_drop") if expects => Operation::DropExpectingBytes,
            Some("arrive") => Operation::Arrive,
            Some("arrive_drop") => Operation::ArriveAndDrop,
            Some("test_wait") => return self.test_barrier(0),
            Some("try_wait") => return self.test_barrier(YIELDING),
            Some("pending_count") => {
                self.expect_operands(2)?;
                let (d, a) = (self.target(0, Ty::B32)?, self.source(1, Ty::B64)?);
                self.emit(mbarrier::pending, d, [a, V::None, V::None], D);
                return Ok(());
            }
            _ => return Err(Refusal::Unsupported),
        };
        use Operation::*;
        let operands = self.at.operands.len();
        match operation {
            Invalidate => {
                self.expect_operands(1)?;
                self.change(operation, V::None, 0, V::None)
            }
            Init | ExpectBytes | CompleteBytes => {
                self.expect_operands(2)?;
                let count = self.source(1, Ty::U32)?;
                self.change(operation, V::None, 0, count)
            }
            Arrive | ArriveAndDrop | ArriveExpectingBytes | DropExpectingBytes => {
                let least = if expects { 3 } else { 2 };
                if operands < least || operands > 3 {
                    return Err("expected a state, a barrier and a count".into());
                }
                let d = self.target(0, Ty::B64)?;
                let count = if operands == 3 {
                    self.source(2, Ty::U32)?
                } else {
                    V::None
                };
                self.change(operation, d, 1, count)
            }
        }
    }

    fn test_barrier(&mut self, yielding: u32) -> Decoded {
        let most = if yielding != 0 { 4 } else { 3 };
        if !(3..=most).contains(&self.at.operands.len()) {
            return Err("expected a predicate, a barrier, and a state or a parity".into());
        }
        let space = self.memory_space();
        let parity = if self.has("parity") { PARITY } else { 0 };
        let d = self.target(0, Ty::Pred)?;
        let b = self.source(2, if parity != 0 { Ty::U32 } else { Ty::B64 })?;
        let address = self.address(1, space)?;
        let site = self.site();
        let draft = self.emit(mbarrier::wait, d, [address.base, b, V::None], D);
        draft.imm = address.offset as u64;
        draft.aux = address.aux | site | parity | yielding;
        draft.seen = Seen::Object { waits: true };
        Ok(())
    }
}
