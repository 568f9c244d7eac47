//! What the start of a machine has to be told so that GPUs can be passed through: a plan first, files with backups then,
//! and the way back.
//!
//! - [`plan`] says which files would be written and which commands follow, by the distribution.
//! - [`apply`] writes, and puts back byte for byte.

pub mod apply;
pub mod plan;

mod edit;
mod tree;
