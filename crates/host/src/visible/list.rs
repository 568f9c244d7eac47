//! The devices that the runtimes choose from, each runtime in its own order.

use divvy_model::{DeviceKind, DeviceRecord, Vendor};

use super::cuda::CudaDevice;

/// A device as the runtimes know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenDevice {
    /// The index that `divvy devices` shows.
    pub index: u32,
    /// The CUDA driver's UUID, `GPU-…` or `MIG-…`; of an AMD device the one that ROCr tells.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// KFD's `unique_id`; 0 where the device has none. Partitions of one accelerator share it.
    pub unique_id: u64,
    /// Its node in KFD's topology, whose order is ROCr's; None where ROCr does not see it.
    pub kfd_node: Option<u32>,
    /// Whether the CUDA driver sees it.
    pub cuda: bool,
    /// Of a MIG instance: its GPU's UUID, its GPU instance and its compute instance.
    pub instance: Option<(String, u32, u32)>,
}

/// The devices of a machine, in the order that `divvy devices` shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The devices.
    pub devices: Vec<SeenDevice>,
}

impl Seen {
    /// As the inventory lists them. An emulated device stands for one of every runtime's, so that variables can be
    /// tried where there is no GPU.
    #[must_use]
    pub fn of(records: &[DeviceRecord]) -> Self {
        let mut devices: Vec<SeenDevice> = records.iter().map(seen).collect();
        for (device, record) in devices.iter_mut().zip(records) {
            let of_it = |other: &DeviceRecord| {
                let place = other.mig_instance();
                place.is_some_and(|place| place.gpu_uuid == record.uuid)
            };
            // Of a GPU in MIG mode no program sees anything but an instance.
            if record.is_divided() && !records.iter().any(of_it) {
                device.cuda = false;
                if record.kind == DeviceKind::Emulated {
                    device.kfd_node = None;
                }
            }
        }
        Self { devices }
    }

    /// `count` devices that are alike, with made-up ids: what a program would see on a machine that is elsewhere.
    #[must_use]
    pub fn alike(count: u32) -> Self {
        let device = |index: u32| SeenDevice {
            index,
            // As far apart as real ones, and the same each time.
            unique_id: u64::from(index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            uuid: String::new(),
            name: "a device".into(),
            kfd_node: Some(index + 1),
            cuda: true,
            instance: None,
        };
        let devices = (0..count).map(device).map(|device| SeenDevice {
            uuid: format!(
                "GPU-{:08x}-{:04x}-{:04x}-0000-000000000000",
                device.unique_id >> 32,
                device.unique_id >> 16 & 0xffff,
                device.unique_id & 0xffff
            ),
            ..device
        });
        Self {
            devices: devices.collect(),
        }
    }

    /// Places of ROCr's devices, in its order.
    pub(super) fn rocr(&self) -> Vec<usize> {
        let mut places: Vec<usize> = (0..self.devices.len())
            .filter(|place| self.devices[*place].kfd_node.is_some())
            .collect();
        places.sort_by_key(|place| self.devices[*place].kfd_node);
        places
    }

    /// Places of the CUDA driver's devices, in PCI order.
    pub(super) fn cuda(&self) -> Vec<usize> {
        (0..self.devices.len())
            .filter(|place| self.devices[*place].cuda)
            .collect()
    }

    pub(super) fn unique_ids(&self, places: &[usize]) -> Vec<u64> {
        places
            .iter()
            .map(|place| self.devices[*place].unique_id)
            .collect()
    }

    pub(super) fn cuda_devices(&self, places: &[usize]) -> Vec<CudaDevice> {
        let device = |place: &usize| {
            let device = &self.devices[*place];
            CudaDevice {
                uuid: device.uuid.clone(),
                instance: device.instance.clone(),
            }
        };
        places.iter().map(device).collect()
    }
}

fn seen(record: &DeviceRecord) -> SeenDevice {
    let facts = record.hardware.as_deref();
    let emulated = record.kind == DeviceKind::Emulated;
    let vendor = facts.map_or(Vendor::Nvidia, |facts| facts.vendor);
    // A device that is passed through or has lost its driver is seen by no runtime.
    let bound = facts.is_none_or(|facts| matches!(facts.driver.as_deref(), None | Some("nvidia")));
    SeenDevice {
        index: record.index,
        uuid: record.uuid.clone(),
        name: record.name.clone(),
        unique_id: match facts.and_then(|facts| facts.unique_id.as_deref()) {
            Some(id) => u64::from_str_radix(id, 16).unwrap_or(0),
            None if emulated => leading_hex(&record.uuid),
            None => 0,
        },
        kfd_node: match facts.and_then(|facts| facts.kfd_node) {
            // ROCr knows no such parts.
            None if emulated && record.mig_instance().is_none() => Some(record.index),
            node => node,
        },
        cuda: emulated
            || (vendor == Vendor::Nvidia && bound && record.uuid.contains("GPU-")
                || record.kind == DeviceKind::Mig),
        instance: facts
            .and_then(|facts| facts.mig_instance.as_ref())
            .map(|place| (place.gpu_uuid.clone(), place.gpu_instance, place.compute_instance)),
    }
}

/// The first 16 hexadecimal digits of a UUID.
fn leading_hex(uuid: &str) -> u64 {
    let digits: String = uuid
        .chars()
        .skip(4)
        .filter(char::is_ascii_hexdigit)
        .take(16)
        .collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}
