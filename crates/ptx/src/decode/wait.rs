//! Loops that only wait for a time. Under a model of time the clock leaps over them.
//!
//! Such a loop goes from a label to the conditional branch back to it (or out of it), and its statements only compute
//! in registers. The clock, or the clock less a value from before the loop, is compared with another such value.

use super::{Decoder, V};
use crate::engine::moves::{IN_LOOP, PAST, SIGNED, WAIT};
use crate::parse::ast::{Operand, Statement};
use crate::types::Ty;

/// Longer loops do more than wait.
const LONGEST: usize = 24;

/// What the statement that reads a clock knows of its loop: operands and bits of the instruction.
pub(super) struct Wait {
    pub bound: V,
    pub start: V,
    pub kind: u32,
}

/// A predicate, the order it stands for, whether the time is its second operand, the type, and the other operand.
type Comparison<'a> = (u32, &'a str, bool, Ty, Operand<'a>);

/// The most statements of a waiting loop besides its comparison.
fn pure(statement: &Statement<'_>) -> bool {
    matches!(
        statement.op[0],
        "mov" | "add" | "sub" | "cvt" | "setp" | "nanosleep" | "cvta"
    )
}

fn writes(statement: &Statement<'_>, register: u32) -> bool {
    match statement.operands.first() {
        Some(Operand::Reg(to)) => *to == register && statement.op[0] != "nanosleep",
        Some(Operand::Pair(a, b)) => [a, b]
            .iter()
            .any(|o| matches!(***o, Operand::Reg(to) if to == register)),
        Some(Operand::Vector(_) | Operand::List(_)) => true,
        _ => false,
    }
}

fn register(operand: Option<&Operand<'_>>) -> Option<u32> {
    match operand {
        Some(Operand::Reg(register)) => Some(*register),
        _ => None,
    }
}

impl<'a> Decoder<'_, 'a> {
    /// The loop around the statement being decoded, which reads a clock of this type into `to`.
    pub(super) fn wait(&mut self, to: &Operand<'a>, ty: Ty) -> Wait {
        let (statements, own) = (&self.body.statements, self.at);
        let mut wait = Wait {
            bound: V::None,
            start: V::None,
            kind: 0,
        };
        let Some(at) = statements.iter().position(|s| std::ptr::eq(s, own)) else {
            return wait;
        };
        let goes_back = |s: &Statement<'a>| self.leads_to(s).is_some_and(|target| target <= at);
        if !statements[at..].iter().any(goes_back) {
            return wait;
        }
        wait.kind = IN_LOOP;
        if let Some((bound, start, kind)) =
            register(Some(to)).and_then(|clock| self.waited_for(at, clock, ty))
            && let Ok(bound) = self.source_of(&bound, ty)
            && let Ok(start) = start.map_or(Ok(V::None), |start| self.source_of(&start, ty))
        {
            wait = Wait {
                bound,
                start,
                kind: IN_LOOP | WAIT | kind,
            };
        }
        wait
    }

    /// The statement that a branch goes to.
    fn leads_to(&self, statement: &Statement<'a>) -> Option<usize> {
        let (true, Some(Operand::Name(name, 0))) = (statement.op[0] == "bra", statement.operands.first())
        else {
            return None;
        };
        self.body
            .label(statement.scope, name)
            .map(|target| target as usize)
    }

    /// The value that the clock, less the second operand if there is one, is compared with; and how.
    fn waited_for(&self, at: usize, clock: u32, ty: Ty) -> Option<(Operand<'a>, Option<Operand<'a>>, u32)> {
        let statements = &self.body.statements;
        let (mut now, mut since, mut compared) =
            (vec![clock], None::<(u32, Operand<'a>)>, None::<Comparison<'a>>);
        let mut last = at + 1;
        let (first, exits) = loop {
            let s = statements.get(last).filter(|_| last - at < LONGEST)?;
            if let Some(target) = self.leads_to(s) {
                let (guard, negated) = s.guard?;
                let (predicate, ..) = compared.as_ref()?;
                if guard != *predicate {
                    return None;
                }
                if target <= at {
                    break (target, negated);
                }
                // Out of the loop where the predicate holds, and back from here otherwise.
                last += 1;
                let back = statements.get(last).filter(|s| s.guard.is_none())?;
                break (
                    self.leads_to(back)
                        .filter(|first| *first <= at && target > last)?,
                    !negated,
                );
            }
            if !pure(s) || s.guard.is_some() {
                return None;
            }
            let operand = |n: usize| s.operands.get(n);
            let is_now = |n: usize| register(operand(n)).is_some_and(|r| now.contains(&r));
            match s.op[0] {
                "mov" if is_now(1) => now.extend(register(operand(0))),
                "sub" if is_now(1) && since.is_none() => {
                    since = Some((register(operand(0))?, operand(2)?.clone()));
                }
                "setp" => {
                    let is_time = |n: usize| match &since {
                        Some((elapsed, _)) => register(operand(n)) == Some(*elapsed),
                        None => is_now(n),
                    };
                    let compared_as = s.op.last().and_then(|word| Ty::read(word))?;
                    if compared.is_some() || s.op.len() != 3 || compared_as.bytes() != ty.bytes() {
                        return None;
                    }
                    let (other, swapped) = match (is_time(1), is_time(2)) {
                        (true, false) => (operand(2)?.clone(), false),
                        (false, true) => (operand(1)?.clone(), true),
                        _ => return None,
                    };
                    compared = Some((register(operand(0))?, s.op[1], swapped, compared_as, other));
                }
                _ => {}
            }
            last += 1;
        };
        let (_, order, swapped, compared_as, bound) = compared?;
        let kind = relation(order, swapped, exits)? | if compared_as.signed() { SIGNED } else { 0 };
        let start = since.map(|(_, start)| start);
        let within = statements.get(first..=last)?;
        let other = |n: usize| first + n != at;
        let fixed = |operand: &Operand<'a>| match operand {
            Operand::Reg(r) => !within.iter().any(|s| writes(s, *r)),
            Operand::Int(_) => true,
            _ => false,
        };
        let only_waits = (0..within.len()).all(|n| {
            let s = &within[n];
            !other(n) || s.op[0] == "bra" && first + n > at || pure(s) && s.guard.is_none()
        });
        // A loop that reads another clock, or counts the turns, needs to see them.
        let counts = within.iter().enumerate().any(|(n, s)| {
            other(n) && (s.op[0] == "add" || matches!(s.operands.get(1), Some(Operand::Special(_))))
        });
        (only_waits && !counts && fixed(&bound) && start.as_ref().is_none_or(fixed))
            .then_some((bound, start, kind))
    }
}

/// Whether the loop ends once the time is the bound or later, or only later. None for other comparisons. `exits`: the
/// loop ends where the comparison holds.
fn relation(order: &str, swapped: bool, exits: bool) -> Option<u32> {
    let less = match order {
        "lt" | "lo" => (true, false),
        "le" | "ls" => (true, true),
        "gt" | "hi" => (false, false),
        "ge" | "hs" => (false, true),
        _ => return None,
    };
    // As a condition on the time: is it that the time is less, and also equal?
    let (less, equal) = (less.0 != swapped, less.1);
    match (less, equal, exits) {
        // Goes on while less.
        (true, false, false) | (false, true, true) => Some(0),
        // Goes on while less or equal.
        (true, true, false) | (false, false, true) => Some(PAST),
        _ => None,
    }
}
