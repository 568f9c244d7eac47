//! What `cargo xtask generate-abi --runtime12 … --runtime13 …` writes; this file alone is written by hand.
#![allow(missing_docs, unused_imports, clippy::manual_dangling_ptr, clippy::zero_ptr)]

use crate::macros::{enumeration, opaque, zeroable};

#[rustfmt::skip]
pub mod aliases;
#[rustfmt::skip]
pub mod constants;
#[rustfmt::skip]
pub mod enumerations;
mod functions12;
mod functions13;
#[rustfmt::skip]
mod layouts;
#[rustfmt::skip]
mod layouts12;
#[rustfmt::skip]
pub mod records;
#[rustfmt::skip]
pub mod records12;
