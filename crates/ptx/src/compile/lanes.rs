//! How the lanes of a result lie, and what is known of that at each instruction of a warp whose lanes have always gone
//! the same way.

use super::asm::Map::{M0F, M0F38};
use super::asm::Pp::P66;
use super::asm::V;
use super::cache::Step;
use super::table::{Op, is_guarded, op};
use crate::code::{Code, FunctionCode};
use crate::inst::Inst;
use std::collections::HashMap;

/// A step beyond which lanes do not count as lying evenly: what is computed from it must not overflow.
const FAR: u64 = 1 << 20;
const MULTIPLY32: V = V(P66, M0F38, 0x40, false);
const MULTIPLY64: V = V(P66, M0F38, 0x40, true);
const SUBTRACT32: V = V(P66, M0F, 0xfa, false);
const SUBTRACT64: V = V(P66, M0F, 0xfb, true);
const SHIFT32: V = V(P66, M0F38, 0x47, false);
const SHIFT64: V = V(P66, M0F38, 0x47, true);
const ADD32: V = V(P66, M0F, 0xfe, false);
const ADD64: V = V(P66, M0F, 0xd4, true);

/// The registers that lie evenly at one instruction, by their slots.
pub(super) type Even = HashMap<u32, Step>;

/// How the result lies, if it lies evenly: `step` says so of a register.
pub(super) fn step_of(
    inst: &Inst,
    what: Op,
    step: &dyn Fn(u32, bool) -> Option<Step>,
    number: &dyn Fn(u32) -> Option<u64>,
) -> Option<Step> {
    let product = |wide: bool, signed: bool| {
        let (a, b) = (step(inst.a, wide)?, step(inst.b, wide)?);
        let factor = |slot: u32| {
            let number = number(slot)?;
            let number = match (wide, signed) {
                (true, _) => number as i64,
                (false, true) => i64::from(number as i32),
                (false, false) => i64::from(number as u32),
            };
            (number.unsigned_abs() <= FAR).then_some(number)
        };
        match (a, b) {
            (0, 0) => Some(0),
            (_, 0) => Some(a * factor(inst.b)?),
            (0, _) => Some(b * factor(inst.a)?),
            _ => None,
        }
    };
    let result = match what {
        Op::MulWide { signed, add } => {
            let product = product(false, signed)?;
            let added = if add { step(inst.c, true)? } else { 0 };
            Some(product + added)
        }
        Op::Mad(wide) => {
            let product = product(wide, true)?;
            Some(product + step(inst.c, wide)?)
        }
        Op::Two(v) if v == MULTIPLY32 || v == MULTIPLY64 => product(v.3, true),
        Op::Two(v) => {
            let (a, b) = (step(inst.a, v.3)?, step(inst.b, v.3)?);
            match v {
                ADD32 | ADD64 => Some(a + b),
                SUBTRACT32 | SUBTRACT64 => Some(a - b),
                SHIFT32 if b == 0 && a != 0 => {
                    let by = number(inst.b).filter(|by| *by < 16)?;
                    Some(a << by)
                }
                _ => (a == 0 && b == 0).then_some(0),
            }
        }
        Op::ShiftWide(v) => {
            let (a, b) = (step(inst.a, true)?, step(inst.b, false)?);
            if v == SHIFT64 && b == 0 && a != 0 {
                let by = number(inst.b).filter(|by| *by < 16)?;
                return Some(a << by).filter(|step| step.unsigned_abs() <= FAR);
            }
            (a == 0 && b == 0).then_some(0)
        }
        Op::Move(wide) => step(inst.a, wide),
        Op::ToGeneric => step(inst.a, true),
        Op::Neg(wide) => step(inst.a, wide).map(|step| -step),
        Op::Truncate => step(inst.a, true),
        Op::Extend(v) => {
            let a = step(inst.a, false)?;
            (a == 0 || what.extends() && v.1 == M0F38).then_some(a)
        }
        Op::One(V(.., wide)) | Op::OneImm(V(.., wide), _) => step(inst.a, wide).filter(|a| *a == 0),
        Op::Not(wide) | Op::FloatAbs(wide) | Op::FloatNeg(wide) | Op::Reciprocal(wide) => {
            step(inst.a, wide).filter(|a| *a == 0)
        }
        Op::ReciprocalRoot | Op::ToSigned | Op::ToUnsigned => step(inst.a, false).filter(|a| *a == 0),
        Op::Demote => step(inst.a, true).filter(|a| *a == 0),
        Op::Fma(wide) => {
            let all = [inst.a, inst.b, inst.c].map(|slot| step(slot, wide));
            (all == [Some(0); 3]).then_some(0)
        }
        _ => None,
    };
    result.filter(|step| step.unsigned_abs() <= FAR)
}

/// What a warp's registers are like wherever something jumps to, while its lanes go the same way.
pub(super) struct Lanes(HashMap<u32, Even>);

/// What is constant in a function.
pub(super) struct Constants<'a> {
    pub step: &'a dyn Fn(u32) -> Option<Step>,
    pub number: &'a dyn Fn(u32) -> Option<u64>,
}

impl Lanes {
    pub fn none() -> Lanes {
        Lanes(HashMap::new())
    }

    pub fn at(&self, pc: u32) -> Option<&Even> {
        self.0.get(&pc)
    }

    /// Follows a function from its entry until nothing changes. What comes there by a table is like nothing.
    pub fn add(&mut self, code: &Code, function: &FunctionCode, constants: &Constants<'_>) {
        let mut work = vec![function.entry];
        self.0.insert(function.entry, Even::new());
        for target in &code.tables {
            if (function.entry..function.end).contains(target) {
                self.0.insert(*target, Even::new());
                work.push(*target);
            }
        }
        // Each turn takes a register away somewhere, which real kernels do a few times. Beyond this it is given up.
        let mut turns = 64 + 16 * (function.end - function.entry) as usize;
        while let Some(from) = work.pop() {
            let mut even = self.0[&from].clone();
            let mut pc = from;
            while let Some(inst) = code.insts.get(pc as usize).filter(|_| pc < function.end) {
                if pc != from && self.0.contains_key(&pc) {
                    self.join(pc, &even, &mut work);
                    break;
                }
                turns = turns.saturating_sub(1 + even.len() / 4);
                if turns == 0 {
                    return self.0.values_mut().for_each(HashMap::clear);
                }
                let what = if is_guarded(inst.exec) {
                    None
                } else {
                    op(inst.exec)
                };
                match what {
                    Some(Op::Branch) => {
                        self.join(inst.aux, &even, &mut work);
                        break;
                    }
                    Some(Op::BranchIf) => self.join(inst.aux, &even, &mut work),
                    Some(Op::End(_)) => break,
                    _ => pass(&mut even, inst, constants),
                }
                pc += 1;
            }
        }
    }

    /// This is another way to come to `pc`.
    fn join(&mut self, pc: u32, even: &Even, work: &mut Vec<u32>) {
        match self.0.get_mut(&pc) {
            None => {
                self.0.insert(pc, even.clone());
                work.push(pc);
            }
            Some(there) => {
                let before = there.len();
                there.retain(|slot, step| even.get(slot) == Some(step));
                if there.len() != before {
                    work.push(pc);
                }
            }
        }
    }
}

/// What one instruction that does not branch changes.
pub(super) fn pass(even: &mut Even, inst: &Inst, constants: &Constants<'_>) {
    let guarded = is_guarded(inst.exec);
    let what = op(if guarded { inst.inner } else { inst.exec });
    let result = match what {
        // The interpreter knows what it writes.
        None => return even.clear(),
        Some(Op::Nop | Op::Barrier | Op::Store(_)) => return,
        Some(Op::Load(_)) => {
            for slot in [inst.d, inst.b, inst.c, inst.e] {
                even.remove(&slot);
            }
            return;
        }
        Some(Op::ToGeneric) if inst.aux & 15 != 0 => None,
        Some(what) if what.is_data() && !guarded => {
            let step = |slot: u32, _: bool| (constants.step)(slot).or_else(|| even.get(&slot).copied());
            step_of(inst, what, &step, constants.number)
        }
        Some(_) => None,
    };
    match result {
        Some(step) => even.insert(inst.d, step),
        None => even.remove(&inst.d),
    };
}
