//! libvirt's domain, made or changed.

use divvy_host::vgpu::VgpuWay;
use divvy_model::{Code, Fault};

use crate::cpus::written;
use crate::function::Function;
use crate::machine::{Machine, Pages};
use crate::xml::Element;

/// A new domain.
#[must_use]
pub fn domain(machine: &Machine) -> Element {
    let request = &machine.request;
    let mut domain = Element::new("domain")
        .with("type", "kvm")
        .child(Element::new("name").text(&request.name))
        .child(
            Element::new("memory")
                .with("unit", "KiB")
                .text(request.memory.0 >> 10),
        );
    let mut os = Element::new("os").child(
        Element::new("type")
            .with("arch", "x86_64")
            .with("machine", "q35")
            .text("hvm"),
    );
    if machine.has_uefi() {
        os.set("firmware", "efi");
    }
    domain.put(os);
    domain.put(
        Element::new("features")
            .child(Element::new("acpi"))
            .child(Element::new("apic")),
    );
    let mut devices = Element::new("devices");
    if let Some(disk) = &request.disk {
        let format = super::disk_format(disk);
        devices = devices.child(
            Element::new("disk")
                .with("type", "file")
                .with("device", "disk")
                .child(Element::new("driver").with("name", "qemu").with("type", format))
                .child(Element::new("source").with("file", disk))
                .child(Element::new("target").with("dev", "vda").with("bus", "virtio")),
        );
    }
    domain.put(devices.child(Element::new("console").with("type", "pty")));
    shape(&mut domain, machine);
    domain
}

/// Changes a domain: its processors, memory and cards become the machine's, and all else stays.
///
/// # Errors
/// [`Code::Usage`] for what is no domain.
pub fn merge(text: &str, machine: &Machine) -> Result<Element, Fault> {
    let mut domain = Element::read(text)?;
    if domain.name != "domain" {
        return Err(Fault::new(
            Code::Usage,
            format!("this is no domain, but `{}`", domain.name.escape_debug()),
        )
        .hint("`virsh dumpxml --inactive NAME` writes a domain's"));
    }
    domain.put(
        Element::new("memory")
            .with("unit", "KiB")
            .text(machine.request.memory.0 >> 10),
    );
    domain.remove(|element| element.name == "currentMemory");
    shape(&mut domain, machine);
    Ok(domain)
}

/// What the host's shape says of a domain.
fn shape(domain: &mut Element, machine: &Machine) {
    let request = &machine.request;
    domain.put(
        Element::new("vcpu")
            .with("placement", "static")
            .text(request.vcpus),
    );
    let mut tuning = Element::new("cputune");
    for (vcpu, (cpu, _)) in machine.pinning.vcpus.iter().enumerate() {
        tuning = tuning.child(Element::new("vcpupin").with("vcpu", vcpu).with("cpuset", cpu));
    }
    let emulator = written(&machine.pinning.emulator);
    domain.put(tuning.child(Element::new("emulatorpin").with("cpuset", emulator)));
    let nodes = written(&machine.pinning.nodes);
    let memory = Element::new("memory")
        .with("mode", "strict")
        .with("nodeset", nodes);
    let mut numa = Element::new("numatune").child(memory);
    if machine.has_nodes() {
        for (cell, node) in machine.pinning.nodes.iter().enumerate() {
            numa = numa.child(
                Element::new("memnode")
                    .with("cellid", cell)
                    .with("mode", "strict")
                    .with("nodeset", node),
            );
        }
    }
    domain.put(numa);
    if request.pages != Pages::Ordinary {
        let page = Element::new("page")
            .with("size", request.pages.bytes() >> 10)
            .with("unit", "KiB");
        domain.put(Element::new("memoryBacking").child(Element::new("hugepages").child(page)));
    }
    processor(domain.entry("cpu"), machine);
    if request.windows {
        hide(domain.entry("features"));
    }
    cards(domain.entry("devices"), machine);
}

fn processor(cpu: &mut Element, machine: &Machine) {
    let threads = machine.pinning.threads.max(1);
    let sockets = u32::try_from(machine.pinning.nodes.len()).unwrap_or(1);
    cpu.set("mode", "host-passthrough");
    cpu.set("check", "none");
    // A model is for other modes.
    cpu.remove(|element| element.name == "model");
    cpu.put(
        Element::new("topology")
            .with("sockets", sockets)
            .with("cores", machine.request.vcpus / sockets / threads)
            .with("threads", threads),
    );
    cpu.put(Element::new("maxphysaddr").with("mode", "passthrough"));
    if machine.is_amd && threads > 1 {
        cpu.remove(|element| element.name == "feature" && element.get("name") == Some("topoext"));
        let feature = Element::new("feature")
            .with("policy", "require")
            .with("name", "topoext");
        cpu.children.push(crate::xml::Child::Element(feature));
    }
    cpu.remove(|element| element.name == "numa");
    if machine.has_nodes() {
        let mut numa = Element::new("numa");
        for cell in 0..machine.pinning.nodes.len() {
            numa = numa.child(
                Element::new("cell")
                    .with("id", cell)
                    .with("cpus", written(&machine.vcpus_of_node(cell)))
                    .with("memory", machine.memory_of_node() >> 10)
                    .with("unit", "KiB"),
            );
        }
        cpu.put(numa);
    }
}

/// What older drivers in Windows want: a hypervisor that does not show itself.
fn hide(features: &mut Element) {
    let hyperv = Element::new("hyperv")
        .with("mode", "custom")
        .child(Element::new("relaxed").with("state", "on"))
        .child(Element::new("vapic").with("state", "on"))
        .child(
            Element::new("spinlocks")
                .with("state", "on")
                .with("retries", 8191),
        )
        .child(
            Element::new("vendor_id")
                .with("state", "on")
                .with("value", "divvy"),
        );
    features.put(hyperv);
    features.put(Element::new("kvm").child(Element::new("hidden").with("state", "on")));
}

fn cards(devices: &mut Element, machine: &Machine) {
    let functions: Vec<&Function> = machine.cards.iter().flat_map(|card| &card.functions).collect();
    // The same function twice would not start.
    devices.remove(|element| {
        element.name == "hostdev"
            && element
                .find("source")
                .and_then(|source| source.find("address"))
                .is_some_and(|address| {
                    functions.iter().any(|function| names(address, &function.address))
                        || machine.vgpus.iter().any(|vgpu| match vgpu.way {
                            VgpuWay::Mediated => address.get("uuid") == Some(&vgpu.id),
                            VgpuWay::VendorVfio => names(address, &vgpu.id),
                        })
                })
    });
    let index = |element: &Element| element.get("index").and_then(|index| index.parse::<u32>().ok());
    let used = devices
        .elements()
        .filter(|element| element.name == "controller" && element.get("type") == Some("pci"))
        .filter_map(index)
        // No machine has more: one with another number is refused by libvirt, whatever is added.
        .filter(|index| *index < 1 << 16)
        .max()
        .unwrap_or(0);
    let mut next = used + 1;
    let mut controller = |model: &str| {
        let made = Element::new("controller")
            .with("type", "pci")
            .with("index", next)
            .with("model", model);
        next += 1;
        (made, next - 1)
    };
    let mut added = Vec::new();
    let mut bridges = Vec::new();
    if machine.has_nodes() {
        for cell in 0..machine.pinning.nodes.len() {
            let (bridge, number) = controller("pcie-expander-bus");
            let target = Element::new("target")
                .with("busNr", 64 + 32 * cell)
                .child(Element::new("node").text(cell));
            added.push(bridge.child(target));
            bridges.push(number);
        }
    }
    for card in &machine.cards {
        let (mut port, bus) = controller("pcie-root-port");
        if let Some(bridge) = bridges.get(card.node) {
            port = port.child(place(*bridge, 0));
        }
        added.push(port);
        let several = card.functions.len() > 1;
        for (number, function) in (0..).zip(&card.functions) {
            let mut at = place(bus, number);
            if several && number == 0 {
                at.set("multifunction", "on");
            }
            let mut device = Element::new("hostdev")
                .with("mode", "subsystem")
                .with("type", "pci")
                .with("managed", "no")
                .child(Element::new("driver").with("name", "vfio"))
                .child(Element::new("source").child(source(&function.address)));
            if number == 0 {
                device = device.child(Element::new("rom").with("bar", "off"));
            }
            added.push(device.child(at));
        }
    }
    for vgpu in &machine.vgpus {
        let (mut port, bus) = controller("pcie-root-port");
        if let Some(bridge) = bridges.get(vgpu.node) {
            port = port.child(place(*bridge, 0));
        }
        added.push(port);
        let device = Element::new("hostdev").with("mode", "subsystem");
        let device = match vgpu.way {
            VgpuWay::Mediated => device
                .with("type", "mdev")
                .with("managed", "no")
                .with("model", "vfio-pci")
                .with("display", "off")
                .child(Element::new("source").child(Element::new("address").with("uuid", &vgpu.id))),
            VgpuWay::VendorVfio => device
                .with("type", "pci")
                .with("managed", "no")
                .child(Element::new("driver").with("name", "vfio"))
                .child(Element::new("source").child(source(&vgpu.id))),
        };
        added.push(device.child(place(bus, 0)));
    }
    for element in added {
        devices.children.push(crate::xml::Child::Element(element));
    }
}

/// An address in the machine: slot 0 of a bus.
fn place(bus: u32, function: u32) -> Element {
    Element::new("address")
        .with("type", "pci")
        .with("domain", "0x0000")
        .with("bus", format!("0x{bus:02x}"))
        .with("slot", "0x00")
        .with("function", format!("0x{function:x}"))
}

/// A function's address on the host.
fn source(address: &str) -> Element {
    let [domain, bus, slot, number] = parts(address);
    Element::new("address")
        .with("domain", format!("0x{domain:04x}"))
        .with("bus", format!("0x{bus:02x}"))
        .with("slot", format!("0x{slot:02x}"))
        .with("function", format!("0x{number:x}"))
}

fn parts(address: &str) -> [u32; 4] {
    let mut numbers = address
        .split([':', '.'])
        .map(|part| u32::from_str_radix(part, 16).unwrap_or(0));
    std::array::from_fn(|_| numbers.next().unwrap_or(0))
}

/// Whether an address of a domain is that of a function. Numbers are written in several ways.
fn names(address: &Element, function: &str) -> bool {
    // A mediated device has a UUID, and none of these.
    if address.get("uuid").is_some() {
        return false;
    }
    let number = |name: &str| {
        let text = address.get(name).unwrap_or("0");
        match text.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    };
    let wanted = parts(function).map(Some);
    [
        number("domain"),
        number("bus"),
        number("slot"),
        number("function"),
    ] == wanted
}
