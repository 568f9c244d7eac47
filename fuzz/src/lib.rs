//! What the fuzz targets share.

pub mod claim;
pub mod codec;
pub mod drive;
pub mod frames;
pub mod ledger;
pub mod mutate;
pub mod nri;
pub mod nvml;
pub mod oci;
pub mod yaml;
pub mod pods;
pub mod privileged;
pub mod ring;
pub mod ring_steps;
pub mod vm;
pub mod wire;
