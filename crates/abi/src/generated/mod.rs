//! What `cargo xtask generate-abi` writes; this file alone is written by hand.
#![allow(missing_docs, clippy::manual_dangling_ptr, clippy::zero_ptr)]

use crate::macros::{enumeration, opaque, zeroable};

#[rustfmt::skip]
pub mod aliases;
#[rustfmt::skip]
pub mod constants;
#[rustfmt::skip]
pub mod enumerations;
mod functions;
#[rustfmt::skip]
mod layouts;
#[rustfmt::skip]
pub mod records;
#[rustfmt::skip]
pub mod roles;
