//! The emulated devices of this host as anyone may ask for them, without initialising a driver.

use crate::device::identity::{PciAddress, Uuid};
use crate::device::profile::Profile;
use crate::device::spec::{self, SpecError};
use crate::hardware::run_directory;
use std::path::Path;

/// What an emulated device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Place in PCI bus order, from 0.
    pub index: usize,
    /// Stable across runs; differs between run directories.
    pub uuid: Uuid,
    /// PCI address, in a domain no hardware uses.
    pub pci: PciAddress,
    /// The product it stands for.
    pub profile: &'static Profile,
    /// Device memory that each context takes while it lives, in bytes.
    pub context_bytes: u64,
}

impl DeviceFacts {
    /// Product name, as cuDeviceGetName says it.
    pub fn name(&self) -> &'static str {
        self.profile.name
    }

    /// Device memory in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.profile.memory_bytes
    }

    /// Streaming multiprocessors.
    pub fn sm_count(&self) -> u32 {
        self.profile.sm_count
    }

    /// Compute capability, major and minor.
    pub fn compute_capability(&self) -> (u32, u32) {
        self.profile.compute_capability
    }
}

/// The devices that a specification (`h100`, `a100-40gb*2`, the value of `DIVVY_EMULATED`) describes in a run
/// directory, in order of their index.
pub fn devices(spec: &str, run_directory: &Path) -> Result<Vec<DeviceFacts>, SpecError> {
    let items = spec::parse(spec)?;
    let facts = items.into_iter().enumerate().map(|(index, item)| DeviceFacts {
        index,
        uuid: Uuid::derive(run_directory, item.profile, index),
        pci: PciAddress::derive(index),
        profile: item.profile,
        context_bytes: item.context_bytes,
    });
    Ok(facts.collect())
}

/// The devices `DIVVY_EMULATED` describes, or the default's where it is unset or empty.
pub fn devices_from_env() -> Result<Vec<DeviceFacts>, SpecError> {
    let setting = std::env::var("DIVVY_EMULATED").unwrap_or_default();
    let spec = if setting.trim().is_empty() {
        spec::DEFAULT_SPEC
    } else {
        &setting
    };
    devices(spec, &run_directory())
}
