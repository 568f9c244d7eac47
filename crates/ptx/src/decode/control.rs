//! Branches and ends.

use super::{Decoded, Decoder, Refusal, V};
use crate::engine::control;
use crate::parse::ast::{Operand, Table};
use crate::types::Ty;

impl Decoder<'_, '_> {
    pub(super) fn control(&mut self) -> Decoded {
        match self.at.op[0] {
            "bra" => {
                self.expect_operands(1)?;
                let Operand::Name(name, 0) = *self.operand(0)? else {
                    return Err("expected a label".into());
                };
                let Some(target) = self.body.label(self.at.scope, name) else {
                    return Err(Refusal::Bad(format!("label `{name}` is not defined")));
                };
                let guarded = self.at.guard.is_some();
                let exec = if guarded {
                    control::branch_if
                } else {
                    control::branch
                };
                let draft = self.emit(exec, V::None, [V::None; 3], 0);
                draft.targets = vec![target];
                draft.target_in_aux = true;
                draft.own_guard = true;
                draft.ends = !guarded;
                Ok(())
            }
            "brx" => {
                self.expect_operands(2)?;
                let index = self.source(0, Ty::U32)?;
                let Operand::Name(name, 0) = *self.operand(1)? else {
                    return Err("expected a list of targets".into());
                };
                let Some(Table::Branches(labels)) = self.body.table(self.at.scope, name) else {
                    return Err(Refusal::Bad(format!("`{name}` is not a list of targets")));
                };
                self.table_entries += labels.len();
                if self.table_entries + self.code.tables.len() > super::MAX_TABLES {
                    return Err("the module's branch tables are too large".into());
                }
                let mut targets = Vec::new();
                for label in labels {
                    match self.body.label(self.at.scope, label) {
                        Some(target) => targets.push(target),
                        None => return Err(Refusal::Bad(format!("label `{label}` is not defined"))),
                    }
                }
                let draft = self.emit(control::branch_indexed, V::None, [index, V::None, V::None], 0);
                draft.imm = targets.len() as u64;
                draft.targets = targets;
                draft.ends = true;
                Ok(())
            }
            "ret" => {
                let exec = control::leave;
                self.emit(exec, V::None, [V::None; 3], 0).ends = true;
                Ok(())
            }
            "exit" => {
                self.emit(control::exit, V::None, [V::None; 3], 0).ends = true;
                Ok(())
            }
            "trap" | "brkpt" => {
                self.emit(control::trap, V::None, [V::None; 3], 0);
                Ok(())
            }
            "nanosleep" => {
                self.expect_operands(1)?;
                let time = self.source(0, Ty::U32)?;
                self.emit(control::sleep, V::None, [time, V::None, V::None], 0);
                Ok(())
            }
            _ => {
                self.emit(control::nop, V::None, [V::None; 3], 0);
                Ok(())
            }
        }
    }
}
