//! A compiler: the module's instructions as machine code for processors with AVX-512.
//!
//! The interpreter stays what it is: it holds a warp's splits, runs what is not compiled, and can take over between
//! any two instructions, because every register has its home in the warp's register area. Compiled code runs from one
//! place where the warp's loop must look up to the next: a branch that lanes disagree on, a barrier, the end of a slice.
//!
//! - `asm`: encodes instructions
//! - `table`: which instructions are compiled, and to what
//! - `cache`: which registers of the warp are in vector registers
//! - `facts`, `lanes`: how long a register is needed, and how its lanes lie
//! - `rounds`: loops that keep registers
//! - `emit`, `leave`, `stub`, `frame`: instructions in their order; how code is left, and entered
//! - `predicate`, `data`, `access`: predicates; arithmetic; memory
//! - `home`: registers' homes
//! - `constants`, `buffer`: what code reads, and the memory it is in

mod access;
mod asm;
mod buffer;
mod cache;
mod constants;
mod data;
mod emit;
mod facts;
mod frame;
mod home;
mod lanes;
mod leave;
mod predicate;
mod rounds;
mod stub;
mod table;

use crate::code::Code;
use crate::engine::control;
use crate::engine::ctx::Ctx;
use crate::inst::{Flow, Inst};
use asm::Asm;
use buffer::Pages;
use constants::Pool;
use emit::Emitter;
use facts::Facts;
use frame::NOWHERE;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

pub use buffer::limit_code;

/// Instructions of a module beyond which it is left to the interpreter: their code would take hundreds of megabytes.
const MAX_INSTRUCTIONS: usize = 1 << 18;

type Enter = unsafe extern "sysv64" fn(*mut Ctx, *mut u8, *const Inst, *const u8) -> u32;

/// A module's machine code.
pub(crate) struct Native {
    /// Each is made when something asks for it.
    versions: [OnceLock<Option<Version>>; 5],
}

/// The code for warps of one kind.
struct Version {
    pages: Pages,
    enter: Enter,
    /// Where native code for each instruction begins.
    entries: Vec<u32>,
}

/// What is known of a warp that code is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Any of its lanes are active.
    Any = 0,
    /// All of them are.
    Full = 1,
    /// So they are, and all in a row of the block.
    Rows = 2,
    /// All of them have always gone the same way.
    Whole = 3,
    /// So they have, and are all in a row of the block.
    WholeRows = 4,
}

impl Kind {
    /// Of a warp that has all its lanes, or not.
    pub fn of(full: bool, rows: bool) -> Kind {
        match (full, rows) {
            (false, _) => Kind::Any,
            (true, false) => Kind::Full,
            (true, true) => Kind::Rows,
        }
    }

    /// Of a warp whose lanes have always gone the same way.
    pub fn whole(rows: bool) -> Kind {
        if rows { Kind::WholeRows } else { Kind::Whole }
    }
}

/// Where code begins.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    enter: Enter,
    at: *const u8,
}

impl Entry {
    /// The address of its code.
    pub fn address(self) -> *const u8 {
        self.at
    }
}

impl Native {
    /// Begins to compile a module; `None` where this processor, or the system, does not have what it takes.
    pub fn compile(code: &Code) -> Option<Native> {
        if !can_run() || code.insts.is_empty() || code.insts.len() > MAX_INSTRUCTIONS {
            return None;
        }
        let native = Native {
            versions: [const { OnceLock::new() }; 5],
        };
        // The others can do without any of their own.
        native.version(code, Kind::Any).is_some().then_some(native)
    }

    fn version(&self, code: &Code, kind: Kind) -> Option<&Version> {
        let version = self.versions[kind as usize].get_or_init(|| Version::compile(code, kind));
        version.as_ref()
    }

    /// Where code for `pc` begins, for a warp of this kind. Code for full warps has fewer places to begin at: elsewhere
    /// it is that for any, if it may be.
    #[inline]
    pub fn entry(&self, code: &Code, pc: u32, kind: Kind) -> Option<Entry> {
        let find = |kind| self.version(code, kind).and_then(|version| version.entry(pc));
        match kind {
            Kind::Any | Kind::Whole | Kind::WholeRows => find(kind),
            Kind::Full | Kind::Rows => find(kind).or_else(|| find(Kind::Any)),
        }
    }

    /// Runs from an entry on. `Ctx::at` is the instruction that gave the flow, `Ctx::count` goes on counting.
    ///
    /// # Safety
    /// `c` holds the registers of the function that the entry is in, `insts` are the module's instructions, and the entry is
    /// of the version for the lanes that are active.
    pub unsafe fn run(&self, c: &mut Ctx, insts: &[Inst], entry: Entry) -> Flow {
        let regs = c.regs;
        // SAFETY: the entry lies in pages of ours; the rest is the caller's promise.
        let flow = unsafe { (entry.enter)(c, regs, insts.as_ptr(), entry.at) };
        if c.panic.is_some()
            && let Some(panic) = c.panic.take()
        {
            std::panic::resume_unwind(panic);
        }
        Flow::from_code(flow)
    }
}

impl Version {
    fn compile(code: &Code, kind: Kind) -> Option<Version> {
        let (full, whole) = (kind != Kind::Any, matches!(kind, Kind::Whole | Kind::WholeRows));
        let rows = matches!(kind, Kind::Rows | Kind::WholeRows);
        let interpret: unsafe extern "sysv64" fn(*mut Ctx, *const Inst) -> u32 = interpret;
        let pool = Pool::new(interpret as usize as u64);
        let mut asm = Asm::default();
        asm.raw(&pool.bytes);
        let frame = frame::frame(&mut asm, full, whole);
        let alone = alone(code, full);
        let mut leaders = leaders(code, !full);
        for (leader, alone) in leaders.iter_mut().zip(&alone) {
            *leader &= !alone;
        }
        let facts = Facts::new(code, [full, rows, whole]);
        let emitter = Emitter::new(asm, &code.insts, [&leaders, &alone], full, &pool, &frame, facts);
        let (mut asm, entries) = emitter.run();
        if !asm.link() {
            return None;
        }
        let pages = Pages::new(&asm.bytes)?;
        // SAFETY: the frame's code is at that offset, and is called as `Enter` says.
        let enter =
            unsafe { std::mem::transmute::<*const u8, Enter>(pages.address().add(frame.enter as usize)) };
        Some(Version {
            pages,
            enter,
            entries,
        })
    }

    #[inline]
    fn entry(&self, pc: u32) -> Option<Entry> {
        let at = self.entries[pc as usize];
        (at != NOWHERE).then(|| Entry {
            enter: self.enter,
            at: self.pages.address().wrapping_add(at as usize),
        })
    }
}

/// Whether this processor has the instructions.
fn can_run() -> bool {
    use std::arch::is_x86_feature_detected as has;
    crate::inst::VectorSet::detect() == crate::inst::VectorSet::Avx2
        && has!("avx512f")
        && has!("avx512dq")
        && has!("avx512bw")
        && has!("avx512vl")
        && has!("avx512cd")
}

/// Whether compiled code computes the instruction itself.
pub(crate) fn is_compiled(inst: &Inst) -> bool {
    table::is_compiled(inst)
}

/// Runs one instruction in the interpreter, for compiled code.
unsafe extern "sysv64" fn interpret(c: *mut Ctx, inst: *const Inst) -> u32 {
    // SAFETY: compiled code hands on what `Native::run` got.
    let (c, inst) = unsafe { (&mut *c, &*inst) };
    // A panic must not go through frames that say nothing about themselves.
    // SAFETY: as in the warp's loop.
    match catch_unwind(AssertUnwindSafe(|| unsafe { (inst.exec)(c, inst) })) {
        Ok(flow) => flow as u32,
        Err(panic) => {
            c.panic = Some(panic);
            Flow::Fault as u32
        }
    }
}

/// Instructions that only one branch further up leads to, and that nothing comes to from above: where code is for full
/// warps, they are part of what the branch ends.
fn alone(code: &Code, full: bool) -> Vec<bool> {
    let mut alone = vec![false; code.insts.len()];
    if !full {
        return alone;
    }
    let mut ways = vec![0u32; code.insts.len()];
    for function in &code.functions {
        if let Some(ways) = ways.get_mut(function.entry as usize) {
            *ways += 2;
        }
    }
    for target in &code.tables {
        ways[*target as usize] += 2;
    }
    for (pc, inst) in code.insts.iter().enumerate() {
        let exec = inst.exec as usize;
        if exec == control::branch_if as *const () as usize {
            ways[inst.aux as usize] += 2;
        } else if exec == control::branch as *const () as usize {
            ways[inst.aux as usize] += 1;
            // Backwards is round a loop.
            if inst.aux as usize <= pc {
                ways[inst.aux as usize] += 1;
            }
        }
    }
    for pc in 1..code.insts.len() {
        let before = code.insts[pc - 1].exec as usize;
        let ends = before == control::branch as *const () as usize
            || before == control::leave as *const () as usize
            || before == control::exit as *const () as usize;
        alone[pc] = ways[pc] == 1 && ends;
    }
    alone
}

/// Instructions that something jumps to, and, if `behind`, those that follow a branch.
fn leaders(code: &Code, behind: bool) -> Vec<bool> {
    let mut leaders = vec![false; code.insts.len()];
    let mut mark = |at: u32| {
        if let Some(leader) = leaders.get_mut(at as usize) {
            *leader = true;
        }
    };
    for function in &code.functions {
        mark(function.entry);
    }
    for target in &code.tables {
        mark(*target);
    }
    for (pc, inst) in code.insts.iter().enumerate() {
        let exec = inst.exec as usize;
        if exec == control::branch as *const () as usize || exec == control::branch_if as *const () as usize {
            mark(inst.aux);
            if behind || exec == control::branch as *const () as usize {
                mark(pc as u32 + 1);
            }
        }
    }
    leaders
}
