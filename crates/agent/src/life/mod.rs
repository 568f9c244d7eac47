//! A slice from its record to its end.

pub(crate) mod adopt;
pub(crate) mod anchor;
pub mod container;
pub(crate) mod ending;
pub(crate) mod keepers;
pub(crate) mod known;
pub(crate) mod lives;
pub(crate) mod members;
pub(crate) mod names;
pub(crate) mod pages;
pub(crate) mod records;
pub(crate) mod resize;
pub(crate) mod slice;
