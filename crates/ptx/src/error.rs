//! Errors in a text, in a link and in a launch.

use std::fmt;

/// A text that is not PTX, or PTX that we cannot decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Line in the text, from 1.
    pub line: u32,
    /// Column in bytes, from 1.
    pub column: u32,
    /// What is wrong, without the place.
    pub message: String,
    /// The kernel or function it is in, where known.
    pub kernel: Option<String>,
    /// The instruction it is in, where known.
    pub opcode: Option<String>,
}

impl ParseError {
    pub(crate) fn new(line: u32, column: u32, message: impl Into<String>) -> ParseError {
        ParseError {
            line,
            column,
            message: message.into(),
            kernel: None,
            opcode: None,
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PTX line {}, column {}", self.line, self.column)?;
        if let Some(kernel) = &self.kernel {
            write!(f, ", in `{kernel}`")?;
        }
        if let Some(opcode) = &self.opcode {
            write!(f, ", at `{opcode}`")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for ParseError {}

/// A module whose symbols cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkError {
    /// What is wrong, in one sentence.
    pub message: String,
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for LinkError {}

/// An instruction that the engine does not implement: the module parses, running the kernel fails naming it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The opcode with its modifiers, as written; for a call also the function's name.
    pub instruction: String,
    /// The kernel that reaches it.
    pub kernel: String,
    /// Line in the PTX text, from 1.
    pub line: u32,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` in kernel `{}` (PTX line {}) is not supported",
            self.instruction, self.kernel, self.line
        )
    }
}

/// What a kernel was doing when an access failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An atomic operation or reduction.
    Atomic,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Read => "read",
            Access::Write => "write",
            Access::Atomic => "atomic operation",
        })
    }
}

/// Why a launch ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An access outside every range the address space grants.
    IllegalAddress {
        /// The kernel.
        kernel: String,
        /// Line in the PTX text.
        line: u32,
        /// The first lane's offending address.
        address: u64,
        /// What it was doing.
        access: Access,
    },
    /// An address that is not a multiple of the access size.
    MisalignedAddress {
        /// The kernel.
        kernel: String,
        /// Line in the PTX text.
        line: u32,
        /// The first lane's offending address.
        address: u64,
        /// What it was doing.
        access: Access,
    },
    /// The kernel executed `trap` or `brkpt`.
    Trap {
        /// The kernel.
        kernel: String,
        /// Line in the PTX text.
        line: u32,
    },
    /// An assertion of the kernel failed; what it says was printed.
    Assert {
        /// The kernel.
        kernel: String,
        /// Line in the PTX text.
        line: u32,
    },
    /// The kernel reaches an instruction that is not implemented.
    Unsupported(Unsupported),
    /// The launch itself is wrong: no such kernel, no threads, parameters too short.
    BadLaunch(String),
    /// Every thread of a block waits, and none can wake another.
    Deadlock {
        /// The kernel.
        kernel: String,
        /// Line of an instruction a thread waits at.
        line: u32,
    },
    /// `Launch::cancel` was set.
    Cancelled,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::IllegalAddress {
                kernel,
                line,
                address,
                access,
            } => {
                write!(
                    f,
                    "illegal {access} at 0x{address:x} in kernel `{kernel}` (PTX line {line})"
                )
            }
            Fault::MisalignedAddress {
                kernel,
                line,
                address,
                access,
            } => {
                write!(
                    f,
                    "misaligned {access} at 0x{address:x} in kernel `{kernel}` (PTX line {line})"
                )
            }
            Fault::Assert { kernel, line } => {
                write!(f, "failed assertion in kernel `{kernel}` (PTX line {line})")
            }
            Fault::Trap { kernel, line } => write!(f, "trap in kernel `{kernel}` (PTX line {line})"),
            Fault::Unsupported(what) => what.fmt(f),
            Fault::BadLaunch(why) => write!(f, "bad launch: {why}"),
            Fault::Deadlock { kernel, line } => {
                write!(
                    f,
                    "every thread of a block of kernel `{kernel}` waits (PTX line {line})"
                )
            }
            Fault::Cancelled => f.write_str("the launch was cancelled"),
        }
    }
}

impl std::error::Error for Fault {}
