//! A compiler: the module's instructions as machine code for processors with AVX-512.
//!
//! The interpreter stays what it is: it holds a warp's splits, runs what is not compiled, and can take over between
//! any two instructions, because every register has its home in the warp's register area. Compiled code runs from one
//! place where the warp's loop must look up to the next: a branch that lanes disagree on, a barrier, the end of a slice.
//!
//! - `asm`: encodes instructions
//! - `table`: which instructions are compiled, and to what
//! - `cache`: which registers of the warp are in vector registers
//! - `facts`: how long a register is needed, and how its lanes lie
//! - `emit`, `data`, `access`: control flow and predicates; arithmetic; memory
//! - `constants`, `buffer`: what code reads, and the memory it is in

mod access;
mod asm;
mod buffer;
mod cache;
mod constants;
mod data;
mod emit;
mod facts;
mod table;

use crate::code::Code;
use crate::engine::control;
use crate::engine::ctx::Ctx;
use crate::inst::{Flow, Inst};
use asm::Asm;
use buffer::Pages;
use constants::Pool;
use emit::{Emitter, NOWHERE};
use facts::Facts;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use buffer::limit_code;

/// Instructions of a module beyond which it is left to the interpreter: their code would take hundreds of megabytes.
const MAX_INSTRUCTIONS: usize = 1 << 18;

type Enter = unsafe extern "sysv64" fn(*mut Ctx, *mut u8, *const Inst, *const u8) -> u32;

/// A module's machine code.
pub(crate) struct Native {
    pages: Pages,
    enter: Enter,
    /// Where native code for each instruction begins, in each version.
    entries: [Vec<u32>; 3],
}

/// Versions of the code: for warps with any lanes active, with all, and with all in a row of the block.
const ANY: usize = 0;
const FULL: usize = 1;
const ROWS: usize = 2;

impl Native {
    /// Compiles a module; `None` where this processor, or the system, does not have what it takes.
    pub fn compile(code: &Code) -> Option<Native> {
        if !can_run() || code.insts.is_empty() || code.insts.len() > MAX_INSTRUCTIONS {
            return None;
        }
        let interpret: unsafe extern "sysv64" fn(*mut Ctx, *const Inst) -> u32 = interpret;
        let pool = Pool::new(interpret as usize as u64);
        let mut asm = Asm::default();
        asm.raw(&pool.bytes);
        let (enter, epilogue) = emit::frame(&mut asm);
        let mut entries = [const { Vec::new() }; 3];
        for (version, entries) in entries.iter_mut().enumerate() {
            let full = version != ANY;
            let alone = alone(code, full);
            let mut leaders = leaders(code, !full);
            for (leader, alone) in leaders.iter_mut().zip(&alone) {
                *leader &= !alone;
            }
            let facts = Facts::new(code, full, version == ROWS);
            let emitter = Emitter::new(asm, &code.insts, [&leaders, &alone], full, &pool, epilogue, facts);
            (asm, *entries) = emitter.run();
        }
        if !asm.link() {
            return None;
        }
        let pages = Pages::new(&asm.bytes)?;
        // SAFETY: the frame's code is at that offset, and is called as `Enter` says.
        let enter = unsafe { std::mem::transmute::<*const u8, Enter>(pages.address().add(enter as usize)) };
        Some(Native {
            pages,
            enter,
            entries,
        })
    }

    /// Where code for `pc` begins. Code for full warps has fewer places to begin at.
    #[inline]
    pub fn entry(&self, pc: u32, full: bool, rows: bool) -> Option<u32> {
        let version = match (full, rows) {
            (false, _) => ANY,
            (true, false) => FULL,
            (true, true) => ROWS,
        };
        let entry = self.entries[version][pc as usize];
        if entry != NOWHERE {
            return Some(entry);
        }
        let entry = self.entries[ANY][pc as usize];
        (entry != NOWHERE).then_some(entry)
    }

    /// Runs from an entry on. `Ctx::at` is the instruction that gave the flow, `Ctx::count` goes on counting.
    ///
    /// # Safety
    /// `c` holds the registers of the function that the entry is in, `insts` are the module's instructions, and the entry is
    /// of the version for the lanes that are active.
    pub unsafe fn run(&self, c: &mut Ctx, insts: &[Inst], entry: u32) -> Flow {
        let regs = c.regs;
        // SAFETY: the entry is an offset in our pages; the rest is the caller's promise.
        let flow = unsafe { (self.enter)(c, regs, insts.as_ptr(), self.pages.address().add(entry as usize)) };
        if let Some(panic) = c.panic.take() {
            std::panic::resume_unwind(panic);
        }
        Flow::from_code(flow)
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
