//! Cloud Hypervisor's command line.

use crate::machine::{Machine, Pages};

/// The words of the command line, the program first.
#[must_use]
pub fn words(machine: &Machine) -> Vec<String> {
    let request = &machine.request;
    let pages = match request.pages {
        Pages::Ordinary => String::new(),
        pages => format!(",hugepages=on,hugepage_size={}M", pages.bytes() >> 20),
    };
    let affinity: Vec<String> = (0..)
        .zip(&machine.pinning.vcpus)
        .map(|(vcpu, (cpu, _))| format!("{vcpu}@[{cpu}]"))
        .collect();
    let mut words = vec![
        "cloud-hypervisor".to_owned(),
        "--cpus".to_owned(),
        format!("boot={},affinity=[{}]", request.vcpus, affinity.join(",")),
        "--memory".to_owned(),
        format!("size={}M,shared=on{pages}", request.memory.0 >> 20),
        "--device".to_owned(),
    ];
    for function in machine.cards.iter().flat_map(|card| &card.functions) {
        words.push(format!("path=/sys/bus/pci/devices/{}/", function.address));
    }
    for vgpu in &machine.vgpus {
        words.push(format!("path={}/", vgpu.folder()));
    }
    if let Some(disk) = &request.disk {
        words.extend(["--disk".to_owned(), format!("path={disk}")]);
    }
    words
}
