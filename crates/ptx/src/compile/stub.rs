//! Code that stands behind the rest.

use super::asm::Label;
use super::cache::Held;

/// Code that stands behind the rest, because it is seldom reached.
pub(super) enum Stub {
    /// Gives an instruction to the interpreter, with what is held at home meanwhile.
    Slow {
        from: Label,
        back: Label,
        pc: u32,
        /// What goes home before, and what is read again after.
        dirty: Vec<Held>,
        again: Vec<Held>,
        issued: u32,
    },
    /// Leaves before an instruction whose lanes do not lie as they were thought to.
    Unlike {
        from: Label,
        pc: u32,
        dirty: Vec<Held>,
        issued: u32,
    },
    /// Leaves with the flow in RAX, at an instruction.
    Leave { from: Label, pc: u32, issued: u32 },
    /// Leaves before an instruction that follows.
    Next { from: Label, pc: u32 },
    /// Leaves for a branch's target.
    Jump { from: Label, pc: u32 },
    /// Leaves for a loop's first instruction.
    Away { from: Label, pc: u32, dirty: Vec<Held> },
    /// Leaves at a branch that lanes disagree on; RAX has those that take it.
    Split {
        from: Label,
        pc: u32,
        to: u32,
        dirty: Vec<Held>,
        issued: u32,
    },
}
