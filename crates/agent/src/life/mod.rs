//! A slice from its record to its end.

pub(crate) mod adopt;
pub(crate) mod anchor;
pub(crate) mod anchors;
pub mod container;
pub(crate) mod described;
pub(crate) mod ending;
pub(crate) mod expiry;
pub(crate) mod grants;
pub(crate) mod known;
pub(crate) mod lists;
pub(crate) mod lives;
pub(crate) mod members;
pub(crate) mod names;
pub(crate) mod page_servers;
pub(crate) mod pages;
pub(crate) mod programs;
pub(crate) mod records;
pub(crate) mod resize;
pub(crate) mod slice;
pub(crate) mod workers;
