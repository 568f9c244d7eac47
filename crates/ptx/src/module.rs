//! A parsed and decoded module, and its linking to device addresses.

use crate::code::{Code, LOCAL_ALIGN, SharedVariable, Watched};
use crate::decode::{self, Symbol};
use crate::error::{LinkError, ParseError, Unsupported};
use crate::inst::VectorSet;
use crate::parse::ast::{Element, Text, VarSpace, Variable};
use crate::parse::parse;
use crate::types::Space;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Steps along calls that describing all kernels may take: a text of many kernels that call much is quadratic.
const MAX_STEPS: usize = 32 << 20;

/// One parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Offset in the parameter bytes.
    pub offset: u32,
    /// In bytes.
    pub size: u32,
    /// In bytes.
    pub align: u32,
}

/// What a launch needs to know of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// As in the text, so mangled where the compiler mangles.
    pub name: String,
    /// In declaration order.
    pub params: Vec<Param>,
    /// All parameters together.
    pub param_bytes: u32,
    /// Shared memory of a block that the text declares with its size.
    pub static_shared_bytes: u32,
    /// Local memory of a thread, with that of the functions it calls.
    pub local_bytes: u32,
    /// Estimate of 32-bit registers a thread needs, 1..=255, and at most what `.maxnreg` says.
    pub registers: u32,
    /// `.maxntid` or `.reqntid`.
    pub max_threads: Option<[u32; 3]>,
    /// The first instruction it reaches that the engine does not implement.
    pub unsupported: Option<Unsupported>,
}

/// Where an instruction comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Line in the PTX text, from 1.
    pub line: u32,
    /// That line, without comments.
    pub text: String,
    /// The source file's name and the line in it, where the text says so by `.file` and `.loc`.
    pub source: Option<(String, u32)>,
}

/// A `.global` or `.const` variable of the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Global {
    /// As in the text.
    pub name: String,
    /// In bytes; zero for `[]`.
    pub size: u64,
    /// In bytes.
    pub align: u64,
    /// Where it lives.
    pub space: Space,
    /// Defined elsewhere.
    pub external: bool,
}

/// Part of a variable's initial value.
#[derive(Clone, Copy, Debug)]
enum Init {
    Bits(u64),
    Global { index: u32, addend: i64, shift: u32 },
    Function { index: u32, shift: u32 },
}

/// Parsed and decoded PTX; immutable.
pub struct Module {
    target: u32,
    kernels: Vec<Kernel>,
    functions_of_kernels: Vec<u32>,
    names: HashMap<String, usize>,
    globals: Vec<Global>,
    /// Element size and values of each global.
    inits: Vec<(u32, Vec<Init>)>,
    code: Arc<Code>,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module")
            .field("kernels", &self.kernels)
            .field("globals", &self.globals)
            .finish_non_exhaustive()
    }
}

impl Module {
    /// Reads PTX text. NUL bytes at its end are accepted.
    ///
    /// ```
    /// let ptx = b".version 8.0 .target sm_80 .address_size 64 .visible .entry empty() { ret; }";
    /// let module = divvy_ptx::Module::parse(ptx)?;
    /// assert_eq!(module.kernels().len(), 1);
    /// assert!(divvy_ptx::Module::parse(b".entry").is_err());
    /// # Ok::<(), divvy_ptx::ParseError>(())
    /// ```
    ///
    /// # Errors
    /// The first thing in the text that is not PTX, or that cannot be decoded, with its place. An instruction that is
    /// merely not implemented is no error: see [`Kernel::unsupported`].
    pub fn parse(text: &[u8]) -> Result<Module, ParseError> {
        Module::parse_for(text, VectorSet::detect())
    }

    /// As [`Module::parse`], with the vector instructions named: for comparing them.
    ///
    /// # Errors
    /// As [`Module::parse`].
    pub fn parse_for(text: &[u8], set: VectorSet) -> Result<Module, ParseError> {
        // Features that the machine does not have are not used, even if the caller asks for them.
        let set = if VectorSet::detect() == VectorSet::Portable {
            VectorSet::Portable
        } else {
            set
        };
        Builder::default().build(&parse(text)?, set)
    }

    /// As [`Module::parse`], for launches that are watched: [`crate::Engine::run_watched`].
    ///
    /// # Errors
    /// As [`Module::parse`].
    pub fn parse_watched(text: &[u8]) -> Result<Module, ParseError> {
        Module::parse_with(text, false)
    }

    /// As [`Module::parse_watched`]; each instruction is told of, by `Watch::issue`.
    ///
    /// # Errors
    /// As [`Module::parse`].
    pub fn parse_counted(text: &[u8]) -> Result<Module, ParseError> {
        Module::parse_with(text, true)
    }

    fn parse_with(text: &[u8], everything: bool) -> Result<Module, ParseError> {
        let parsed = parse(text)?;
        let name = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let mut builder = Builder::default();
        builder.code.watched = Some(Watched {
            insts: Vec::new(),
            files: parsed
                .files
                .iter()
                .map(|(number, of)| (*number, name(of)))
                .collect(),
            text: text.to_vec(),
            everything,
        });
        builder.build(&parsed, VectorSet::detect())
    }

    /// As [`Module::place`], of the first instruction of a line.
    pub fn place_at_line(&self, line: u32) -> Option<Place> {
        let at = self.code.insts.iter().position(|inst| inst.line == line)?;
        self.place(at as u32)
    }

    /// Where an instruction comes from, by its number; None where the module was not parsed for watching.
    pub fn place(&self, instruction: u32) -> Option<Place> {
        let watched = self.code.watched.as_ref()?;
        let inst = watched.insts.get(instruction as usize)?;
        let line = self.code.insts.get(instruction as usize)?.line;
        let lines = watched.text.split(|byte| *byte == b'\n');
        let text = lines.into_iter().nth((line as usize).saturating_sub(1));
        let text = String::from_utf8_lossy(text.unwrap_or_default());
        // Of several statements in a line the first one's is as good as any.
        let text = text.split("//").next().unwrap_or_default().trim();
        let (file, source_line) = inst.source;
        let source = watched.files.get(&file).map(|name| (name.clone(), source_line));
        Some(Place {
            line,
            text: text.to_owned(),
            source: source.filter(|_| source_line != 0),
        })
    }

    /// The compute capability that the text says it is for, as in `.target sm_90a`: 90. 0 where it names none.
    pub fn target(&self) -> u32 {
        self.target
    }

    /// Every `.entry`, in order.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// The kernel of this name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernel_index(name).map(|n| &self.kernels[n])
    }

    /// Module variables in global and constant memory.
    pub fn globals(&self) -> &[Global] {
        &self.globals
    }

    /// Gives every global its device address: `place` is asked for each, extern ones too.
    ///
    /// # Errors
    /// A global that `place` gives the address 0.
    pub fn link(self: &Arc<Module>, place: &mut dyn FnMut(&Global) -> u64) -> Result<Program, LinkError> {
        let mut addresses = Vec::with_capacity(self.globals.len());
        for global in &self.globals {
            let address = place(global);
            if address == 0 {
                return Err(LinkError {
                    message: format!("`{}` has no address", global.name),
                });
            }
            addresses.push(address);
        }
        Ok(Program {
            linked: Arc::new(Linked {
                module: self.clone(),
                addresses,
            }),
        })
    }

    /// Lines of the text whose instructions compiled code leaves to the interpreter, of a kernel and what it calls.
    /// `None` where all of it is interpreted: there is no such kernel, or the module cannot be compiled here.
    pub fn interpreted_lines(&self, kernel: &str) -> Option<Vec<u32>> {
        #[cfg(target_arch = "x86_64")]
        {
            let function = self.kernel_function(self.kernel_index(kernel)?);
            self.code.native()?;
            let functions = self
                .reachable(function)
                .into_iter()
                .map(|f| &self.code.functions[f as usize]);
            let insts = functions.flat_map(|f| &self.code.insts[f.entry as usize..f.end as usize]);
            let left = insts.filter(|inst| !crate::compile::is_compiled(inst));
            Some(left.map(|inst| inst.line).collect())
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = kernel;
            None
        }
    }

    pub(crate) fn kernel_index(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    pub(crate) fn kernel_function(&self, kernel: usize) -> u32 {
        self.functions_of_kernels[kernel]
    }

    pub(crate) fn code(&self) -> &Code {
        &self.code
    }

    /// The code, as launches hold it while they run.
    pub(crate) fn shared_code(&self) -> Arc<Code> {
        Arc::clone(&self.code)
    }

    pub(crate) fn reachable(&self, function: u32) -> Vec<u32> {
        reachable(&self.code, function)
    }

    /// Offsets of shared variables for a launch of these functions, and the bytes of the static ones.
    pub(crate) fn shared_layout(&self, functions: &[u32]) -> (Vec<u64>, u64) {
        shared_layout(&self.code, functions)
    }
}

fn reachable(code: &Code, function: u32) -> Vec<u32> {
    let mut found = vec![function];
    let mut seen = HashSet::from([function]);
    let mut at = 0;
    while at < found.len() {
        let f = &code.functions[found[at] as usize];
        for callee in &f.callees {
            if seen.insert(*callee) {
                found.push(*callee);
            }
        }
        at += 1;
    }
    found
}

fn shared_layout(code: &Code, functions: &[u32]) -> (Vec<u64>, u64) {
    let mut offsets = vec![0u64; code.shared.len()];
    let mut used: Vec<u32> = functions
        .iter()
        .flat_map(|f| code.functions[*f as usize].shared.iter().copied())
        .collect();
    used.sort_unstable();
    used.dedup();
    let mut at = 0u64;
    let (mut dynamic, mut align) = (Vec::new(), 1);
    for n in used {
        let SharedVariable {
            bytes,
            align: a,
            dynamic: d,
        } = code.shared[n as usize];
        if d {
            dynamic.push(n);
            align = align.max(a);
        } else {
            at = at.next_multiple_of(a);
            offsets[n as usize] = at;
            at = at.saturating_add(bytes);
        }
    }
    if !dynamic.is_empty() {
        at = at.next_multiple_of(align.max(16));
    }
    for n in dynamic {
        offsets[n as usize] = at;
    }
    (offsets, at)
}

struct Linked {
    module: Arc<Module>,
    addresses: Vec<u64>,
}

/// A module with addresses: cheap to clone.
#[derive(Clone)]
pub struct Program {
    linked: Arc<Linked>,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program")
            .field("module", &self.linked.module)
            .finish_non_exhaustive()
    }
}

impl Program {
    /// The module it was linked from.
    pub fn module(&self) -> &Module {
        &self.linked.module
    }

    pub(crate) fn addresses(&self) -> &[u64] {
        &self.linked.addresses
    }

    /// What a global holds before any kernel runs; `None` for zeros, and for a global of another module.
    pub fn initial_bytes(&self, global: &Global) -> Option<Vec<u8>> {
        let module = self.module();
        let index = module.globals.iter().position(|g| g.name == global.name)?;
        let (element, values) = &module.inits[index];
        if values.is_empty() {
            return None;
        }
        let mut bytes = Vec::with_capacity(module.globals[index].size as usize);
        for value in values {
            let word = match *value {
                Init::Bits(bits) => bits,
                Init::Global { index, addend, shift } => {
                    self.linked.addresses[index as usize].wrapping_add(addend as u64) >> shift
                }
                Init::Function { index, shift } => {
                    (crate::code::FUNCTION_ADDRESS + u64::from(index) * 16) >> shift
                }
            };
            bytes.extend_from_slice(&word.to_le_bytes()[..*element as usize]);
        }
        bytes.resize(module.globals[index].size as usize, 0);
        Some(bytes)
    }
}

#[derive(Default)]
struct Builder<'a> {
    symbols: HashMap<&'a str, Symbol>,
    globals: Vec<Global>,
    code: Code,
}

impl<'a> Builder<'a> {
    fn build(mut self, text: &'a Text<'a>, set: VectorSet) -> Result<Module, ParseError> {
        let mut kept: Vec<&Variable<'a>> = Vec::new();
        for variable in &text.variables {
            self.variable(variable, &mut kept)?;
        }
        for (n, function) in text.functions.iter().enumerate() {
            if self
                .symbols
                .insert(function.name, Symbol::Function(n as u32))
                .is_some()
            {
                return Err(ParseError::new(
                    function.line,
                    1,
                    format!("`{}` is declared twice", function.name),
                ));
            }
        }
        for (alias, of) in &text.aliases {
            if let Some(symbol) = self.symbols.get(of).copied() {
                self.symbols.insert(alias, symbol);
            }
        }
        let mut inits = Vec::new();
        for variable in &kept {
            inits.push((variable.ty.bytes().min(8), self.init(variable)?));
        }
        for function in &text.functions {
            let decoded = decode::function(function, &text.functions, &self.symbols, &mut self.code, set)?;
            self.code.functions.push(decoded);
        }
        // A call through a register may be of any function whose address is taken.
        let addressed: Vec<u32> = self.code.addressed.iter().copied().collect();
        let too_large = || Err(ParseError::new(1, 1, "the module's calls are too many to follow"));
        let mut steps = addressed.len() * self.code.functions.iter().filter(|f| f.indirect).count();
        if steps > MAX_STEPS {
            return too_large();
        }
        for function in self.code.functions.iter_mut().filter(|f| f.indirect) {
            function.callees.extend(&addressed);
            function.callees.sort_unstable();
            function.callees.dedup();
        }
        mark_recursion(&mut self.code);
        let mut module = Module {
            target: text.target,
            kernels: Vec::new(),
            functions_of_kernels: Vec::new(),
            names: HashMap::new(),
            globals: self.globals,
            inits,
            code: Arc::new(self.code),
        };
        for (n, function) in text.functions.iter().enumerate() {
            if function.kernel && function.body.is_some() {
                let reachable = module.reachable(n as u32);
                let edges: usize = reachable
                    .iter()
                    .map(|f| module.code.functions[*f as usize].callees.len() + 1)
                    .sum();
                steps += edges + module.code.shared.len();
                if steps > MAX_STEPS {
                    return too_large();
                }
                let kernel = module.describe(function, n as u32, &reachable)?;
                module.names.insert(kernel.name.clone(), module.kernels.len());
                module.kernels.push(kernel);
                module.functions_of_kernels.push(n as u32);
            }
        }
        Ok(module)
    }

    fn variable(
        &mut self,
        variable: &'a Variable<'a>,
        kept: &mut Vec<&'a Variable<'a>>,
    ) -> Result<(), ParseError> {
        let error = |message: String| Err(ParseError::new(variable.line, 1, message));
        let symbol = match variable.space {
            VarSpace::Global | VarSpace::Const => {
                let known = match self.symbols.get(variable.name) {
                    Some(Symbol::Global(n)) => Some(*n as usize),
                    Some(_) => return error(format!("`{}` is declared twice", variable.name)),
                    None => None,
                };
                let global = Global {
                    name: variable.name.into(),
                    size: variable.size,
                    align: variable.align,
                    space: if variable.space == VarSpace::Const {
                        Space::Const
                    } else {
                        Space::Global
                    },
                    external: variable.external,
                };
                match known {
                    // An extern declaration and the definition are one variable.
                    Some(n) if self.globals[n].external => {
                        self.globals[n] = global;
                        kept[n] = variable;
                        return Ok(());
                    }
                    Some(_) if variable.external => return Ok(()),
                    // Of two definitions the first holds, unless only that one is weak.
                    Some(n) if kept[n].weak && !variable.weak => {
                        self.globals[n] = global;
                        kept[n] = variable;
                        return Ok(());
                    }
                    Some(_) if variable.weak => return Ok(()),
                    Some(_) => return error(format!("`{}` is declared twice", variable.name)),
                    None => {}
                }
                self.globals.push(global);
                kept.push(variable);
                Symbol::Global(self.globals.len() as u32 - 1)
            }
            VarSpace::Shared => {
                self.code.shared.push(decode::shared_variable(variable));
                Symbol::Shared(self.code.shared.len() as u32 - 1)
            }
            _ => Symbol::Local,
        };
        if self.symbols.insert(variable.name, symbol).is_some() {
            return error(format!("`{}` is declared twice", variable.name));
        }
        Ok(())
    }

    fn init(&mut self, variable: &Variable<'a>) -> Result<Vec<Init>, ParseError> {
        variable
            .init
            .iter()
            .map(|element| match element {
                Element::Bits(bits) => Ok(Init::Bits(*bits)),
                Element::Address { name, addend, shift } => match self.symbols.get(name) {
                    Some(Symbol::Global(index)) => Ok(Init::Global {
                        index: *index,
                        addend: *addend,
                        shift: *shift,
                    }),
                    Some(Symbol::Function(index)) => {
                        self.code.addressed.insert(*index);
                        Ok(Init::Function {
                            index: *index,
                            shift: *shift,
                        })
                    }
                    _ => Err(ParseError::new(
                        variable.line,
                        1,
                        format!("`{name}` has no address here"),
                    )),
                },
            })
            .collect()
    }
}

/// Marks functions that can call themselves, directly or not. Tarjan's strong components, without recursion.
fn mark_recursion(code: &mut Code) {
    let count = code.functions.len();
    let (mut index, mut low) = (vec![u32::MAX; count], vec![0u32; count]);
    let (mut on_stack, mut stack, mut next) = (vec![false; count], Vec::new(), 0u32);
    for root in 0..count {
        if index[root] != u32::MAX {
            continue;
        }
        let mut work = vec![(root, 0usize)];
        while let Some((f, edge)) = work.pop() {
            if edge == 0 {
                index[f] = next;
                low[f] = next;
                next += 1;
                stack.push(f);
                on_stack[f] = true;
            }
            if let Some(callee) = code.functions[f].callees.get(edge).map(|c| *c as usize) {
                work.push((f, edge + 1));
                if callee == f {
                    code.functions[f].recursive = true;
                }
                if index[callee] == u32::MAX {
                    work.push((callee, 0));
                } else if on_stack[callee] {
                    low[f] = low[f].min(index[callee]);
                }
                continue;
            }
            if low[f] == index[f] {
                let from = stack.iter().rposition(|g| *g == f).unwrap_or(0);
                let members = stack.split_off(from);
                for g in &members {
                    on_stack[*g] = false;
                    code.functions[*g].recursive |= members.len() > 1;
                }
            }
            if let Some((caller, _)) = work.last() {
                low[*caller] = low[*caller].min(low[f]);
            }
        }
    }
}

impl Module {
    fn describe(
        &self,
        function: &crate::parse::ast::Function<'_>,
        index: u32,
        reachable: &[u32],
    ) -> Result<Kernel, ParseError> {
        let too_large = |what: &str| {
            Err(ParseError::new(
                function.line,
                1,
                format!("{what} of `{}` is too large", function.name),
            ))
        };
        let Some((offsets, param_bytes)) = decode::param_offsets(&function.params) else {
            return too_large("the parameter list");
        };
        let params = function.params.iter().zip(&offsets);
        let params = params
            .map(|(p, offset)| Param {
                offset: *offset,
                size: p.size as u32,
                align: p.align as u32,
            })
            .collect();
        let (_, static_shared) = self.shared_layout(reachable);
        if static_shared > decode::MAX_STATIC_SHARED {
            return too_large("the shared memory");
        }
        let static_shared_bytes = static_shared as u32;
        let functions = reachable.iter().map(|f| &self.code.functions[*f as usize]);
        let unsupported = functions.clone().find_map(|f| f.unsupported.clone());
        Ok(Kernel {
            name: function.name.into(),
            params,
            param_bytes,
            static_shared_bytes,
            local_bytes: self.local_bytes(index, reachable),
            registers: functions
                .map(|f| f.registers)
                .max()
                .unwrap_or(1)
                .clamp(1, function.max_registers.unwrap_or(255).clamp(1, 255)),
            max_threads: function.max_threads,
            unsupported: unsupported.map(|(instruction, line)| Unsupported {
                instruction,
                kernel: function.name.into(),
                line,
            }),
        })
    }

    /// The deepest stack of frames without recursion.
    fn local_bytes(&self, root: u32, reachable: &[u32]) -> u32 {
        let mut deepest: HashMap<u32, u64> = HashMap::new();
        // Callees come after their callers in `reachable`, except round a cycle, which has a stack of its own.
        let mut work = vec![(root, false)];
        while let Some((f, done)) = work.pop() {
            if deepest.contains_key(&f) && !done {
                continue;
            }
            let function = &self.code.functions[f as usize];
            let below = function
                .callees
                .iter()
                .filter_map(|c| {
                    // A frame that wants more than the usual alignment may begin that much later.
                    let align = self.code.functions[*c as usize].local_align.max(LOCAL_ALIGN);
                    deepest.get(c).map(|bytes| bytes + align - LOCAL_ALIGN)
                })
                .max()
                .unwrap_or(0);
            if done {
                deepest.insert(f, u64::from(function.local_bytes) + below);
            } else {
                deepest.insert(f, 0);
                work.push((f, true));
                for callee in function
                    .callees
                    .iter()
                    .filter(|c| reachable.len() > 1 && !deepest.contains_key(c))
                {
                    work.push((*callee, false));
                }
            }
        }
        deepest.get(&root).copied().unwrap_or(0).min(u64::from(u32::MAX)) as u32
    }
}
