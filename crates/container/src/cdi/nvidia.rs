//! NVIDIA's devices: nodes by minor number, MIG instances by capability nodes, the driver's files by capabilities.

use divvy_host::machine::Sysroot;
use divvy_model::{Code, DeviceKind, DeviceRecord, Fault, Hardware};

use super::device_name;
use super::libraries::{Capabilities, Capability, libraries, programs};
use super::nodes::{all_of, node};
use super::spec::{Device, DeviceNode, Edits};
use crate::inject::{bind, over_libraries};

/// Nodes that every container with one of NVIDIA's devices has.
const COMMON: [&str; 3] = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"];

/// The devices: GPUs by index and UUID, MIG instances by `index:instance`, and all of them.
pub fn devices(root: &Sysroot, records: &[DeviceRecord]) -> Vec<Device> {
    let mut devices = Vec::new();
    let mut add = |name: String, nodes: Vec<DeviceNode>| {
        let container_edits = Edits {
            device_nodes: nodes,
            ..Edits::default()
        };
        devices.push(Device {
            name,
            container_edits,
            ..Device::default()
        });
    };
    let gpus = records.iter().filter(|record| record.kind == DeviceKind::Gpu);
    for (index, gpu) in gpus.enumerate() {
        let Some(minor) = minor(root, &gpu.pci_address) else {
            continue;
        };
        let divided = facts(gpu).is_some_and(|facts| facts.mig_mode == Some(true));
        let instances = records.iter().filter(|record| {
            record.kind == DeviceKind::Mig
                && facts(record)
                    .and_then(|facts| facts.mig_instance.as_ref())
                    .is_some_and(|place| place.gpu_uuid == gpu.uuid)
        });
        for (number, instance) in instances.enumerate() {
            if let Ok(nodes) = nodes(root, instance, minor) {
                add(format!("{index}:{number}"), nodes);
            }
        }
        // A GPU in MIG mode serves no container as a whole.
        if !divided {
            let own: Vec<DeviceNode> = node(root, &format!("/dev/nvidia{minor}")).into_iter().collect();
            add(index.to_string(), own.clone());
            add(device_name(&gpu.uuid), own);
        }
    }
    let all = all_of(&devices);
    devices.extend(all);
    devices
}

/// The nodes of a device: the GPU's, and an instance's capabilities.
///
/// # Errors
/// [`Code::UnknownDevice`] for an instance whose place is not known.
pub fn nodes(root: &Sysroot, record: &DeviceRecord, minor: u32) -> Result<Vec<DeviceNode>, Fault> {
    let mut nodes: Vec<DeviceNode> = node(root, &format!("/dev/nvidia{minor}")).into_iter().collect();
    if record.kind == DeviceKind::Mig {
        let place = facts(record).and_then(|facts| facts.mig_instance.clone());
        let place = place.unwrap_or_default();
        let instance = format!(
            "proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{}",
            place.gpu_instance
        );
        for access in [
            format!("{instance}/access"),
            format!("{instance}/ci{}/access", place.compute_instance),
        ] {
            let capability = capability(root, &access).ok_or_else(|| {
                Fault::new(
                    Code::UnknownDevice,
                    format!("the capability node of MIG instance {} is not known", record.uuid),
                )
                .cause(format!("`{}` does not name it", root.path(&access).display()))
                .hint("`divvy gpu mig list` shows the instances there are")
            })?;
            nodes.extend(node(root, &format!("/dev/nvidia-caps/nvidia-cap{capability}")));
        }
    }
    Ok(nodes)
}

/// A GPU's minor number, which is not its index.
pub fn minor(root: &Sysroot, address: &str) -> Option<u32> {
    let information = root.text(&format!("proc/driver/nvidia/gpus/{address}/information"))?;
    let line = information
        .lines()
        .find_map(|line| line.strip_prefix("Device Minor:"))?;
    line.trim().parse().ok()
}

/// `DeviceFileMinor: 30` in a capability's file.
fn capability(root: &Sysroot, file: &str) -> Option<u32> {
    let text = root.text(file)?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("DeviceFileMinor:"))?;
    line.trim().parse().ok()
}

/// What all containers with one of NVIDIA's devices have: control nodes that are there, and the driver's files.
pub fn common(root: &Sysroot, capabilities: &Capabilities) -> Edits {
    let mut names: Vec<&str> = COMMON.to_vec();
    if capabilities.has(Capability::Graphics) || capabilities.has(Capability::Display) {
        names.push("/dev/nvidia-modeset");
    }
    let there = |path: &&str| root.has(path.trim_start_matches('/'));
    let mut edits = Edits {
        device_nodes: names
            .into_iter()
            .filter(there)
            .filter_map(|path| node(root, path))
            .collect(),
        // Where NVIDIA's own hook is installed too, it is to inject nothing besides.
        env: vec!["NVIDIA_VISIBLE_DEVICES=void".into()],
        ..Edits::default()
    };
    for library in libraries(root, capabilities) {
        edits.mounts.extend(over_libraries(&library.path, &library.name));
        // Programs that load it by its unversioned name, which links on the host provide.
        if matches!(library.name.as_str(), "libcuda.so.1" | "libnvidia-ml.so.1") {
            let short = library.name.trim_end_matches(".1");
            edits.mounts.extend(over_libraries(&library.path, short));
        }
    }
    for program in programs(root, capabilities) {
        edits
            .mounts
            .push(bind(&program.path, &format!("/usr/bin/{}", program.name)));
    }
    edits
}

fn facts(record: &DeviceRecord) -> Option<&Hardware> {
    record.hardware.as_deref()
}
