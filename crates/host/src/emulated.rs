//! Emulated devices of this host, by specification.

use std::os::fd::OwnedFd;
use std::path::Path;

use divvy_device::product::spec;
use divvy_device::{DeviceFacts, Grant, SetAsideError, Uuid};
use divvy_model::{Bytes, Code, DeviceKind, DeviceRecord, Fault, Hardware, MemorySlices, MigPlace, Vendor};

/// The product that is emulated by default.
pub const DEFAULT_EMULATED: &str = spec::DEFAULT_SPEC;

/// An emulated device, and the specification under which its driver shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct EmulatedDevice {
    /// The device.
    pub record: DeviceRecord,
    /// A value of `DIVVY_EMULATED` that holds this device.
    pub spec: String,
}

/// The devices of a specification such as `h100*2,l4` in a run directory: the GPUs, then the MIG devices into which they
/// are divided there.
///
/// # Errors
/// [`Code::Config`] for a specification that is not understood.
pub fn emulated_devices(spec: &str, run_dir: &Path) -> Result<Vec<EmulatedDevice>, Fault> {
    let devices = divvy_device::devices(spec, run_dir).map_err(|error| not_understood(&error))?;
    let mut parts = Vec::new();
    let mut found = Vec::new();
    for facts in &devices {
        let state = facts.division(run_dir).map_err(|why| {
            Fault::new(
                Code::Config,
                "what an emulated device is divided into cannot be told",
            )
            .because(&why)
        })?;
        found.push(record(facts, state.map(|state| state.on), run_dir));
        parts.extend(facts.mig_devices(run_dir).unwrap_or_default());
    }
    // Behind the GPUs, so that these keep the numbers that CUDA gives them.
    found.extend(parts.iter().map(|part| record(part, None, run_dir)));
    let devices = (0..).zip(found).map(|(index, record)| EmulatedDevice {
        record: DeviceRecord { index, ..record },
        spec: spec.into(),
    });
    Ok(devices.collect())
}

/// Whether a specification describes devices. None is made.
///
/// # Errors
/// [`Code::Config`] where it does not.
pub fn check_emulated(spec: &str) -> Result<(), Fault> {
    spec::parse(spec)
        .map(drop)
        .map_err(|error| not_understood(&error))
}

fn not_understood(error: &dyn std::error::Error) -> Fault {
    Fault::new(Code::Config, "the emulated devices were not understood")
        .because(error)
        .hint("DIVVY_EMULATED, `emulated` in the configuration and `--device emulated:NAME` name them")
}

fn record(facts: &DeviceFacts, mig_mode: Option<bool>, run_dir: &Path) -> DeviceRecord {
    let (major, minor) = facts.compute_capability();
    let instance = facts.instance.as_ref().map(|instance| MigPlace {
        gpu_uuid: instance.gpu.to_string(),
        gpu_instance: instance.gpu_instance,
        compute_instance: instance.compute_instance,
        profile: Some(instance.name()),
        memory_slices: Some(MemorySlices {
            start: instance.start.into(),
            count: instance.profile.size.into(),
        }),
    });
    let hardware = (mig_mode.is_some() || instance.is_some()).then(|| {
        Box::new(Hardware {
            vendor: Vendor::Emulated,
            mig_mode,
            mig_instance: instance.clone(),
            ..Hardware::default()
        })
    });
    DeviceRecord {
        index: u32::try_from(facts.index).unwrap_or(u32::MAX),
        uuid: facts.id(),
        name: facts.name(),
        kind: DeviceKind::Emulated,
        // A request for a product means a whole one.
        profile: instance.is_none().then(|| facts.profile.key.into()),
        pci_address: facts.pci.to_string(),
        memory_total_bytes: Bytes(facts.memory_bytes()),
        memory_reserved_bytes: Bytes(0),
        memory_used_bytes: emulated_used(run_dir, &facts.id()).unwrap_or(Bytes(0)),
        sm_count: facts.sm_count(),
        compute_capability: match facts.is_opencl_only() {
            true => String::new(),
            false => format!("{major}.{minor}"),
        },
        context_bytes: (facts.context_bytes > 0).then_some(Bytes(facts.context_bytes)),
        sharing: None,
        hardware,
    }
}

/// Makes the files with which a container has these emulated devices of the specification `spec`, as it would have device
/// nodes of real ones.
///
/// # Errors
/// [`Code::RunDir`] when the folder cannot be made.
pub fn grant_emulated(folder: &Path, run_dir: &Path, spec: &str, uuids: &[&str]) -> Result<Grant, Fault> {
    divvy_device::grant(folder, run_dir, spec, uuids).map_err(|error| {
        Fault::new(Code::RunDir, "cannot share the emulated device with containers").because(&error)
    })
}

/// The devices that [`grant_emulated`] wrote into this folder; none where it made none there.
#[must_use]
pub fn granted_emulated(folder: &Path) -> Vec<String> {
    divvy_device::granted_in(folder)
}

/// The UUIDs by which a device's pages are asked for: its own, and that of its GPU instance's memory.
#[must_use]
pub fn emulated_pages_of(run_dir: &Path, uuid: &str) -> Vec<[u8; 16]> {
    divvy_device::pages_of(run_dir, uuid)
        .into_iter()
        .map(|uuid| uuid.0)
        .collect()
}

/// The files of an emulated device's pages, as file systems and numbers: a process that uses the device has one open.
#[must_use]
pub fn emulated_page_files(run_dir: &Path, uuid: &str) -> Vec<(u64, u64)> {
    divvy_device::page_files_in(run_dir, uuid)
}

/// Sets an emulated device's files aside for as long as what is answered is open anywhere: from then on its pages are the
/// holder's. None where programs use the files, which were started where no agent served.
///
/// # Errors
/// [`Code::RunDir`].
pub fn set_emulated_aside(run_dir: &Path, uuid: [u8; 16]) -> Result<Option<OwnedFd>, Fault> {
    match divvy_device::set_aside(run_dir, Uuid(uuid)) {
        Ok(mark) => Ok(Some(mark)),
        Err(SetAsideError::InUse(_)) => Ok(None),
        Err(SetAsideError::ByAnother) => Err(Fault::new(
            Code::RunDir,
            format!(
                "another holder has the pages of the emulated device {}",
                Uuid(uuid)
            ),
        )
        .hint("it leaves when the programs that use them have ended")),
        Err(SetAsideError::Failed(why)) => Err(Fault::new(
            Code::RunDir,
            "the pages of the emulated device cannot be set aside",
        )
        .because(&why)),
    }
}

/// Makes the page of an emulated device's engine, for the holder.
///
/// # Errors
/// [`Code::RunDir`].
pub fn new_engine_page() -> Result<OwnedFd, Fault> {
    divvy_device::new_engine_page()
        .map_err(|why| Fault::new(Code::RunDir, "cannot make a page of an emulated device").because(&why))
}

/// Memory in use on an emulated device, by all processes, as its page in the run directory tells; None where it cannot
/// be read.
#[must_use]
pub fn emulated_used(run_dir: &Path, uuid: &str) -> Option<Bytes> {
    let usage = divvy_device::usage_in(run_dir, uuid).ok()?;
    Some(Bytes(usage.used_bytes))
}

/// The processes that use an emulated device, and what each holds of it.
#[must_use]
pub fn emulated_processes(run_dir: &Path, uuid: &str) -> Vec<(u32, Bytes)> {
    emulated_use(run_dir, uuid).map_or_else(Vec::new, |(_, processes)| processes)
}

/// [`emulated_used`] and [`emulated_processes`] by one look.
#[must_use]
pub fn emulated_use(run_dir: &Path, uuid: &str) -> Option<(Bytes, Vec<(u32, Bytes)>)> {
    let usage = divvy_device::usage_in(run_dir, uuid).ok()?;
    let processes = usage.processes.into_iter();
    let processes = processes.map(|process| (process.pid, Bytes(process.used_bytes)));
    Some((Bytes(usage.used_bytes), processes.collect()))
}

/// What an emulated device's engine did, in nanoseconds: for all processes that have ended together, and for each that
/// lives, by its number. None where its page cannot be read.
#[must_use]
pub fn emulated_engine_use(run_dir: &Path, uuid: &str) -> Option<(u64, Vec<(u32, u64)>)> {
    let uuid = divvy_device::Uuid::parse(uuid)?;
    let usage = divvy_device::engine_usage_in(run_dir, uuid).ok()?;
    let processes: Vec<(u32, u64)> = usage
        .processes
        .into_iter()
        .map(|process| (process.pid, process.busy_ns))
        .collect();
    let of_living = processes
        .iter()
        .fold(0, |sum: u64, (_, busy)| sum.saturating_add(*busy));
    Some((usage.busy_ns.saturating_sub(of_living), processes))
}

/// What each living process had of an emulated device's engine in all, in nanoseconds.
#[must_use]
pub fn emulated_busy(run_dir: &Path, uuid: &str) -> Vec<(u32, u64)> {
    emulated_engine_use(run_dir, uuid).map_or_else(Vec::new, |(_, processes)| processes)
}
