//! A device as it is shown and stored.

use serde::{Deserialize, Serialize};

use crate::{Bytes, Hardware};

/// What stands behind a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// A whole physical GPU.
    #[default]
    Gpu,
    /// A MIG instance of one.
    Mig,
    /// A partition of an AMD accelerator.
    Partition,
    /// An emulated GPU: PTX on the CPU.
    Emulated,
}

/// One device of this host. Field names are those of the JSON output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceRecord {
    /// Position in PCI bus order, from 0.
    pub index: u32,
    /// The stable id, `GPU-…` or `MIG-…`.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// What stands behind it.
    pub kind: DeviceKind,
    /// Product profile of an emulated device (`h100`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// `0000:65:00.0`.
    pub pci_address: String,
    /// The device's memory.
    pub memory_total_bytes: Bytes,
    /// The memory that driver and firmware reserve: no program gets it.
    #[serde(default, skip_serializing_if = "Bytes::is_zero")]
    pub memory_reserved_bytes: Bytes,
    /// Memory in use on it, by all processes.
    pub memory_used_bytes: Bytes,
    /// Streaming multiprocessors (or compute units).
    pub sm_count: u32,
    /// `9.0`.
    pub compute_capability: String,
    /// What one context of a program takes of it, where that is known beforehand: of an emulated device, from its
    /// specification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_bytes: Option<Bytes>,
    /// What an agent hands out of it; absent where none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
    /// Where it sits and how it fares; absent where nothing but its driver was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<Box<Hardware>>,
}

/// The profile of PoCL, as `emulated:pocl` selects it: this machine's processors as an OpenCL device, and no CUDA device.
pub const POCL: &str = "pocl";

impl DeviceRecord {
    /// Whether only OpenCL programs can use it.
    #[must_use]
    pub fn is_opencl_only(&self) -> bool {
        self.profile.as_deref() == Some(POCL)
    }

    /// The memory that programs can have.
    #[must_use]
    pub fn memory_usable_bytes(&self) -> Bytes {
        Bytes(
            self.memory_total_bytes
                .0
                .saturating_sub(self.memory_reserved_bytes.0),
        )
    }
}

/// How a device is divided, as its agent tells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sharing {
    /// Slices on it.
    pub slice_count: u32,
    /// The most slices it may be divided into.
    pub slice_max: u32,
    /// Memory promised to slices, their contexts included.
    pub memory_promised_bytes: Bytes,
    /// Memory that programs outside any slice hold.
    pub memory_unmanaged_bytes: Bytes,
    /// Memory that is in use for no living process: what dead ones left to others, and what the driver keeps. 0 where the
    /// driver does not tell what each process holds.
    #[serde(default)]
    pub memory_overhead_bytes: Bytes,
    /// What a new slice and its context can still get.
    pub memory_free_bytes: Bytes,
    /// Promises may add up to this many times the device's memory.
    pub oversubscription_ratio: f64,
    /// The sum of the compute shares promised to slices; above 1 they are weights.
    #[serde(default)]
    pub compute_promised_ratio: f64,
}
