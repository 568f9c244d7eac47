//! What `cargo xtask generate-abi --nvml` writes; this file alone is written by hand.
#![allow(missing_docs, unused_imports)]

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
