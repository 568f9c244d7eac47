//! AMD's devices: /dev/kfd, and exactly the render and card nodes of each.

use divvy_host::machine::Sysroot;
use divvy_model::DeviceRecord;

use super::device_name;
use super::nodes::{all_of, node};
use super::spec::{Device, DeviceNode, Edits};

/// The node through which all compute goes. It shows no device whose render node is not allowed.
const KFD: &str = "/dev/kfd";

/// The devices, by index in KFD's order and by UUID, and all of them.
pub fn devices(root: &Sysroot, records: &[DeviceRecord]) -> Vec<Device> {
    let mut accelerators: Vec<&DeviceRecord> = records
        .iter()
        .filter(|record| node_number(record).is_some())
        .collect();
    accelerators.sort_by_key(|record| node_number(record));
    let mut devices = Vec::new();
    for (index, record) in accelerators.into_iter().enumerate() {
        let nodes = nodes(root, record);
        if nodes.is_empty() {
            continue;
        }
        for name in [index.to_string(), device_name(&record.uuid)] {
            let container_edits = Edits {
                device_nodes: nodes.clone(),
                ..Edits::default()
            };
            devices.push(Device {
                name,
                container_edits,
                ..Device::default()
            });
        }
    }
    let all = all_of(&devices);
    devices.extend(all);
    devices
}

/// A device's own nodes.
pub fn nodes(root: &Sysroot, record: &DeviceRecord) -> Vec<DeviceNode> {
    let Some(facts) = record.hardware.as_deref() else {
        return Vec::new();
    };
    let mut nodes = Vec::new();
    nodes.extend(facts.render_node.as_deref().and_then(|render| node(root, render)));
    // A partition has a render node of its own; the card's node is the whole accelerator's.
    if facts
        .partition
        .as_ref()
        .is_none_or(|partition| partition.count <= 1)
    {
        let drm = root.names(&format!("sys/bus/pci/devices/{}/drm", record.pci_address));
        let card = drm.iter().find(|name| {
            name.strip_prefix("card")
                .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
        });
        nodes.extend(card.and_then(|card| node(root, &format!("/dev/dri/{card}"))));
    }
    nodes
}

/// What all containers with one of AMD's devices have.
pub fn common(root: &Sysroot) -> Edits {
    Edits {
        device_nodes: node(root, KFD).into_iter().collect(),
        ..Edits::default()
    }
}

fn node_number(record: &DeviceRecord) -> Option<u32> {
    record.hardware.as_ref().and_then(|facts| facts.kfd_node)
}
