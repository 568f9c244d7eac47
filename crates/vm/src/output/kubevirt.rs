//! A KubeVirt machine, with what the cluster's KubeVirt object has to permit.

use std::fmt::Write;

use divvy_host::vgpu::VgpuWay;

use crate::function::Kind;
use crate::machine::{Machine, Pages};
use crate::vgpu::VirtualGpu;

/// Two YAML documents: the part of the KubeVirt object, and the machine.
#[must_use]
pub fn yaml(machine: &Machine) -> String {
    let request = &machine.request;
    let gpus: Vec<_> = machine
        .cards
        .iter()
        .flat_map(|card| &card.functions)
        .filter(|function| function.kind() == Kind::Gpu)
        .collect();
    let mut ids: Vec<String> = gpus.iter().map(|gpu| gpu.id()).collect();
    ids.sort();
    ids.dedup();
    let resource = |id: &str| format!("divvy.dev/gpu-{}", id.replace(':', "-"));
    let mut text = String::from(
        "apiVersion: kubevirt.io/v1\nkind: KubeVirt\nmetadata:\n  name: kubevirt\n  namespace: kubevirt\nspec:\n  \
         configuration:\n    permittedHostDevices:\n",
    );
    if !ids.is_empty() {
        text.push_str("      pciHostDevices:\n");
    }
    for id in &ids {
        let _ = writeln!(text, "        - pciVendorSelector: \"{}\"", id.to_uppercase());
        let _ = writeln!(text, "          resourceName: {}", resource(id));
    }
    // KubeVirt gives mediated devices by their type.
    let mediated = || machine.vgpus.iter().filter(|vgpu| vgpu.way == VgpuWay::Mediated);
    let of_vgpu = |vgpu: &VirtualGpu| format!("divvy.dev/vgpu-{}", vgpu.profile().to_lowercase());
    let mut types: Vec<&VirtualGpu> = mediated().collect();
    types.sort_by_key(|vgpu| vgpu.profile());
    types.dedup_by_key(|vgpu| vgpu.profile());
    if !types.is_empty() {
        text.push_str("      mediatedDevices:\n");
    }
    for vgpu in types {
        let _ = writeln!(text, "        - mdevNameSelector: \"{}\"", vgpu.name);
        let _ = writeln!(text, "          resourceName: {}", of_vgpu(vgpu));
    }
    for vgpu in machine
        .vgpus
        .iter()
        .filter(|vgpu| vgpu.way == VgpuWay::VendorVfio)
    {
        let _ = writeln!(
            text,
            "      # KubeVirt does not pass on virtual functions with a type: {} is left out.",
            vgpu.id
        );
    }
    let _ = write!(
        text,
        "---\napiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata:\n  name: {}\nspec:\n  runStrategy: Always\n  template:\n    \
         spec:\n      domain:\n        cpu:\n          cores: {}\n          threads: {}\n          model: host-passthrough\n          \
         dedicatedCpuPlacement: true\n          isolateEmulatorThread: true\n          numa:\n            guestMappingPassthrough: {{}}\n        \
         memory:\n          guest: {}Mi\n",
        request.name.to_lowercase().replace('_', "-"),
        request.vcpus / machine.pinning.threads.max(1),
        machine.pinning.threads,
        request.memory.0 >> 20,
    );
    let size = match request.pages {
        // The guest's nodes are told by huge pages only.
        Pages::Ordinary | Pages::Large => "2Mi",
        Pages::Huge => "1Gi",
    };
    let _ = write!(
        text,
        "          hugepages:\n            pageSize: {size}\n        devices:\n          gpus:\n"
    );
    for (at, gpu) in gpus.iter().enumerate() {
        let _ = writeln!(text, "            - name: gpu{at}");
        let _ = writeln!(text, "              deviceName: {}", resource(&gpu.id()));
    }
    for (at, vgpu) in (gpus.len()..).zip(mediated()) {
        let _ = writeln!(text, "            - name: gpu{at}");
        let _ = writeln!(text, "              deviceName: {}", of_vgpu(vgpu));
    }
    text
}
