//! AMD's devices: KFD's nodes joined with PCI functions and DRM nodes.

use divvy_model::{Bytes, DeviceKind, DeviceProcess, DeviceRecord, PartitionState};

use super::kfd::KfdNode;
use super::{PciFunction, Sysroot, facts, plain, product};

/// The devices behind one PCI function: one for each partition, or the bare function where KFD does not know it.
pub fn devices(root: &Sysroot, function: &PciFunction, nodes: &[KfdNode]) -> Vec<DeviceRecord> {
    let own: Vec<&KfdNode> = nodes
        .iter()
        .filter(|node| node.address == function.address)
        .collect();
    if own.is_empty() {
        return vec![bare(root, function)];
    }
    let count = u32::try_from(own.len()).unwrap_or(u32::MAX);
    let devices = (0..).zip(&own).map(|(index, node)| {
        let mut device = plain(function);
        fill(root, &mut device, node, index, count);
        device
    });
    devices.collect()
}

/// Nodes whose PCI function is not there: half a hot-unplug.
pub fn without_function(
    root: &Sysroot,
    functions: &[PciFunction],
    nodes: &[KfdNode],
    notes: &mut Vec<String>,
) -> Vec<DeviceRecord> {
    let lost = nodes
        .iter()
        .filter(|node| functions.iter().all(|function| function.address != node.address));
    lost.map(|node| {
        notes.push(format!(
            "KFD node {} is at {}, where PCI has no such function: it is going away",
            node.number, node.address
        ));
        let function = PciFunction {
            address: node.address.clone(),
            vendor: divvy_model::Vendor::Amd,
            ..PciFunction::default()
        };
        let mut device = plain(&function);
        fill(root, &mut device, node, 0, 1);
        device.name = format!("AMD {}", node.target);
        let facts = facts(&mut device);
        facts.vendor = divvy_model::Vendor::Amd;
        facts
            .health
            .push("PCI does not know it any more: it was unplugged, or fell off the bus".into());
        device
    })
    .collect()
}

fn bare(root: &Sysroot, function: &PciFunction) -> DeviceRecord {
    let mut device = plain(function);
    let at = |file: &str| format!("sys/bus/pci/devices/{}/{file}", function.address);
    if let Some(name) = root.text(&at("product_name")) {
        device.name = name;
    }
    if let Some(bytes) = root.number(&at("mem_info_vram_total")) {
        device.memory_total_bytes = Bytes(bytes);
    }
    if let Some(bytes) = root.number(&at("mem_info_vram_used")) {
        device.memory_used_bytes = Bytes(bytes);
    }
    device
}

fn fill(root: &Sysroot, device: &mut DeviceRecord, node: &KfdNode, index: u32, count: u32) {
    let at = |file: &str| format!("sys/bus/pci/devices/{}/{file}", node.address);
    if let Some(name) = root.text(&at("product_name")) {
        device.name = name;
    } else if product::known(&facts(device).pci_id.clone().unwrap_or_default()).is_none() {
        device.name = format!("AMD {}", node.target);
    }
    let card_bytes = root.number(&at("mem_info_vram_total")).unwrap_or(0);
    let bytes = match node.memory_bytes {
        0 => card_bytes / u64::from(count.max(1)),
        told => told,
    };
    device.memory_total_bytes = Bytes(bytes);
    if count == 1 {
        device.memory_used_bytes = Bytes(root.number(&at("mem_info_vram_used")).unwrap_or(0));
    }
    device.sm_count = node.compute_units;
    device.compute_capability.clone_from(&node.target);
    let unique = format!("{:016x}", node.unique_id);
    device.uuid = match (node.unique_id, count) {
        (0, 1) => format!("PCI-{}", node.address),
        (0, _) => format!("PCI-{}/{index}", node.address),
        (_, 1) => format!("GPU-{unique}"),
        _ => format!("GPU-{unique}/{index}"),
    };
    let compute = root.text(&at("current_compute_partition"));
    if count > 1 {
        device.kind = DeviceKind::Partition;
        device.name = format!("{} partition {index}", device.name);
    }
    let processes = processes(root, node.gpu_id);
    if device.memory_used_bytes == Bytes(0) {
        let held = processes.iter().filter_map(|process| process.memory_bytes);
        device.memory_used_bytes = Bytes(held.fold(0, |sum, bytes| sum.saturating_add(bytes.0)));
    }
    let facts = facts(device);
    facts.kfd_node = Some(node.number);
    facts.unique_id = (node.unique_id != 0).then_some(unique);
    facts.render_node = node.render_minor.map(|minor| format!("/dev/dri/renderD{minor}"));
    facts.partition = compute.map(|compute| PartitionState {
        compute,
        memory: root.text(&at("current_memory_partition")).unwrap_or_default(),
        index,
        count,
    });
    facts.processes = processes;
    if let Some(errors) = uncorrectable(root, &at("ras/umc_err_count")).filter(|errors| *errors > 0) {
        facts.health.push(format!("{errors} uncorrectable memory errors"));
    }
}

/// `ue: 0` among the lines of a RAS counter.
fn uncorrectable(root: &Sysroot, path: &str) -> Option<u64> {
    let text = root.text(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix("ue:"))?;
    line.trim().parse().ok()
}

/// Who holds memory of an accelerator: `/sys/class/kfd/kfd/proc/<pid>/vram_<gpu id>`.
fn processes(root: &Sysroot, gpu_id: u32) -> Vec<DeviceProcess> {
    let folder = "sys/class/kfd/kfd/proc";
    let found = root.names(folder).into_iter().filter_map(|name| {
        let bytes = root.number(&format!("{folder}/{name}/vram_{gpu_id}"))?;
        Some(DeviceProcess {
            pid: name.parse().ok()?,
            memory_bytes: Some(Bytes(bytes)),
        })
    });
    found.collect()
}
