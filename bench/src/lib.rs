//! Every figure we publish, one command each.
//!
//! Each program under `src/bin` measures one family of figures and prints its targets beside them. What several of them
//! need is here.

pub mod artifacts;
pub mod cuda;
pub mod slice;
pub mod statistics;
