//! Lines of a configuration file of Xen's `xl`, and the commands of XenServer and XCP-ng for virtual GPUs.

use std::fmt::Write;

use crate::machine::Machine;

/// The lines. The functions go to Xen's own driver first: `xl pci-assignable-add`.
#[must_use]
pub fn lines(machine: &Machine) -> String {
    let mut text = String::new();
    let request = &machine.request;
    let functions = || machine.cards.iter().flat_map(|card| &card.functions);
    for function in functions() {
        let _ = writeln!(text, "# xl pci-assignable-add {}", function.address);
    }
    let _ = writeln!(text, "name = \"{}\"", request.name);
    let _ = writeln!(text, "type = \"hvm\"");
    let _ = writeln!(text, "vcpus = {}", request.vcpus);
    // Each processor of the machine on one of the host's.
    let cpus: Vec<String> = machine
        .pinning
        .vcpus
        .iter()
        .map(|(cpu, _)| format!("\"{cpu}\""))
        .collect();
    let _ = writeln!(text, "cpus = [{}]", cpus.join(", "));
    // Memory that a device reaches by itself cannot be taken back while the machine runs.
    for name in ["memory", "maxmem"] {
        let _ = writeln!(text, "{name} = {}", request.memory.0 >> 20);
    }
    if machine.has_uefi() {
        let _ = writeln!(text, "bios = \"ovmf\"");
    }
    if request.windows {
        let _ = writeln!(text, "viridian = 1");
    }
    if machine.needs_window() {
        let _ = writeln!(text, "mmio_hole = 3072");
    }
    if let Some(disk) = &request.disk {
        let format = super::disk_format(disk);
        let _ = writeln!(
            text,
            "disk = [\"format={format},vdev=xvda,access=rw,target={}\"]",
            disk.replace('"', "")
        );
    }
    let pci: Vec<String> = functions()
        .map(|function| format!("\"{},permissive=0\"", function.address))
        .collect();
    if !pci.is_empty() {
        let _ = writeln!(text, "pci = [{}]", pci.join(", "));
    }
    for vgpu in &machine.vgpus {
        let (name, model) = (&request.name, &vgpu.name);
        let _ = write!(
            text,
            "# `xl` has no virtual GPUs. XenServer and XCP-ng make them when the machine starts:\n\
             # xe vgpu-create vm-uuid=$(xe vm-list name-label={name} --minimal) \\\n\
             #   vgpu-type-uuid=$(xe vgpu-type-list model-name='{model}' --minimal) \\\n\
             #   gpu-group-uuid=$(xe gpu-group-list enabled-vgpu-types:contains='{model}' --minimal)\n"
        );
    }
    text
}
