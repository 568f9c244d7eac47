//! Lines of a VMware `.vmx` file, for a host on which ESXi gave the device to passthrough.

use std::fmt::Write;

use crate::machine::Machine;

/// The lines. ESXi numbers its devices in decimal: `00000:101:00.0` is bus 0x65.
#[must_use]
pub fn lines(machine: &Machine) -> String {
    let mut text = String::new();
    let request = &machine.request;
    let _ = writeln!(text, "displayName = \"{}\"", request.name);
    let _ = writeln!(text, "numvcpus = \"{}\"", request.vcpus);
    let _ = writeln!(text, "memSize = \"{}\"", request.memory.0 >> 20);
    let _ = writeln!(text, "sched.mem.min = \"{}\"", request.memory.0 >> 20);
    let _ = writeln!(text, "sched.mem.pin = \"TRUE\"");
    let _ = writeln!(text, "firmware = \"efi\"");
    if machine.needs_window() {
        let gib = super::qemu::window(machine) >> 10;
        let _ = writeln!(text, "pciPassthru.use64bitMMIO = \"TRUE\"");
        let _ = writeln!(text, "pciPassthru.64bitMMIOSizeGB = \"{gib}\"");
    }
    for (at, function) in machine.cards.iter().flat_map(|card| &card.functions).enumerate() {
        let _ = writeln!(text, "pciPassthru{at}.present = \"TRUE\"");
        let _ = writeln!(text, "pciPassthru{at}.id = \"{}\"", decimal(&function.address));
        let _ = writeln!(text, "pciPassthru{at}.vendorId = \"0x{:04x}\"", function.vendor);
        let _ = writeln!(text, "pciPassthru{at}.deviceId = \"0x{:04x}\"", function.device);
    }
    // A machine names the type there, and ESXi chooses the GPU.
    let first = machine
        .cards
        .iter()
        .map(|card| card.functions.len())
        .sum::<usize>();
    for (at, vgpu) in (first..).zip(&machine.vgpus) {
        let profile = vgpu.profile().to_lowercase();
        let _ = writeln!(text, "pciPassthru{at}.present = \"TRUE\"");
        let _ = writeln!(text, "# NVIDIA's older managers call it grid_{profile}.");
        let _ = writeln!(text, "pciPassthru{at}.vgpu = \"nvidia_{profile}\"");
    }
    text
}

fn decimal(address: &str) -> String {
    let (place, function) = address.rsplit_once('.').unwrap_or((address, "0"));
    let numbers = place
        .split(':')
        .map(|part| u32::from_str_radix(part, 16).unwrap_or(0));
    match numbers.collect::<Vec<_>>()[..] {
        [domain, bus, slot] => format!("{domain:05}:{bus:03}:{slot:02}.{function}"),
        _ => address.to_owned(),
    }
}
