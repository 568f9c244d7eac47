//! Emulated devices: no nodes, but the emulated driver's libraries, and the socket at which the devices' pages are to be had.

use std::path::Path;

use divvy_agent::container::Grant;

use super::device_name;
use super::spec::{Device, Edits};
use crate::inject::{over_libraries, pages};

/// An emulated device with what a container of it has mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emulated {
    /// Its number, or `all`.
    pub name: String,
    /// Its UUID; none for all of them.
    pub uuid: Option<String>,
    /// The file that names it, and the socket that gives out its pages.
    pub grant: Grant,
}

/// The devices.
pub fn devices(emulated: &[Emulated]) -> Vec<Device> {
    let of = |device: &Emulated| {
        let container_edits = Edits {
            mounts: pages(&device.grant),
            ..Edits::default()
        };
        let names = std::iter::once(device.name.clone()).chain(device.uuid.as_deref().map(device_name));
        let named = names.map(move |name| Device {
            name,
            container_edits: container_edits.clone(),
            ..Device::default()
        });
        named.collect::<Vec<_>>()
    };
    emulated.iter().flat_map(of).collect()
}

/// What all containers with an emulated device have: its driver and NVML, from this folder.
pub fn common(driver: &Path) -> Edits {
    let mut edits = Edits::default();
    for name in ["libcuda.so", "libnvidia-ml.so"] {
        let file = driver.join(format!("{name}.1"));
        edits.mounts.extend(over_libraries(&file, &format!("{name}.1")));
        edits.mounts.extend(over_libraries(&file, name));
    }
    edits
}
