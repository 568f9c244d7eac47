//! CDI files of this machine's devices, from the inventory.

use std::path::PathBuf;

use divvy_host::machine::Sysroot;
use divvy_model::{DeviceRecord, Vendor};

use super::emulated::{self, Emulated};
use super::libraries::Capabilities;
use super::spec::Spec;
use super::{amd, nvidia};

/// What is to be written.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The parts of NVIDIA's driver.
    pub capabilities: Capabilities,
    /// Only this vendor's devices.
    pub vendor: Option<Vendor>,
    /// Another kind than the vendor's own, where only one vendor's devices are written.
    pub kind: Option<String>,
    /// The emulated devices, ready to be mounted.
    pub emulated: Vec<Emulated>,
    /// The folder of the emulated driver's libraries.
    pub emulated_driver: PathBuf,
}

/// A file's name and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// The file.
    pub file: &'static str,
    /// Its content.
    pub spec: Spec,
}

/// The kinds of each vendor, as the vendors' own toolkits call them, and the files we write.
const KINDS: [(Vendor, &str, &str); 3] = [
    (Vendor::Nvidia, "nvidia.com/gpu", "divvy-nvidia.json"),
    (Vendor::Amd, "amd.com/gpu", "divvy-amd.json"),
    (Vendor::Emulated, "divvy.dev/gpu", "divvy-emulated.json"),
];

/// One file for each vendor that has devices here.
#[must_use]
pub fn generate(root: &Sysroot, records: &[DeviceRecord], options: &Options) -> Vec<Generated> {
    let wanted = KINDS
        .iter()
        .filter(|(vendor, _, _)| options.vendor.is_none_or(|only| only == *vendor));
    let files = wanted.filter_map(|(vendor, kind, file)| {
        let own: Vec<DeviceRecord> = records
            .iter()
            .filter(|record| {
                record
                    .hardware
                    .as_ref()
                    .is_some_and(|facts| facts.vendor == *vendor)
            })
            .cloned()
            .collect();
        let (devices, common) = match vendor {
            Vendor::Nvidia => (
                nvidia::devices(root, &own),
                nvidia::common(root, &options.capabilities),
            ),
            Vendor::Amd => (amd::devices(root, &own), amd::common(root)),
            _ => (
                emulated::devices(&options.emulated),
                emulated::common(&options.emulated_driver),
            ),
        };
        let kind = options.kind.as_deref().unwrap_or(kind);
        (!devices.is_empty()).then(|| Generated {
            file,
            spec: Spec::new(kind, devices, common),
        })
    });
    files.collect()
}
