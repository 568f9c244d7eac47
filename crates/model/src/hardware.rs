//! What a machine tells of a device beyond its memory: where it sits, who drives it, how it is divided, how it fares.

use serde::{Deserialize, Serialize};

use crate::Bytes;

/// Who made a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Vendor {
    /// PCI vendor 10de.
    Nvidia,
    /// PCI vendor 1002.
    Amd,
    /// PCI vendor 8086.
    Intel,
    /// No vendor: it is emulated.
    Emulated,
    /// Any other.
    #[default]
    Other,
}

impl Vendor {
    /// By PCI vendor id.
    #[must_use]
    pub fn of_pci(id: u16) -> Self {
        match id {
            0x10de => Self::Nvidia,
            0x1002 => Self::Amd,
            0x8086 => Self::Intel,
            _ => Self::Other,
        }
    }
}

/// Facts of one device. What could not be read is absent; `health` says what ought to be there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hardware {
    /// Who made it.
    pub vendor: Vendor,
    /// PCI vendor and device, `10de:2330`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_id: Option<String>,
    /// PCI class, `0302`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_class: Option<String>,
    /// The kernel's driver that is bound, `nvidia`, `amdgpu`, `vfio-pci`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Version of the driver as it says, `550.54.15`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_version: Option<String>,
    /// NVIDIA's brand, `Nvidia`, `GeForce` or `QuadroRTX`, in the spelling of NVIDIA's driver for Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub brand: Option<String>,
    /// NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// The PCIe root complex below which it sits, as the kernel names it: `pci0000:60`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_root: Option<String>,
    /// CPUs near it, `0-23,96-119`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_list: Option<String>,
    /// Its PCIe link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie: Option<PcieLink>,
    /// IOMMU group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iommu_group: Option<u32>,
    /// PCI addresses of the other functions of that group, bridges left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub iommu_peers: Vec<String>,
    /// Whether the firmware shows its messages on it.
    #[serde(default)]
    pub boot_display: bool,
    /// Node in KFD's topology, whose order is ROCr's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kfd_node: Option<u32>,
    /// KFD's unique id, 16 hexadecimal digits; partitions of one accelerator share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_id: Option<String>,
    /// `/dev/dri/renderD128`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub render_node: Option<String>,
    /// AMD's compute and memory partition, `CPX` and `NPS4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<PartitionState>,
    /// Whether MIG mode is on; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_mode: Option<bool>,
    /// Of a MIG instance: which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_instance: Option<MigPlace>,
    /// Whether an MPS control daemon serves it; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps: Option<bool>,
    /// Who uses it, as far as the driver tells.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<DeviceProcess>,
    /// What is wrong with it; nothing where it is well.
    #[serde(default)]
    pub health: Vec<String>,
}

/// A PCIe link, as it is and as it could be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieLink {
    /// Lanes in use.
    pub width: u32,
    /// Lanes there could be.
    pub width_max: u32,
    /// Megatransfers per second of a lane: 32000 is generation 5.
    pub megatransfers: u32,
    /// The most there could be.
    pub megatransfers_max: u32,
}

impl PcieLink {
    /// PCIe generation of a rate in megatransfers per second.
    #[must_use]
    pub fn generation(megatransfers: u32) -> u32 {
        match megatransfers {
            0..=2500 => 1,
            2501..=5000 => 2,
            5001..=8000 => 3,
            8001..=16_000 => 4,
            16_001..=32_000 => 5,
            _ => 6,
        }
    }
}

/// How an AMD accelerator is divided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionState {
    /// `SPX`, `DPX`, `QPX`, `CPX`.
    pub compute: String,
    /// `NPS1`, `NPS2`, `NPS4`.
    pub memory: String,
    /// Which of the accelerator's partitions this is, from 0.
    pub index: u32,
    /// How many there are.
    pub count: u32,
}

/// Which MIG instance a device is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigPlace {
    /// UUID of its GPU.
    pub gpu_uuid: String,
    /// GPU instance.
    pub gpu_instance: u32,
    /// Compute instance within it.
    pub compute_instance: u32,
    /// Profile, `1g.10gb`, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The memory slices of its GPU instance, where they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_slices: Option<MemorySlices>,
}

/// Memory slices of a GPU that a GPU instance covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySlices {
    /// The first, from 0.
    pub start: u32,
    /// How many.
    pub count: u32,
}

impl crate::DeviceRecord {
    /// Of a MIG instance: which.
    #[must_use]
    pub fn mig_instance(&self) -> Option<&MigPlace> {
        self.hardware.as_ref()?.mig_instance.as_ref()
    }

    /// Whether it is a GPU in MIG mode, of which only its instances can be used.
    #[must_use]
    pub fn is_divided(&self) -> bool {
        let facts = self.hardware.as_ref();
        facts.is_some_and(|facts| facts.mig_mode == Some(true) && facts.mig_instance.is_none())
    }
}

/// A process on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceProcess {
    /// Process id in the host's namespace.
    pub pid: u32,
    /// What it holds, where the driver tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<Bytes>,
}
