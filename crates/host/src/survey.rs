//! Everything this machine has, whether or not slices can be had of it.
//!
//! Devices that can have slices come first, numbered as the agent and CUDA number them; AMD's, passed-through and other
//! display devices follow.

use divvy_model::{DeviceRecord, Fault, Hardware, Vendor};

use crate::inventory::{Sources, take};
use crate::machine::{self, Machine, Sysroot};
use crate::nvidia::{self, Nvidia};
use crate::topology::Nvlinks;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survey {
    /// The devices.
    pub devices: Vec<DeviceRecord>,
    /// The kernel's own view.
    pub machine: Machine,
    /// Oddities, and things that were looked for and not found.
    pub notes: Vec<String>,
    /// Version of NVIDIA's driver.
    pub driver_version: Option<String>,
    /// NVLinks, as NVML tells them.
    pub nvlinks: Nvlinks,
}

/// Surveys the tree below `root`, or where there is none this machine with NVML and emulated devices.
///
/// # Errors
/// As [`take`].
pub fn survey(sources: &Sources, root: Option<&Sysroot>) -> Result<Survey, Fault> {
    if let Some(root) = root {
        let machine = machine::read(root);
        return Ok(Survey {
            devices: machine.devices.clone(),
            notes: machine.notes.clone(),
            machine,
            driver_version: driver_version(root),
            nvlinks: Nvlinks::new(),
        });
    }
    if sources.emulated.is_some() {
        let inventory = take(sources, &Nvidia::absent())?;
        return Ok(Survey {
            nvlinks: emulated_links(&inventory.devices),
            devices: inventory.devices.into_iter().map(with_vendor).collect(),
            ..Survey::default()
        });
    }
    let nvidia = Nvidia::open();
    let inventory = take(sources, &nvidia)?;
    let machine = machine::read(&Sysroot::of_process());
    let accelerators = machine.devices.iter().any(|device| {
        device
            .hardware
            .as_ref()
            .is_some_and(|facts| facts.kfd_node.is_some())
    });
    // An emulated device stands in where there is nothing else to try a GPU program on.
    let usable = match inventory.stand_in && accelerators {
        true => Vec::new(),
        false => inventory.devices,
    };
    let mut devices: Vec<DeviceRecord> = usable.into_iter().map(with_vendor).collect();
    for device in &mut devices {
        let seen = machine
            .devices
            .iter()
            .find(|seen| seen.pci_address == device.pci_address && seen.kind != divvy_model::DeviceKind::Mig);
        if let Some(facts) = seen.and_then(|seen| seen.hardware.as_deref()) {
            let told = nvidia.facts(&device.uuid)?;
            device.hardware = Some(Box::new(merged(facts.clone(), device.hardware.take(), told)));
        }
    }
    let known: Vec<String> = devices.iter().map(|device| device.pci_address.clone()).collect();
    // Beside a stand-in there are screens only, which no program computes on: numbers never mix the two.
    let others = machine
        .devices
        .iter()
        .filter(|device| !inventory.stand_in && !known.contains(&device.pci_address));
    for device in others {
        devices.push(DeviceRecord {
            index: u32::try_from(devices.len()).unwrap_or(u32::MAX),
            ..device.clone()
        });
    }
    let mut notes = inventory.notes;
    notes.extend(machine.notes.iter().cloned());
    Ok(Survey {
        devices,
        machine,
        notes,
        driver_version: inventory.driver_version,
        nvlinks: nvidia.links()?,
    })
}

/// Emulated GPUs with NVLink are joined through switches where there are several, as their NVML tells.
fn emulated_links(devices: &[DeviceRecord]) -> Nvlinks {
    let links = |device: &DeviceRecord| {
        let product = device.profile.as_deref()?;
        let count = divvy_device::nvlinks(product);
        (count > 0).then(|| (device.uuid.clone(), vec!["a switch".to_owned(); count as usize]))
    };
    let found: Nvlinks = devices.iter().filter_map(links).collect();
    match found.len() {
        0 | 1 => Nvlinks::new(),
        _ => found,
    }
}

fn with_vendor(mut device: DeviceRecord) -> DeviceRecord {
    let emulated = device.kind == divvy_model::DeviceKind::Emulated;
    let product = device.profile.as_deref();
    let brand = product
        .and_then(divvy_device::brand)
        .and_then(nvidia::brand)
        .map(str::to_owned);
    let facts = device.hardware.get_or_insert_default();
    facts.vendor = if emulated {
        Vendor::Emulated
    } else {
        Vendor::Nvidia
    };
    if emulated {
        facts.brand = brand;
    }
    device
}

/// The kernel's facts, with what NVML adds.
fn merged(kernel: Hardware, listed: Option<Box<Hardware>>, told: Hardware) -> Hardware {
    let mut health = kernel.health.clone();
    health.extend(told.health);
    Hardware {
        mig_mode: told.mig_mode.or(kernel.mig_mode),
        mig_instance: listed.and_then(|listed| listed.mig_instance),
        driver_version: told.driver_version.or(kernel.driver_version),
        brand: told.brand,
        processes: told.processes,
        health,
        ..kernel
    }
}

/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  …`
fn driver_version(root: &Sysroot) -> Option<String> {
    let text = root.text("proc/driver/nvidia/version")?;
    let line = text.lines().next()?;
    let word = line
        .split_whitespace()
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))?;
    Some(word.to_owned())
}
