//! Syntax to instructions: one function at a time. The files beside this one turn each opcode into *drafts* over
//! virtual operands; `allocate` gives those their places.

mod allocate;
mod arithmetic;
mod async_copy;
mod bits;
mod call;
mod compare;
mod control;
mod convert;
mod half;
mod matrix;
mod memory;
mod moves;
mod operand;
mod sync;
mod texture;
mod wait;

use crate::code::{Call, Code, Const, FunctionCode, LOCAL_ALIGN, SharedVariable, WatchedInst};
use crate::engine::control::{self as ops, NONE};
use crate::engine::watch::{self, Seen};
use crate::error::ParseError;
use crate::inst::{Exec, Inst, VectorSet};
use crate::parse::ast::{Body, Function, Statement, Variable};
use crate::types::Ty;
use std::collections::HashMap;

/// Bounds on a module, against small texts that decode to much.
const MAX_AREA: u64 = 256 << 20;
/// Shared memory that a kernel may declare with its size: 48 KiB. What is beyond must be dynamic.
pub(crate) const MAX_STATIC_SHARED: u64 = 48 << 10;
/// Entries of branch tables, which a text may use many times.
const MAX_TABLES: usize = 4 << 20;

/// What a module-level name stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Symbol {
    Global(u32),
    Shared(u32),
    Function(u32),
    /// A module-level `.local` variable: no compiler makes one.
    Local,
}

/// A virtual operand: what kind of place, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum V {
    None,
    Reg(u32),
    Const(u32),
    /// A call parameter variable.
    Memory(u32),
    /// A register that no instruction reads.
    Trash,
    TrashPred,
    Carry,
}

/// Fields that an instruction writes.
pub(crate) const D: u8 = 1;
pub(crate) const B: u8 = 2;
pub(crate) const C: u8 = 4;
pub(crate) const E: u8 = 8;

/// An instruction over virtual operands.
#[derive(Clone)]
pub(crate) struct Draft {
    pub exec: Exec,
    pub d: V,
    pub a: V,
    pub b: V,
    pub c: V,
    pub e: V,
    /// Never written.
    pub f: V,
    /// The predicate operand `c` is negated, or `e`.
    pub not_c: bool,
    pub not_e: bool,
    pub imm: u64,
    pub aux: u32,
    pub guard: Option<(u32, bool)>,
    /// The instruction handles the guard itself (branches).
    pub own_guard: bool,
    pub writes: u8,
    pub line: u32,
    /// Statements this may go to besides the next.
    pub targets: Vec<u32>,
    /// `aux` is a statement until the end, then an instruction.
    pub target_in_aux: bool,
    /// `aux` is an index into `Decoder::calls`.
    pub aux_is_call: bool,
    pub ends: bool,
    /// Registers that a call or a list reads and writes.
    pub reads_more: Vec<u32>,
    pub writes_more: Vec<u32>,
    /// More operands than there are fields: `e` becomes the place of the list in `Code::slots`.
    pub list: Vec<V>,
    /// What a watched launch is told of it.
    pub seen: Seen,
}

/// Why a statement has no instruction.
pub(crate) enum Refusal {
    /// The text is wrong.
    Bad(String),
    /// We do not implement it.
    Unsupported,
    /// A call of a function that is declared, but defined neither in the module nor by the device.
    Missing(String),
}

impl From<String> for Refusal {
    fn from(message: String) -> Refusal {
        Refusal::Bad(message)
    }
}

impl From<&str> for Refusal {
    fn from(message: &str) -> Refusal {
        Refusal::Bad(message.into())
    }
}

pub(crate) type Decoded<T = ()> = Result<T, Refusal>;

/// A function-level variable's place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Home {
    /// Offset in the kernel's parameters.
    KernelParam(u32),
    /// A parameter variable in the register area: index into `Decoder::memory`.
    Memory(u32),
    /// Offset in the function's local memory.
    Local(u32),
    Shared(u32),
    Register(u32),
}

/// A call with operands still virtual.
pub(crate) struct DraftCall {
    pub callee: u32,
    pub arguments: Vec<V>,
    pub results: Vec<V>,
}

pub(crate) struct Decoder<'m, 'a> {
    pub set: VectorSet,
    pub symbols: &'m HashMap<&'a str, Symbol>,
    pub functions: &'m [Function<'a>],
    pub function: &'m Function<'a>,
    pub body: &'m Body<'a>,
    pub code: &'m mut Code,
    pub drafts: Vec<Draft>,
    pub homes: Vec<Home>,
    /// Bytes per lane of parameter variables.
    pub memory: Vec<u32>,
    pub consts: Vec<(Const, bool)>,
    pub const_index: HashMap<(Const, bool), u32>,
    pub calls: Vec<DraftCall>,
    /// Where instructions remember their last range, by the register with their address.
    pub sites: HashMap<u32, u32>,
    /// Branch targets in tables so far.
    pub table_entries: usize,
    pub out: FunctionCode,
    /// The statement being decoded.
    pub at: &'m Statement<'a>,
    pub mods: Vec<&'a str>,
}

/// Decodes a function with a body into `code`, at the end of its instructions.
pub(crate) fn function<'a>(
    function: &Function<'a>,
    functions: &[Function<'a>],
    symbols: &HashMap<&'a str, Symbol>,
    code: &mut Code,
    set: VectorSet,
) -> Result<FunctionCode, ParseError> {
    let Some(body) = &function.body else {
        return Ok(FunctionCode::default());
    };
    let end = Statement {
        guard: None,
        op: vec!["ret"],
        operands: Vec::new(),
        line: body.statements.last().map_or(function.line, |s| s.line),
        column: 1,
        scope: 0,
    };
    let mut decoder = Decoder {
        set,
        symbols,
        functions,
        function,
        body,
        code,
        drafts: Vec::new(),
        homes: Vec::new(),
        memory: Vec::new(),
        consts: Vec::new(),
        const_index: HashMap::new(),
        calls: Vec::new(),
        sites: HashMap::new(),
        table_entries: 0,
        out: FunctionCode {
            callable: !function.kernel,
            ..FunctionCode::default()
        },
        at: &end,
        mods: Vec::new(),
    };
    decoder.place_variables()?;
    // The instruction each statement begins at; a statement may become several.
    let mut starts = Vec::with_capacity(body.statements.len() + 1);
    for statement in body.statements.iter().chain([&end]) {
        starts.push(decoder.drafts.len() as u32);
        decoder.at = statement;
        decoder.mods.clear();
        decoder.mods.extend(&statement.op[1..]);
        let before = decoder.drafts.len();
        match decoder.statement() {
            Ok(()) => {}
            Err(Refusal::Bad(message)) => {
                return Err(ParseError {
                    line: statement.line,
                    column: statement.column,
                    message,
                    kernel: Some(function.name.into()),
                    opcode: Some(statement.op.join(".")),
                });
            }
            Err(refusal) => {
                decoder.drafts.truncate(before);
                let mut instruction = statement.op.join(".");
                if let Refusal::Missing(callee) = refusal {
                    instruction = format!("{instruction} {callee}");
                }
                decoder
                    .out
                    .unsupported
                    .get_or_insert((instruction, statement.line));
                decoder.emit(ops::unsupported, V::None, [V::None; 3], 0);
            }
        }
        for draft in &mut decoder.drafts[before..] {
            draft.guard = statement.guard;
            if let (Some(_), false) = (statement.guard, draft.own_guard) {
                draft.ends = false;
            }
        }
    }
    decoder.finish(&starts)
}

fn too_large(function: &Function<'_>, what: &str) -> ParseError {
    let mut error = ParseError::new(
        function.line,
        1,
        format!("{what} of `{}` is too large", function.name),
    );
    error.kernel = Some(function.name.into());
    error
}

/// Where parameters lie: offsets in declaration order, each aligned to its own alignment.
pub(crate) fn param_offsets(params: &[Variable<'_>]) -> Option<(Vec<u32>, u32)> {
    let mut offsets = Vec::new();
    let mut at = 0u64;
    for p in params {
        at = at.next_multiple_of(p.align);
        offsets.push(u32::try_from(at).ok()?);
        at = at.checked_add(p.size)?;
        if at > 1 << 16 {
            return None;
        }
    }
    Some((offsets, at as u32))
}

impl<'a> Decoder<'_, 'a> {
    /// Gives every function-level variable its home.
    fn place_variables(&mut self) -> Result<(), ParseError> {
        let (function, body) = (self.function, self.body);
        let formals = function.returns.len() + function.params.len();
        let Some((offsets, _)) = param_offsets(&function.params) else {
            return Err(too_large(function, "the parameter list"));
        };
        let (mut local, mut align) = (0u64, LOCAL_ALIGN);
        let (mut area, mut shared) = (0u64, 0u64);
        for (n, variable) in body.variables.iter().enumerate() {
            let home = match variable.space {
                _ if variable.register.is_some() => Home::Register(variable.register.unwrap_or(0)),
                crate::parse::ast::VarSpace::Param if function.kernel && n < formals => {
                    Home::KernelParam(offsets[n])
                }
                crate::parse::ast::VarSpace::Param => {
                    let bytes = variable.size.next_multiple_of(8).max(8);
                    area += bytes * 32;
                    if bytes > 1 << 16 || area > MAX_AREA {
                        return Err(too_large(function, "the parameters"));
                    }
                    self.memory.push(bytes as u32);
                    Home::Memory(self.memory.len() as u32 - 1)
                }
                crate::parse::ast::VarSpace::Shared => {
                    shared = shared.saturating_add(variable.size);
                    if shared > MAX_STATIC_SHARED {
                        return Err(too_large(function, "the shared memory"));
                    }
                    self.code.shared.push(shared_variable(variable));
                    Home::Shared(self.code.shared.len() as u32 - 1)
                }
                _ => {
                    local = local.next_multiple_of(variable.align);
                    align = align.max(variable.align);
                    let at = local;
                    local += variable.size;
                    if local > 1 << 24 {
                        return Err(too_large(function, "the local memory"));
                    }
                    Home::Local(at as u32)
                }
            };
            self.homes.push(home);
        }
        self.out.local_bytes = local.next_multiple_of(LOCAL_ALIGN) as u32;
        self.out.local_align = align;
        Ok(())
    }

    pub fn has(&self, modifier: &str) -> bool {
        self.mods.contains(&modifier)
    }

    /// The n-th type among the modifiers, from the left.
    pub fn types(&self) -> Vec<Ty> {
        self.mods.iter().filter_map(|m| Ty::read(m)).collect()
    }

    /// The only type, or the last.
    pub fn ty(&self) -> Decoded<Ty> {
        self.mods
            .iter()
            .rev()
            .find_map(|m| Ty::read(m))
            .ok_or_else(|| "the instruction names no type".into())
    }

    pub fn emit(&mut self, exec: Exec, d: V, [a, b, c]: [V; 3], writes: u8) -> &mut Draft {
        self.drafts.push(Draft {
            exec,
            d,
            a,
            b,
            c,
            e: V::None,
            f: V::None,
            not_c: false,
            not_e: false,
            imm: 0,
            aux: 0,
            guard: None,
            own_guard: false,
            writes,
            line: self.at.line,
            targets: Vec::new(),
            target_in_aux: false,
            aux_is_call: false,
            ends: false,
            reads_more: Vec::new(),
            writes_more: Vec::new(),
            list: Vec::new(),
            seen: Seen::Nothing,
        });
        let last = self.drafts.len() - 1;
        &mut self.drafts[last]
    }

    fn statement(&mut self) -> Decoded {
        match self.at.op[0] {
            "add" | "sub" | "mul" | "mad" | "fma" | "div" | "rem" | "abs" | "neg" | "min" | "max" | "rcp"
            | "sqrt" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" | "mul24" | "mad24" | "sad"
            | "addc" | "subc" | "madc" | "copysign" | "testp" => self.arithmetic(),
            "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "shf" | "lop3" | "bfe" | "bfi"
            | "bfind" | "popc" | "clz" | "brev" | "prmt" | "dp4a" | "dp2a" | "fns" | "bmsk" | "szext" => {
                self.bit_operation()
            }
            "setp" | "set" | "selp" | "slct" => self.comparison(),
            "cvt" => self.convert(),
            "mov" | "cvta" | "isspacep" => self.moves(),
            "ld" | "ldu" | "st" | "atom" | "red" | "prefetch" | "prefetchu" | "applypriority" | "discard" => {
                self.memory_access()
            }
            "bra" | "brx" | "ret" | "exit" | "trap" | "brkpt" | "nanosleep" | "pmevent"
            // A kernel here begins after the end of the one before it: there is nothing to wait for.
            | "griddepcontrol" => self.control(),
            "call" => self.call(),
            "bar" | "barrier" | "membar" | "fence" | "shfl" | "vote" | "match" | "activemask" | "redux"
            | "elect" => self.sync(),
            "mma" | "wmma" | "ldmatrix" | "stmatrix" | "movmatrix" => self.matrix(),
            "cp" => self.asynchronous(),
            "mbarrier" => self.barrier_object(),
            "tex" | "tld4" | "txq" | "suld" | "sust" | "suq" => self.texture(),
            _ => Err(Refusal::Unsupported),
        }
    }

    /// The source line of each draft, where launches are watched: that of the last `.loc` before its statement.
    fn sources(&self, starts: &[u32]) -> Vec<(u32, u32)> {
        if self.code.watched.is_none() {
            return Vec::new();
        }
        let mut sources = vec![(0, 0); self.drafts.len()];
        let locations = &self.body.locations;
        for (n, (statement, file, line)) in locations.iter().enumerate() {
            let start = |statement: u32| {
                let start = starts.get(statement as usize).map(|start| *start as usize);
                start.unwrap_or(self.drafts.len())
            };
            let end = locations
                .get(n + 1)
                .map_or(self.drafts.len(), |next| start(next.0));
            if let Some(drafts) = sources.get_mut(start(*statement)..end) {
                drafts.fill((*file, *line));
            }
        }
        sources
    }

    /// Places, final instructions, and what launching must know.
    fn finish(mut self, starts: &[u32]) -> Result<FunctionCode, ParseError> {
        let base = self.code.insts.len() as u32;
        let last = self.drafts.len() as u32 - 1;
        for draft in &mut self.drafts {
            for target in &mut draft.targets {
                *target = starts.get(*target as usize).copied().unwrap_or(last);
            }
        }
        let places = allocate::allocate(&self);
        let mut at = 0u64;
        // 64-bit places first keeps everything aligned to its own size.
        let const_slots: Vec<u32> = self
            .consts
            .iter()
            .map(|(_, wide)| {
                let slot = at;
                at += if *wide { 256 } else { 128 };
                slot.min(u64::from(u32::MAX)) as u32
            })
            .collect();
        let trash = at;
        at += 256;
        let wide = at;
        at += u64::from(places.wide_slots) * 256;
        let narrow = at;
        at += u64::from(places.narrow_slots) * 128;
        let preds = at;
        at += u64::from(places.pred_slots) * 4;
        let (trash_pred, carry) = (at, at + 4);
        at = (at + 8).next_multiple_of(64);
        let memory: Vec<u64> = self
            .memory
            .iter()
            .map(|bytes| {
                let slot = at;
                at += u64::from(*bytes) * 32;
                slot
            })
            .collect();
        if at > MAX_AREA {
            return Err(too_large(self.function, "the register area"));
        }
        let slot = |v: V| -> u32 {
            match v {
                V::None => NONE,
                V::Reg(r) => match places.of[r as usize] {
                    allocate::Where::Narrow(n) => narrow as u32 + n * 128,
                    allocate::Where::Wide(n) => wide as u32 + n * 256,
                    allocate::Where::Pred(n) => preds as u32 + n * 4,
                    allocate::Where::Nowhere => trash as u32,
                },
                V::Const(n) => const_slots[n as usize],
                V::Memory(n) => memory[n as usize] as u32,
                V::Trash => trash as u32,
                V::TrashPred => trash_pred as u32,
                V::Carry => carry as u32,
            }
        };
        let body = self.body;
        let place = |v: V| match v {
            V::Reg(r) => match body.registers[r as usize].ty {
                Ty::Pred => crate::code::Place::Pred(slot(v)),
                ty if ty.bytes() > 4 => crate::code::Place::Wide(slot(v)),
                _ => crate::code::Place::Reg(slot(v)),
            },
            V::Const(n) if self.consts[n as usize].1 => crate::code::Place::Wide(slot(v)),
            V::Const(_) => crate::code::Place::Reg(slot(v)),
            V::Memory(n) => crate::code::Place::Memory {
                slot: slot(v),
                bytes: self.memory[n as usize],
            },
            _ => crate::code::Place::Nowhere,
        };
        let calls_from = self.code.calls.len() as u32;
        for call in &self.calls {
            let places = |list: &[V]| list.iter().map(|v| place(*v)).collect();
            let (arguments, results) = (places(&call.arguments), places(&call.results));
            self.code.calls.push(Call {
                callee: call.callee,
                arguments,
                results,
            });
        }
        let sources = self.sources(starts);
        for (n, draft) in self.drafts.iter().enumerate() {
            let exec = match &mut self.code.watched {
                Some(watched) => {
                    watched.insts.push(WatchedInst {
                        exec: draft.exec,
                        outer: draft.exec,
                        seen: draft.seen,
                        source: sources.get(n).copied().unwrap_or_default(),
                    });
                    watch::in_front_of(draft.exec, draft.seen)
                }
                None => draft.exec,
            };
            let guard = draft
                .guard
                .map_or(NONE, |(r, negated)| slot(V::Reg(r)) | u32::from(negated));
            let mut inst = Inst {
                exec,
                inner: exec,
                imm: draft.imm,
                d: slot(draft.d),
                a: slot(draft.a),
                b: slot(draft.b),
                c: slot(draft.c),
                e: slot(draft.e),
                f: slot(draft.f),
                guard,
                aux: draft.aux,
                line: draft.line,
            };
            if draft.not_c {
                inst.c |= 1;
            }
            if draft.not_e {
                inst.e |= 1;
            }
            if draft.target_in_aux {
                inst.aux = base + draft.targets[0];
            } else if !draft.targets.is_empty() {
                inst.aux = self.code.tables.len() as u32;
                self.code.tables.extend(draft.targets.iter().map(|t| base + t));
            }
            if draft.aux_is_call {
                inst.aux += calls_from;
            }
            if !draft.list.is_empty() {
                inst.e = self.code.slots.len() as u32;
                self.code.slots.extend(draft.list.iter().map(|v| slot(*v)));
            }
            if guard != NONE && !draft.own_guard {
                inst.exec = ops::guarded;
            }
            if let Some(watched) = self.code.watched.as_mut().filter(|watched| watched.everything)
                && let Some(last) = watched.insts.last_mut()
            {
                last.outer = inst.exec;
                inst.exec = watch::counted;
            }
            self.code.insts.push(inst);
        }
        let formal = |list: &[Variable<'a>], from: usize| -> Vec<crate::code::Place> {
            (0..list.len())
                .map(|n| match self.homes[from + n] {
                    Home::Register(r) => place(V::Reg(r)),
                    Home::Memory(m) => place(V::Memory(m)),
                    _ => crate::code::Place::Nowhere,
                })
                .collect()
        };
        let returns = formal(&self.function.returns, 0);
        let params = formal(&self.function.params, self.function.returns.len());
        let consts = self.consts.iter().zip(&const_slots);
        let consts = consts
            .map(|((value, wide), slot)| crate::code::ConstSlot {
                slot: *slot,
                wide: *wide,
                value: *value,
            })
            .collect();
        self.out.callees.sort_unstable();
        self.out.callees.dedup();
        self.out.shared.sort_unstable();
        self.out.shared.dedup();
        let lives = (0..places.lives.len() as u32)
            .filter_map(|r| {
                let life = places.lives[r as usize]?;
                Some(crate::code::Life {
                    slot: slot(V::Reg(r)),
                    from: base.saturating_add(life.from),
                    to: base.saturating_add(life.to),
                    written_once: life.written_once,
                })
            })
            .collect();
        Ok(FunctionCode {
            entry: base,
            end: self.code.insts.len() as u32,
            lives,
            consts,
            area_bytes: at as u32,
            narrow: (narrow as u32, preds as u32),
            wide: (wide as u32, narrow as u32),
            preds: (preds as u32, trash_pred as u32),
            memory: memory
                .iter()
                .zip(&self.memory)
                .map(|(slot, bytes)| (*slot as u32, *bytes))
                .collect(),
            params,
            returns,
            registers: (places.narrow_slots + 2 * places.wide_slots + 2).clamp(1, 255),
            ..self.out
        })
    }
}

pub(crate) fn shared_variable(variable: &Variable<'_>) -> SharedVariable {
    SharedVariable {
        bytes: variable.size,
        align: variable.align,
        dynamic: variable.unsized_array,
    }
}
