//! `call`: of functions of the module, and of the few that the device provides.

use super::{Decoded, Decoder, Draft, DraftCall, Home, Refusal, Symbol, V};
use crate::code::INDIRECT;
use crate::engine::{control, grid, heap, print};
use crate::inst::Exec;
use crate::parse::ast::Operand;
use crate::types::Ty;

impl<'a> Decoder<'_, 'a> {
    /// `call (results), callee, (arguments);` with either list absent, and a prototype after it for a register.
    pub(super) fn call(&mut self) -> Decoded {
        let mut operands = self.at.operands.iter().cloned();
        let mut next = operands.next();
        let results = match next {
            Some(Operand::List(list)) => {
                next = operands.next();
                list
            }
            _ => Vec::new(),
        };
        let Some(callee) = next else {
            return Err("the call names no function".into());
        };
        let arguments = match operands.next() {
            Some(Operand::List(list)) => list,
            None => Vec::new(),
            Some(_) => return Err("expected the arguments in parentheses".into()),
        };
        let name = match callee {
            Operand::Name(name, 0) => name,
            // Through a register: only the lanes know which function it is.
            Operand::Reg(_) => {
                let target = self.source_of(&callee, Ty::U64)?;
                let (arguments, results) = (self.call_places(&arguments)?, self.call_places(&results)?);
                self.out.indirect = true;
                self.emit_call(control::call_indirect, INDIRECT, arguments, results)
                    .a = target;
                return Ok(());
            }
            _ => return Err("expected a function's name".into()),
        };
        let Some(Symbol::Function(index)) = self.symbols.get(name).copied() else {
            return Err(Refusal::Bad(format!("function `{name}` is not declared")));
        };
        let arguments = self.call_places(&arguments)?;
        let results = self.call_places(&results)?;
        let function = &self.functions[index as usize];
        let exec: Exec = match (name, function.body.is_some()) {
            (_, true) => control::call,
            ("vprintf", _) => print::vprintf,
            ("malloc", _) => heap::allocate,
            ("free", _) => heap::free,
            ("__assertfail", _) => print::assert_fail,
            ("cudaCGGetIntrinsicHandle", _) => grid::intrinsic_handle,
            ("cudaCGSynchronize" | "cudaCGSynchronizeGrid", _) => grid::synchronize,
            // Declared, and defined nowhere we know.
            _ => return Err(Refusal::Missing(name.into())),
        };
        if function.body.is_some() {
            if function.kernel {
                return Err("a kernel cannot be called".into());
            }
            let given = (arguments.len(), results.len());
            // Texts that were linked may declare a function differently from where it is defined. What one side does
            // not have is not passed.
            if given != (function.params.len(), function.returns.len())
                && !function.prototypes.contains(&given)
            {
                return Err(Refusal::Bad(format!(
                    "`{name}` takes {} arguments and gives {} results",
                    function.params.len(),
                    function.returns.len()
                )));
            }
            self.out.callees.push(index);
        }
        self.emit_call(exec, index, arguments, results);
        Ok(())
    }

    fn emit_call(&mut self, exec: Exec, callee: u32, arguments: Vec<V>, results: Vec<V>) -> &mut Draft {
        let registers = |list: &[V]| -> Vec<u32> {
            list.iter()
                .filter_map(|v| if let V::Reg(r) = v { Some(*r) } else { None })
                .collect()
        };
        let (reads, writes) = (registers(&arguments), registers(&results));
        let at = self.calls.len() as u32;
        self.calls.push(DraftCall {
            callee,
            arguments,
            results,
        });
        let draft = self.emit(exec, V::None, [V::None; 3], 0);
        draft.aux = at;
        draft.aux_is_call = true;
        draft.reads_more = reads;
        draft.writes_more = writes;
        draft
    }

    fn call_places(&mut self, list: &[Operand<'a>]) -> Decoded<Vec<V>> {
        list.iter()
            .map(|operand| match operand {
                Operand::Var(index, 0) => match self.homes[*index as usize] {
                    Home::Memory(n) => Ok(V::Memory(n)),
                    Home::Register(r) => Ok(V::Reg(r)),
                    _ => Err("expected a .param variable or a register".into()),
                },
                Operand::Reg(r) => Ok(V::Reg(*r)),
                Operand::Int(value) => Ok(self.bits(*value, true)),
                Operand::F32(bits) => Ok(self.bits(u64::from(*bits), false)),
                Operand::F64(bits) => Ok(self.bits(*bits, true)),
                Operand::Sink => Ok(V::None),
                _ => Err("expected a .param variable or a register".into()),
            })
            .collect()
    }
}
