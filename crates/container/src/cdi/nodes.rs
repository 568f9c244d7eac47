//! What the devices of every vendor are made of: nodes, and the device that has all of them.

use divvy_host::machine::Sysroot;

use super::spec::{Device, DeviceNode, Edits};

/// A node that a container may use and not make; none where a tree has a link there that leads nowhere inside it.
pub fn node(root: &Sysroot, path: &str) -> Option<DeviceNode> {
    let host_path = match root.is_own() {
        true => String::new(),
        false => {
            let within = path.trim_start_matches('/');
            let there = root.path(within);
            let place = root
                .real(within)
                .or_else(|| (!there.is_symlink()).then_some(there));
            place?.display().to_string()
        }
    };
    Some(DeviceNode {
        path: path.into(),
        host_path,
        permissions: "rw".into(),
        ..DeviceNode::default()
    })
}

/// A device called `all`, with the nodes of all the others.
pub fn all_of(devices: &[Device]) -> Option<Device> {
    let mut edits = Edits::default();
    for node in devices
        .iter()
        .flat_map(|device| &device.container_edits.device_nodes)
    {
        if !edits.device_nodes.contains(node) {
            edits.device_nodes.push(node.clone());
        }
    }
    (!devices.is_empty()).then(|| Device {
        name: "all".into(),
        container_edits: edits,
        ..Device::default()
    })
}
