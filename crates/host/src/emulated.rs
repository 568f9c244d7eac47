//! Emulated devices of this host, by specification.

use std::path::Path;

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

/// The devices of a specification such as `h100*2,l4` in a run directory.
///
/// # Errors
/// [`Code::Config`] for a specification that is not understood.
pub fn emulated_devices(spec: &str, run_dir: &Path) -> Result<Vec<EmulatedDevice>, Fault> {
    let devices = divvy_emulator::devices(spec, run_dir).map_err(|error| {
        Fault::new(Code::Config, "the emulated devices were not understood")
            .because(&error)
            .hint("DIVVY_EMULATED, `emulated` in the configuration and `--device emulated:NAME` name them")
    })?;
    let devices = devices.into_iter().map(|facts| {
        let (major, minor) = facts.compute_capability();
        EmulatedDevice {
            record: DeviceRecord {
                index: u32::try_from(facts.index).unwrap_or(u32::MAX),
                uuid: facts.uuid.to_string(),
                name: facts.name().into(),
                kind: DeviceKind::Emulated,
                profile: Some(facts.profile.key.into()),
                pci_address: facts.pci.to_string(),
                memory_total_bytes: Bytes(facts.memory_bytes()),
                memory_used_bytes: emulated_used(run_dir, &facts.uuid.to_string()).unwrap_or(Bytes(0)),
                sm_count: facts.sm_count(),
                compute_capability: format!("{major}.{minor}"),
                context_bytes: (facts.context_bytes > 0).then_some(Bytes(facts.context_bytes)),
                sharing: None,
                hardware: None,
            },
            spec: spec.into(),
        }
    });
    Ok(devices.collect())
}

/// Memory in use on an emulated device, by anybody, as its page in the run directory tells; None where it cannot be
/// read.
#[must_use]
pub fn emulated_used(run_dir: &Path, uuid: &str) -> Option<Bytes> {
    let usage = divvy_emulator::usage_in(run_dir, divvy_emulator::Uuid::parse(uuid)?).ok()?;
    Some(Bytes(usage.used_bytes))
}

/// The processes that use an emulated device, and what each holds of it.
#[must_use]
pub fn emulated_processes(run_dir: &Path, uuid: &str) -> Vec<(u32, Bytes)> {
    let usage =
        divvy_emulator::Uuid::parse(uuid).and_then(|uuid| divvy_emulator::usage_in(run_dir, uuid).ok());
    let processes = usage.map(|usage| usage.processes).unwrap_or_default();
    processes
        .into_iter()
        .map(|process| (process.pid, Bytes(process.used_bytes)))
        .collect()
}
