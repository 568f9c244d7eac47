//! Emulated devices of this host, by specification.

use divvy_emulator::device::identity::{PciAddress, Uuid};
use divvy_emulator::device::spec;
use divvy_model::{Bytes, Code, DeviceKind, DeviceRecord, Fault};

/// What is emulated when nobody says.
pub const DEFAULT_EMULATED: &str = spec::DEFAULT_SPEC;

/// An emulated device, and the specification under which its driver shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct EmulatedDevice {
    /// The device.
    pub record: DeviceRecord,
    /// A value of `DIVVY_EMULATED` that holds this device.
    pub spec: String,
}

/// The devices of a specification such as `h100*2,l4`.
///
/// # Errors
/// [`Code::Config`] for a specification that is not understood.
pub fn emulated_devices(spec: &str) -> Result<Vec<EmulatedDevice>, Fault> {
    let user = rustix::process::getuid().as_raw();
    let profiles = spec::parse(spec).map_err(|error| {
        Fault::new(Code::Config, "the emulated devices were not understood")
            .because(&error)
            .hint("DIVVY_EMULATED, `emulated` in the configuration and `--device emulated:NAME` name them")
    })?;
    let devices = profiles.into_iter().enumerate().map(|(index, profile)| {
        let (major, minor) = profile.compute_capability;
        EmulatedDevice {
            record: DeviceRecord {
                index: u32::try_from(index).unwrap_or(u32::MAX),
                uuid: Uuid::derive(user, profile, index).to_string(),
                name: profile.name.into(),
                kind: DeviceKind::Emulated,
                profile: Some(profile.key.into()),
                pci_address: PciAddress::derive(index).to_string(),
                memory_total_bytes: Bytes(profile.memory_bytes),
                memory_used_bytes: Bytes(0),
                sm_count: profile.sm_count,
                compute_capability: format!("{major}.{minor}"),
                sharing: None,
            },
            spec: spec.into(),
        }
    });
    Ok(devices.collect())
}

/// Memory in use on an emulated device, by anybody; None where nobody has used it yet.
#[must_use]
pub fn emulated_used(_uuid: &str) -> Option<Bytes> {
    None
}
