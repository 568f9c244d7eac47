//! PTX: a parser, a decoder, a warp-vectorised engine and a compiler.
//!
//! [`Module::parse`] reads text, [`Module::link`] gives its globals addresses, [`Engine::run`] runs a kernel on the
//! CPU, 32 lanes at a time. Device memory is the host's: an [`AddressSpace`] says which memory a kernel may touch.
//!
//! - `lex`, `parse`: text to syntax
//! - `decode`: syntax to instructions over register slots
//! - `module`: the result of the two, and linking
//! - `engine`: blocks, warps and lanes
//! - `compile`: instructions to machine code, where a launch asks for it
//! - `rounding`: floating point in every rounding mode

// A table of opcodes is read row by row: rows that happen to do the same stay rows.
#![allow(clippy::match_same_arms)]
// Comparisons are spelt so that NaN answers as PTX says: `!(a < b)` is true on it, `a < b || a > b` is not `a != b`.
#![allow(
    clippy::neg_cmp_op_on_partial_ord,
    clippy::nonminimal_bool,
    clippy::double_comparisons
)]
// Loops over the lanes of a warp index several arrays at once.
#![allow(clippy::needless_range_loop)]

mod code;
#[cfg(target_arch = "x86_64")]
mod compile;
mod decode;
mod engine;
mod error;
mod inst;
mod lex;
mod module;
mod parse;
mod rounding;
mod types;

#[cfg(target_arch = "x86_64")]
pub use compile::limit_code;
pub use engine::{
    AddressSpace, Addressing, Channel, Engine, Image, Launch, Order, Progress, Stats, Texture, Times, Timing,
    Touch, WarpAt, Watch, Window,
};
pub use error::{Access, Fault, LinkError, ParseError, Unsupported};
pub use inst::{VectorSet, without_vectors};
pub use module::{Global, Kernel, Module, Param, Place, Program};
pub use types::Space;
