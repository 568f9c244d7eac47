//! The emulated devices of this host as anyone may ask for them, without initialising a driver.

use crate::device::identity::{PciAddress, Uuid};
use crate::device::profile::Profile;
use crate::device::spec::{self, SpecError};

/// What an emulated device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Place in PCI bus order, from 0.
    pub index: usize,
    /// Stable across runs; differs between users.
    pub uuid: Uuid,
    /// PCI address, in a domain no hardware uses.
    pub pci: PciAddress,
    /// The product it stands for.
    pub profile: &'static Profile,
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

/// The devices that a specification (`h100`, `a100-40gb*2`, the value of `DIVVY_EMULATED`) describes for the
/// calling user, in order of their index.
pub fn devices(spec: &str) -> Result<Vec<DeviceFacts>, SpecError> {
    let user = rustix::process::getuid().as_raw();
    let profiles = spec::parse(spec)?;
    let facts = profiles
        .into_iter()
        .enumerate()
        .map(|(index, profile)| DeviceFacts {
            index,
            uuid: Uuid::derive(user, profile, index),
            pci: PciAddress::derive(index),
            profile,
        });
    Ok(facts.collect())
}

/// The devices `DIVVY_EMULATED` describes, or the default's where it is unset or empty.
pub fn devices_from_env() -> Result<Vec<DeviceFacts>, SpecError> {
    let setting = std::env::var("DIVVY_EMULATED").unwrap_or_default();
    devices(if setting.trim().is_empty() {
        spec::DEFAULT_SPEC
    } else {
        &setting
    })
}
