//! NVML itself. Its caller waits for as long as the driver takes: see [`super::Nvidia`], which does not.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use divvy_abi::nvml::client::{Client, MemoryFacts};
use divvy_model::{Bytes, DeviceKind, DeviceProcess, DeviceRecord, Hardware, MemorySlices, MigPlace, Vendor};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::{DeviceUse, NvidiaReport};
use crate::topology::Nvlinks;

/// NVML, open where its driver answers. Where it does not, each report tries again: the driver may be loaded later.
pub(super) struct Library {
    name: OsString,
    nvml: OnceCell<Nvml>,
    /// The same library again, for what nvml-wrapper does not tell; nothing where it does not open.
    client: OnceCell<Option<Client>>,
}

impl Library {
    /// Opens the NVML of this name or path; its absence is an answer, not an error.
    pub fn open(library: &OsStr) -> Self {
        let library = Self {
            name: library.to_owned(),
            nvml: OnceCell::new(),
            client: OnceCell::new(),
        };
        let _may_answer_later = library.opened();
        library
    }

    fn opened(&self) -> Result<&Nvml, NvmlError> {
        if let Some(nvml) = self.nvml.get() {
            return Ok(nvml);
        }
        let nvml = Nvml::builder().lib_path(&self.name).init()?;
        let name = CString::new(self.name.as_bytes()).unwrap_or_default();
        self.client.get_or_init(|| Client::open(&name).ok());
        Ok(self.nvml.get_or_init(|| nvml))
    }

    fn client(&self) -> Option<&Client> {
        self.client.get()?.as_ref()
    }
}

impl super::NvidiaLibrary for Library {
    fn cuda_version(&self) -> Option<(u32, u32)> {
        let version = self.nvml.get()?.sys_cuda_driver_version().ok()?;
        let version = u32::try_from(version).ok()?;
        Some((version / 1000, version % 1000 / 10))
    }

    fn utilization(&self, uuid: &str) -> Vec<(u32, u32)> {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_micros() as u64);
        let device = self.nvml.get().and_then(|nvml| nvml.device_by_uuid(uuid).ok());
        let samples = device.and_then(|device| {
            device
                .process_utilization_stats(now.saturating_sub(1_000_000))
                .ok()
        });
        let mut told: Vec<(u32, u32)> = Vec::new();
        for sample in samples.unwrap_or_default() {
            // NVML lists a process several times where the driver has several samples: the least is sure.
            match told.iter_mut().find(|(pid, _)| *pid == sample.pid) {
                Some((_, percent)) => *percent = (*percent).min(sample.sm_util),
                None => told.push((sample.pid, sample.sm_util)),
            }
        }
        told
    }

    fn clock_mhz(&self, uuid: &str) -> Option<u32> {
        use nvml_wrapper::enum_wrappers::device::Clock;
        let device = self.nvml.get()?.device_by_uuid(uuid).ok()?;
        device.clock_info(Clock::SM).ok()
    }

    fn facts(&self, uuid: &str) -> Hardware {
        use nvml_wrapper::bitmasks::device::ThrottleReasons;
        use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
        let mut facts = Hardware {
            vendor: Vendor::Nvidia,
            driver_version: self.nvml.get().and_then(|nvml| nvml.sys_driver_version().ok()),
            ..Hardware::default()
        };
        let Some(device) = self.nvml.get().and_then(|nvml| nvml.device_by_uuid(uuid).ok()) else {
            return facts;
        };
        let brand = device.brand().ok();
        facts.brand = brand
            .and_then(|brand| super::brand(brand.as_c()))
            .map(str::to_owned);
        facts.mig_mode = device.mig_mode().ok().map(|mode| mode.current == 1);
        let processes = self.usage(uuid).processes.into_iter();
        facts.processes = processes
            .map(|(pid, memory_bytes)| DeviceProcess { pid, memory_bytes })
            .collect();
        match device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile) {
            Ok(errors) if errors > 0 => facts.health.push(format!(
                "{errors} uncorrectable memory errors since the driver started"
            )),
            _ => {}
        }
        if device.are_pages_pending_retired().unwrap_or(false) {
            facts
                .health
                .push("memory pages wait for a reset to be retired".into());
        }
        if let Ok(reasons) = device.current_throttle_reasons() {
            for (reason, words) in [
                (
                    ThrottleReasons::HW_THERMAL_SLOWDOWN,
                    "it is slowed down by the hardware: too hot",
                ),
                (
                    ThrottleReasons::SW_THERMAL_SLOWDOWN,
                    "it is slowed down by the driver: too hot",
                ),
                (
                    ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN,
                    "it is slowed down: the power supply brakes",
                ),
            ] {
                if reasons.contains(reason) {
                    facts.health.push(words.into());
                }
            }
        }
        facts
    }

    fn report(&self) -> NvidiaReport {
        let nvml = match self.opened() {
            Ok(nvml) => nvml,
            Err(error) => {
                let missing = matches!(error, NvmlError::LibloadingError(_));
                return NvidiaReport {
                    failure: (!missing).then(|| absence(&error)),
                    notes: vec![absence(&error)],
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
            match self.read(nvml, index) {
                Ok(device) => report.devices.push(device),
                Err(error) => report
                    .notes
                    .push(format!("device {index} does not answer NVML: {error}")),
            }
        }
        let ids = match report.devices.iter().any(DeviceRecord::is_divided) {
            true => self.places(),
            false => BTreeMap::new(),
        };
        let instances = report
            .devices
            .iter()
            .flat_map(|gpu| self.instances(nvml, gpu, &ids));
        let instances: Vec<DeviceRecord> = instances.collect();
        // NVML numbers in bus order already; the shown order must not depend on that.
        report.devices.sort_by(|a, b| a.pci_address.cmp(&b.pci_address));
        // Behind the GPUs, so that these keep the numbers that CUDA gives them.
        report.devices.extend(instances);
        for (index, device) in (0..).zip(&mut report.devices) {
            device.index = index;
        }
        report
    }

    fn links(&self) -> Nvlinks {
        /// More than any board has (`NVML_NVLINK_MAX_LINKS`).
        const MOST: u32 = 36;
        let mut found = Nvlinks::new();
        let Some(nvml) = self.nvml.get() else { return found };
        for index in 0..nvml.device_count().unwrap_or(0) {
            let Ok(device) = nvml.device_by_index(index) else {
                continue;
            };
            let mut ends = Vec::new();
            for link in 0..MOST {
                let link = device.link_wrapper_for(link);
                match link.is_active() {
                    Ok(true) => ends.extend(link.remote_pci_info().map(|end| short_pci(&end.bus_id))),
                    Ok(false) => {}
                    // No such link, or a board that has none.
                    Err(_) => break,
                }
            }
            if let (Ok(uuid), false) = (device.uuid(), ends.is_empty()) {
                found.insert(uuid, ends);
            }
        }
        found
    }

    fn usage(&self, uuid: &str) -> DeviceUse {
        use nvml_wrapper::enums::device::UsedGpuMemory;
        let device = self.nvml.get().and_then(|nvml| nvml.device_by_uuid(uuid).ok());
        let processes = device
            .and_then(|device| device.running_compute_processes().ok())
            .unwrap_or_default();
        let processes = processes
            .into_iter()
            .map(|process| match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => (process.pid, Some(Bytes(bytes))),
                UsedGpuMemory::Unavailable => (process.pid, None),
            });
        DeviceUse {
            used: self.memory(uuid).map(|memory| Bytes(memory.used)),
            processes: processes.collect(),
        }
    }
}

impl Library {
    fn memory(&self, uuid: &str) -> Option<MemoryFacts> {
        let client = self.client()?;
        client.memory(client.device_by_uuid(uuid).ok()?).ok()
    }

    fn read(&self, nvml: &Nvml, index: u32) -> Result<DeviceRecord, NvmlError> {
        let device = nvml.device_by_index(index)?;
        let uuid = device.uuid()?;
        let memory = self.memory(&uuid).ok_or(NvmlError::NotSupported)?;
        let capability = device.cuda_compute_capability()?;
        let pci = device.pci_info()?;
        Ok(DeviceRecord {
            index,
            uuid,
            name: device.name()?,
            kind: DeviceKind::Gpu,
            profile: None,
            pci_address: short_pci(&pci.bus_id),
            memory_total_bytes: Bytes(memory.total),
            memory_reserved_bytes: Bytes(memory.reserved),
            memory_used_bytes: Bytes(memory.used),
            sm_count: device
                .attributes()
                .map(|attributes| attributes.multiprocessor_count)
                .or_else(|_| {
                    device
                        .num_cores()
                        .map(|cores| cores / cores_per_sm(capability.major, capability.minor))
                })
                .unwrap_or(0),
            compute_capability: format!("{}.{}", capability.major, capability.minor),
            context_bytes: None,
            sharing: None,
            hardware: device.mig_mode().ok().map(|mode| {
                Box::new(Hardware {
                    vendor: Vendor::Nvidia,
                    // Where the kernel's files cannot be read, by this the product is still known.
                    pci_id: Some(format!("10de:{:04x}", pci.pci_device_id >> 16)),
                    mig_mode: Some(mode.current == 1),
                    ..Hardware::default()
                })
            }),
        })
    }

    /// Which instance every MIG device is, by UUID, which nvml-wrapper does not tell.
    fn places(&self) -> BTreeMap<String, Place> {
        let mut ids = BTreeMap::new();
        let Some(client) = self.client() else { return ids };
        for index in 0..client.device_count().unwrap_or(0) {
            let Ok(device) = client.device(index) else {
                continue;
            };
            let inside = client.mig_devices(device.handle).unwrap_or_default();
            if inside.is_empty() {
                continue;
            }
            let mut memory = BTreeMap::new();
            for profile in client.profiles(device.handle).unwrap_or_default() {
                let Some((_, size)) = profile.placements.first() else {
                    continue;
                };
                let found = client.instances(device.handle, profile.id).unwrap_or_default();
                let slices = |start| MemorySlices { start, count: *size };
                memory.extend(found.into_iter().map(|one| (one.id, slices(one.start))));
            }
            ids.extend(inside.into_iter().map(|one| {
                let place = Place {
                    gpu_instance: one.gpu_instance,
                    compute_instance: one.compute_instance,
                    memory_slices: memory.get(&one.gpu_instance).copied(),
                };
                (one.uuid, place)
            }));
        }
        ids
    }

    /// The MIG instances of a GPU, as devices of their own.
    fn instances(
        &self,
        nvml: &Nvml,
        gpu: &DeviceRecord,
        places: &BTreeMap<String, Place>,
    ) -> Vec<DeviceRecord> {
        let Ok(device) = nvml.device_by_uuid(gpu.uuid.as_str()) else {
            return Vec::new();
        };
        if !device.mig_mode().is_ok_and(|mode| mode.current == 1) {
            return Vec::new();
        }
        let count = device.mig_device_count().unwrap_or(0);
        let found = (0..count).filter_map(|index| {
            let instance = device.mig_device_by_index(index).ok()?;
            let uuid = instance.uuid().ok()?;
            let memory = self.memory(&uuid)?;
            let name = instance.name().unwrap_or_else(|_| gpu.name.clone());
            let place = places.get(&uuid).copied().unwrap_or_default();
            Some(DeviceRecord {
                uuid,
                // `NVIDIA H100 80GB HBM3 MIG 1g.10gb`
                hardware: Some(Box::new(Hardware {
                    vendor: Vendor::Nvidia,
                    mig_instance: Some(MigPlace {
                        gpu_uuid: gpu.uuid.clone(),
                        gpu_instance: place.gpu_instance,
                        compute_instance: place.compute_instance,
                        profile: name.split_once(" MIG ").map(|(_, profile)| profile.to_owned()),
                        memory_slices: place.memory_slices,
                    }),
                    ..Hardware::default()
                })),
                name,
                kind: DeviceKind::Mig,
                memory_total_bytes: Bytes(memory.total),
                memory_reserved_bytes: Bytes(memory.reserved),
                memory_used_bytes: Bytes(memory.used),
                sm_count: instance
                    .attributes()
                    .map_or(0, |attributes| attributes.multiprocessor_count),
                ..gpu.clone()
            })
        });
        found.collect()
    }
}

/// Which instance of its GPU a MIG device is.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    gpu_instance: u32,
    compute_instance: u32,
    memory_slices: Option<MemorySlices>,
}

fn absence(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(_) => "libnvidia-ml.so.1 is not installed".into(),
        NvmlError::DriverNotLoaded => "NVIDIA's kernel module is not loaded".into(),
        other => format!("NVML does not start: {other}"),
    }
}

/// FP32 lanes of a multiprocessor: 64 on Volta, Turing and GA100, 128 on what came after (CUDA C programming guide,
/// "Arithmetic Instructions").
fn cores_per_sm(major: i32, minor: i32) -> u32 {
    if major <= 7 || (major, minor) == (8, 0) {
        64
    } else {
        128
    }
}

/// NVML writes the domain with eight digits; all others with four.
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
}
