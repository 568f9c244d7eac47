//! What the start of a machine has to be told so that GPUs can be passed through: a plan first, files with backups then,
//! and the way back.
//!
//! - [`plan`] says which files would be written and which commands follow, by the distribution.
//! - [`edit`] changes texts that are there. [`apply`] writes, and puts back byte for byte.
//! - [`at_start`] is the unit that binds groups again at each start.

pub mod apply;
pub mod at_start;
pub mod edit;
pub mod plan;

mod tree;
