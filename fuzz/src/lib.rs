//! What the fuzz targets share.

pub mod drive;
pub mod mutate;
