//! Every figure we publish, one command each.
//!
//! Each program under `src/bin` measures one family of figures and prints its targets beside them. Here is the code
//! that several of them need.

pub mod artifacts;
pub mod cuda;
pub mod slice;
pub mod statistics;
