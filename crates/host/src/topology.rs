//! How far devices are from one another.

use std::collections::BTreeMap;
use std::fmt;

use divvy_model::{DeviceRecord, Vendor};
use serde::Serialize;

use crate::machine::{Machine, Sysroot, reach};

/// The way from one device to another, nearest first. Words of `nvidia-smi topo`, where it has one, in brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// The same physical device.
    Same,
    /// AMD's fabric.
    Xgmi,
    /// NVIDIA's fabric, to one another or through switches (NV#).
    Nvlink,
    /// PCIe switches only (PIX, PXB).
    Switch,
    /// A PCIe host bridge (PHB).
    Bridge,
    /// Two host bridges of one NUMA node (NODE).
    Node,
    /// Between NUMA nodes (SYS).
    System,
    /// Not known: an emulated device has no place.
    Unknown,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Same => "same",
            Self::Xgmi => "xgmi",
            Self::Nvlink => "nvlink",
            Self::Switch => "switch",
            Self::Bridge => "bridge",
            Self::Node => "node",
            Self::System => "system",
            Self::Unknown => "-",
        })
    }
}

/// The active NVLinks of each GPU, by UUID: PCI addresses of what is at their ends, a GPU or a switch.
pub type Nvlinks = BTreeMap<String, Vec<String>>;

/// The links between devices: a row for each, a column for each.
#[must_use]
pub fn links(
    root: &Sysroot,
    machine: &Machine,
    nvlinks: &Nvlinks,
    devices: &[DeviceRecord],
) -> Vec<Vec<Link>> {
    let fabric = reach(root);
    let link = |a: &DeviceRecord, b: &DeviceRecord| match joined(nvlinks, a, b) {
        true => Link::Nvlink,
        false => link(machine, &fabric, a, b),
    };
    let row = |a: &DeviceRecord| devices.iter().map(|b| link(a, b)).collect();
    devices.iter().map(row).collect()
}

/// Whether NVLink joins two GPUs: one is at an end of the other's links, or both lead to one switch.
fn joined(nvlinks: &Nvlinks, a: &DeviceRecord, b: &DeviceRecord) -> bool {
    if a.uuid == b.uuid {
        return false;
    }
    let (Some(one), Some(other)) = (nvlinks.get(&a.uuid), nvlinks.get(&b.uuid)) else {
        return false;
    };
    one.contains(&b.pci_address) || other.contains(&a.pci_address) || {
        let is_gpu = |end: &String| *end == a.pci_address || *end == b.pci_address;
        // An end that both share and that is neither's own is a switch, or a GPU between the two: near enough.
        one.iter().any(|end| !is_gpu(end) && other.contains(end))
    }
}

fn link(machine: &Machine, fabric: &[(u32, u32)], a: &DeviceRecord, b: &DeviceRecord) -> Link {
    if a.uuid == b.uuid {
        return Link::Same;
    }
    let gpu = |device: &DeviceRecord| -> String {
        let place = device.mig_instance();
        place.map_or_else(|| device.uuid.clone(), |place| place.gpu_uuid.clone())
    };
    if gpu(a) == gpu(b) {
        return Link::Same;
    }
    let (Some(one), Some(other)) = (&a.hardware, &b.hardware) else {
        return Link::Unknown;
    };
    if one.vendor == Vendor::Emulated || other.vendor == Vendor::Emulated {
        return Link::Unknown;
    }
    if a.pci_address == b.pci_address {
        return Link::Same;
    }
    if let (Some(from), Some(to)) = (one.kfd_node, other.kfd_node)
        && (fabric.contains(&(from, to)) || fabric.contains(&(to, from)))
    {
        return Link::Xgmi;
    }
    let path = |address: &str| {
        let function = machine
            .functions
            .iter()
            .find(|function| function.address == address);
        function
            .map(|function| function.path.as_slice())
            .unwrap_or_default()
    };
    let (left, right) = (path(&a.pci_address), path(&b.pci_address));
    let common = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    match (common, one.numa_node, other.numa_node) {
        // The root and a port of it, or a switch, are shared.
        (2.., ..) => Link::Switch,
        (1, ..) => Link::Bridge,
        (_, Some(a), Some(b)) if a == b => Link::Node,
        (_, Some(_), Some(_)) => Link::System,
        _ => Link::Unknown,
    }
}
