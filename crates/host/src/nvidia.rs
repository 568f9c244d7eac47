//! NVIDIA's devices, through NVML. Where libnvidia-ml.so.1 is missing there are none, quietly.

use divvy_model::{Bytes, DeviceKind, DeviceRecord};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// An open NVML, or the reason why there is none.
pub struct Nvidia {
    nvml: Result<Nvml, NvmlError>,
}

/// What NVML says about this machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NvidiaReport {
    /// The devices, by PCI address.
    pub devices: Vec<DeviceRecord>,
    /// The driver's version, `550.54.15`.
    pub driver_version: Option<String>,
    /// Why there are no devices, or why one is missing.
    pub notes: Vec<String>,
}

impl Nvidia {
    /// Opens libnvidia-ml.so.1 by its name; its absence is an answer, not an error.
    #[must_use]
    pub fn open() -> Self {
        let nvml = Nvml::builder()
            .lib_path(std::ffi::OsStr::new("libnvidia-ml.so.1"))
            .init();
        Self { nvml }
    }

    /// The devices as they are now.
    #[must_use]
    pub fn report(&self) -> NvidiaReport {
        let nvml = match &self.nvml {
            Ok(nvml) => nvml,
            Err(error) => {
                return NvidiaReport {
                    notes: vec![absence(error)],
                    ..NvidiaReport::default()
                };
            }
        };
        let mut report = NvidiaReport {
            driver_version: nvml.sys_driver_version().ok(),
            ..NvidiaReport::default()
        };
        let count = nvml.device_count().unwrap_or(0);
        for index in 0..count {
            match read(nvml, index) {
                Ok(device) => report.devices.push(device),
                Err(error) => report
                    .notes
                    .push(format!("device {index} does not answer NVML: {error}")),
            }
        }
        // NVML numbers in bus order already; the shown order must not depend on that.
        report.devices.sort_by(|a, b| a.pci_address.cmp(&b.pci_address));
        for (index, device) in (0..).zip(&mut report.devices) {
            device.index = index;
        }
        report
    }

    /// Memory in use on one device, by anybody.
    #[must_use]
    pub fn memory_used(&self, uuid: &str) -> Option<Bytes> {
        let nvml = self.nvml.as_ref().ok()?;
        let device = nvml.device_by_uuid(uuid).ok()?;
        device.memory_info().ok().map(|memory| Bytes(memory.used))
    }

    /// The processes that hold memory on one device: process id and bytes, where the driver tells them.
    #[must_use]
    pub fn processes(&self, uuid: &str) -> Vec<(u32, Option<Bytes>)> {
        use nvml_wrapper::enums::device::UsedGpuMemory;
        let Ok(nvml) = &self.nvml else { return Vec::new() };
        let Ok(device) = nvml.device_by_uuid(uuid) else {
            return Vec::new();
        };
        let processes = device.running_compute_processes().unwrap_or_default();
        processes
            .into_iter()
            .map(|process| match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => (process.pid, Some(Bytes(bytes))),
                UsedGpuMemory::Unavailable => (process.pid, None),
            })
            .collect()
    }
}

fn absence(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(_) => "libnvidia-ml.so.1 is not installed".into(),
        NvmlError::DriverNotLoaded => "NVIDIA's kernel module is not loaded".into(),
        other => format!("NVML does not start: {other}"),
    }
}

fn read(nvml: &Nvml, index: u32) -> Result<DeviceRecord, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let memory = device.memory_info()?;
    let capability = device.cuda_compute_capability()?;
    let pci = device.pci_info()?;
    Ok(DeviceRecord {
        index,
        uuid: device.uuid()?,
        name: device.name()?,
        kind: DeviceKind::Gpu,
        profile: None,
        pci_address: short_pci(&pci.bus_id),
        memory_total_bytes: Bytes(memory.total),
        memory_used_bytes: Bytes(memory.used),
        sm_count: device
            .attributes()
            .map(|attributes| attributes.multiprocessor_count)
            .or_else(|_| {
                device
                    .num_cores()
                    .map(|cores| cores / cores_per_sm(capability.major))
            })
            .unwrap_or(0),
        compute_capability: format!("{}.{}", capability.major, capability.minor),
        sharing: None,
    })
}

/// FP32 lanes of a multiprocessor: 64 on Volta, Turing and GA100, 128 on what came after (CUDA C programming guide,
/// "Arithmetic Instructions"). GA100 answers the attributes query, so only Turing needs 64 here.
fn cores_per_sm(major: i32) -> u32 {
    if major <= 7 { 64 } else { 128 }
}

/// NVML writes the domain with eight digits; everybody else with four.
fn short_pci(bus_id: &str) -> String {
    let lower = bus_id.to_ascii_lowercase();
    match lower.strip_prefix("0000") {
        Some(rest) if lower.find(':') == Some(8) => rest.into(),
        _ => lower,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_has_four_digits() {
        assert_eq!(short_pci("00000000:65:00.0"), "0000:65:00.0");
        assert_eq!(short_pci("0000:65:00.0"), "0000:65:00.0");
        assert_eq!(short_pci("00010000:0A:00.0"), "00010000:0a:00.0");
    }

    #[test]
    fn a_machine_without_nvml_has_no_devices_and_says_why() {
        let report = Nvidia::open().report();
        assert!(!report.devices.is_empty() || !report.notes.is_empty());
    }
}
