//! The devices of this machine as the kernel shows them, with no vendor's library: `/sys` and `/proc`, under any root.
//!
//! A captured or built tree can replace `/`: everything is read below one [`Sysroot`].

mod amd;
mod kfd;
mod nvidia;
mod pci;
mod product;
mod sysroot;
mod xid;

use divvy_model::{Bytes, DeviceKind, DeviceRecord, Hardware, Vendor};

pub use pci::PciFunction;
pub use sysroot::Sysroot;

/// The devices that the kernel shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    /// By PCI address, MIG instances and partitions behind one another.
    pub devices: Vec<DeviceRecord>,
    /// Every display or accelerator function, as PCI shows it.
    pub functions: Vec<PciFunction>,
    /// Files that could not be read, or do not fit together.
    pub notes: Vec<String>,
}

/// Its display and accelerator functions alone.
#[must_use]
pub fn functions(root: &Sysroot) -> Vec<PciFunction> {
    pci::functions(root, &mut Vec::new())
}

/// Reads a machine.
#[must_use]
pub fn read(root: &Sysroot) -> Machine {
    let mut notes = Vec::new();
    let functions = pci::functions(root, &mut notes);
    let mut devices = Vec::new();
    let accelerators = kfd::nodes(root, &mut notes);
    for function in &functions {
        match function.vendor {
            Vendor::Nvidia => devices.extend(nvidia::devices(root, function)),
            Vendor::Amd => devices.extend(amd::devices(root, function, &accelerators)),
            _ => devices.push(plain(function)),
        }
    }
    devices.extend(amd::without_function(root, &functions, &accelerators, &mut notes));
    nvidia::lost(root, &functions, &mut notes);
    for (address, code, words) in xid::errors(root) {
        // An Xid names the device, not its function.
        let hit = |device: &&mut DeviceRecord| device.pci_address.starts_with(&address);
        for device in devices.iter_mut().filter(hit) {
            facts(device).health.push(format!("Xid {code}: {words}"));
        }
    }
    devices.sort_by_key(order);
    for (index, device) in (0..).zip(&mut devices) {
        device.index = index;
    }
    Machine {
        devices,
        functions,
        notes,
    }
}

/// Pairs of KFD nodes that AMD's fabric joins.
#[must_use]
pub fn reach(root: &Sysroot) -> Vec<(u32, u32)> {
    let nodes = kfd::nodes(root, &mut Vec::new());
    let pairs = nodes.iter().flat_map(|node| {
        let fabric = node.links.iter().filter(|(_, fabric)| *fabric);
        fabric.map(|(to, _)| (node.number, *to))
    });
    pairs.collect()
}

fn order(device: &DeviceRecord) -> (String, Option<u32>) {
    let node = device.hardware.as_ref().and_then(|hardware| hardware.kfd_node);
    (device.pci_address.clone(), node)
}

/// A function of which only PCI knows.
fn plain(function: &PciFunction) -> DeviceRecord {
    let product = product::known(&function.pci_id);
    DeviceRecord {
        index: 0,
        uuid: format!("PCI-{}", function.address),
        name: function.name(),
        kind: DeviceKind::Gpu,
        profile: None,
        pci_address: function.address.clone(),
        memory_total_bytes: Bytes(product.map_or(0, |product| product.memory_bytes)),
        memory_reserved_bytes: Bytes(0),
        memory_used_bytes: Bytes(0),
        sm_count: product.map_or(0, |product| product.multiprocessors),
        compute_capability: String::new(),
        context_bytes: None,
        sharing: None,
        hardware: Some(Box::new(function.hardware())),
    }
}

impl PciFunction {
    /// Its product's name, where that is known.
    #[must_use]
    pub fn name(&self) -> String {
        product::known(&self.pci_id).map_or_else(|| unnamed(self), |product| product.name.to_owned())
    }
}

fn unnamed(function: &PciFunction) -> String {
    let vendor = match function.vendor {
        Vendor::Nvidia => "NVIDIA",
        Vendor::Amd => "AMD",
        Vendor::Intel => "Intel",
        Vendor::Emulated | Vendor::Other => "display",
    };
    format!("{vendor} device {}", function.pci_id)
}

/// A device's facts, to be changed.
fn facts(device: &mut DeviceRecord) -> &mut Hardware {
    device.hardware.get_or_insert_default()
}
