//! NVIDIA's devices as the kernel module and PCI show them, without NVML.

use divvy_model::{DeviceKind, DeviceRecord, MigPlace};

use super::{PciFunction, Sysroot, facts, plain};

const GPUS: &str = "proc/driver/nvidia/gpus";
const CAPABILITIES: &str = "proc/driver/nvidia/capabilities";

/// The GPU of a PCI function, and its MIG instances.
pub fn devices(root: &Sysroot, function: &PciFunction) -> Vec<DeviceRecord> {
    let mut gpu = plain(function);
    let information = root.text(&format!("{GPUS}/{}/information", function.address));
    let field = |name: &str| {
        let lines = information.as_deref().unwrap_or_default().lines();
        let value = lines
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.trim() == name);
        value.map(|(_, value)| value.trim().to_owned())
    };
    if let Some(name) = field("Model") {
        gpu.name = name;
    }
    // A GPU that no process has opened yet shows question marks.
    if let Some(uuid) = field("GPU UUID").filter(|uuid| uuid.starts_with("GPU-") && !uuid.contains('?')) {
        gpu.uuid = uuid;
    }
    let control = root.has("tmp/nvidia-mps/control");
    let bound = function.driver.as_deref() == Some("nvidia");
    if bound && information.is_none() {
        facts(&mut gpu).health.push(
            "the nvidia driver is bound and does not list it: it did not start, or fell off the bus".into(),
        );
    }
    if bound {
        facts(&mut gpu).mps = Some(control);
    }
    let minor = field("Device Minor").and_then(|minor| minor.parse::<u32>().ok());
    let instances = minor.map_or_else(Vec::new, |minor| instances(root, minor, &gpu));
    if !instances.is_empty() {
        facts(&mut gpu).mig_mode = Some(true);
    }
    let mut devices = vec![gpu];
    devices.extend(instances);
    devices
}

/// Compute instances, as the capability files show them: `gpu0/mig/gi1/ci0/access`.
fn instances(root: &Sysroot, minor: u32, gpu: &DeviceRecord) -> Vec<DeviceRecord> {
    let mig = format!("{CAPABILITIES}/gpu{minor}/mig");
    let numbered = |folder: &str, prefix: &str| -> Vec<u32> {
        let names = root.names(folder).into_iter();
        let mut found: Vec<u32> = names
            .filter_map(|name| name.strip_prefix(prefix)?.parse().ok())
            .collect();
        found.sort_unstable();
        found
    };
    let mut devices = Vec::new();
    for gpu_instance in numbered(&mig, "gi") {
        for compute_instance in numbered(&format!("{mig}/gi{gpu_instance}"), "ci") {
            let mut device = gpu.clone();
            device.kind = DeviceKind::Mig;
            // The name that CUDA_VISIBLE_DEVICES takes where the instance's own UUID is not known.
            device.uuid = format!("MIG-{}/{gpu_instance}/{compute_instance}", gpu.uuid);
            device.name = format!("{} MIG {gpu_instance}/{compute_instance}", gpu.name);
            // How large it is only NVML knows.
            device.memory_total_bytes = divvy_model::Bytes(0);
            device.sm_count = 0;
            facts(&mut device).mig_instance = Some(MigPlace {
                gpu_uuid: gpu.uuid.clone(),
                gpu_instance,
                compute_instance,
                profile: None,
                memory_slices: None,
            });
            devices.push(device);
        }
    }
    devices
}

/// GPUs that the kernel module lists and PCI does not.
pub fn lost(root: &Sysroot, functions: &[PciFunction], notes: &mut Vec<String>) {
    for address in root.names(GPUS) {
        if functions.iter().all(|function| function.address != address) {
            notes.push(format!(
                "{address}: the nvidia driver lists it and PCI has no such function: it is going away"
            ));
        }
    }
}
