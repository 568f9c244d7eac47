//! What the parser hands the decoder: names of registers and local variables are resolved, instructions are not.

use crate::types::Ty;
use std::collections::HashMap;

/// State space of a declared variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VarSpace {
    Global,
    Const,
    Shared,
    Local,
    Param,
}

/// One element of an initialiser: a value of the variable's element type.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Element<'a> {
    /// Raw bits, to be cut to the element's size.
    Bits(u64),
    /// Address of a symbol plus an addend, shifted right and cut: `sym+8`, `generic(sym)`, `0xFF00(sym)`.
    Address { name: &'a str, addend: i64, shift: u32 },
}

#[derive(Clone, Debug)]
pub(crate) struct Variable<'a> {
    pub name: &'a str,
    pub space: VarSpace,
    /// Element type.
    pub ty: Ty,
    /// In bytes.
    pub size: u64,
    /// Bytes of one element of the array.
    pub element: u64,
    pub align: u64,
    /// A `[]` array: its size comes from elsewhere.
    pub unsized_array: bool,
    pub external: bool,
    /// `.weak` or `.common`: another definition of the name takes its place.
    pub weak: bool,
    /// Elements in order; what is not given is zero.
    pub init: Vec<Element<'a>>,
    /// A formal parameter declared `.reg`: its register.
    pub register: Option<u32>,
    pub line: u32,
}

/// A register operand's declared type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Register {
    pub ty: Ty,
}

#[derive(Clone, Debug)]
pub(crate) enum Operand<'a> {
    Reg(u32),
    /// `%tid.x`, `WARP_SZ`.
    Special(&'a str),
    Int(u64),
    F32(u32),
    F64(u64),
    /// A function-level variable's address.
    Var(u32, i64),
    /// A label, or a module-level name.
    Name(&'a str, i64),
    /// `[base+offset]`.
    Address(Box<Operand<'a>>, i64),
    /// `[object, {x, y}]` of a texture or surface.
    Coordinates(Box<Operand<'a>>, Vec<Operand<'a>>),
    /// `array[%r+n]`: the array's address and `n` in bytes, the index register, and the bytes of an element.
    Element(Box<Operand<'a>>, u32, u64),
    /// `array[n]` where an address in memory is meant as well as where the address itself is.
    ElementAt(Box<Operand<'a>>),
    /// `{a, b}`.
    Vector(Vec<Operand<'a>>),
    /// `(a, b)` of a call.
    List(Vec<Operand<'a>>),
    /// `!p`.
    Not(u32),
    /// `d|p`.
    Pair(Box<Operand<'a>>, Box<Operand<'a>>),
    /// `_`.
    Sink,
}

#[derive(Clone, Debug)]
pub(crate) struct Statement<'a> {
    /// Register and whether it is negated.
    pub guard: Option<(u32, bool)>,
    /// The opcode cut at its dots.
    pub op: Vec<&'a str>,
    pub operands: Vec<Operand<'a>>,
    pub line: u32,
    pub column: u32,
    pub scope: u32,
}

/// Label tables and call prototypes, declared under a label.
#[derive(Clone, Debug)]
pub(crate) enum Table<'a> {
    Branches(Vec<&'a str>),
    Calls,
    Prototype,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Body<'a> {
    pub registers: Vec<Register>,
    pub variables: Vec<Variable<'a>>,
    pub statements: Vec<Statement<'a>>,
    /// Parent of each brace scope; scope 0 is its own parent.
    pub scopes: Vec<u32>,
    /// By scope and name: the statement a label stands before.
    pub labels: HashMap<(u32, &'a str), u32>,
    pub tables: HashMap<(u32, &'a str), Table<'a>>,
    /// `.loc`: the statement it stands before, the file's number and the line.
    pub locations: Vec<(u32, u32, u32)>,
}

impl<'a> Body<'a> {
    fn climb<T>(&self, mut scope: u32, get: impl Fn(u32) -> Option<T>) -> Option<T> {
        loop {
            if let Some(found) = get(scope) {
                return Some(found);
            }
            if scope == 0 {
                return None;
            }
            scope = self.scopes[scope as usize];
        }
    }

    /// Where a label leads, seen from `scope`.
    pub fn label(&self, scope: u32, name: &'a str) -> Option<u32> {
        self.climb(scope, |s| self.labels.get(&(s, name)).copied())
    }

    pub fn table(&self, scope: u32, name: &'a str) -> Option<&Table<'a>> {
        self.climb(scope, |s| self.tables.get(&(s, name)))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Function<'a> {
    pub name: &'a str,
    pub kernel: bool,
    pub returns: Vec<Variable<'a>>,
    pub params: Vec<Variable<'a>>,
    /// `.maxntid` or `.reqntid`.
    pub max_threads: Option<[u32; 3]>,
    /// `.weak`: another definition of the name takes its place.
    pub weak: bool,
    /// How many parameters and results other declarations of the name have: a text that was linked from several may
    /// call it so.
    pub prototypes: Vec<(usize, usize)>,
    /// `.maxnreg`.
    pub max_registers: Option<u32>,
    pub body: Option<Body<'a>>,
    pub line: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Text<'a> {
    /// The number of `.target sm_90a`: 90.
    pub target: u32,
    pub variables: Vec<Variable<'a>>,
    pub functions: Vec<Function<'a>>,
    /// `.alias a, b`: a is another name of b.
    pub aliases: Vec<(&'a str, &'a str)>,
    /// `.file`: numbers and names.
    pub files: HashMap<u32, &'a [u8]>,
}
