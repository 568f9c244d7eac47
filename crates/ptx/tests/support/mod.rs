//! What every suite of this crate shares: device memory to lend, a module made ready, a launch built up step by step.
//!
//! Each suite is its own program and uses a part of this.
#![allow(dead_code, unused_imports)]

mod launch;
mod memory;

pub use launch::{Loaded, engine};
pub use memory::{Buffer, Memory};
