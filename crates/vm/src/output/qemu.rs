//! QEMU's command line.

use divvy_host::vgpu::VgpuWay;

use crate::machine::{Machine, Pages};

/// The words of the command line, the program first.
#[must_use]
pub fn words(machine: &Machine) -> Vec<String> {
    let request = &machine.request;
    let mut words: Vec<String> = Vec::new();
    let mut add = |flag: &str, value: String| words.extend([flag.to_owned(), value]);
    let threads = machine.pinning.threads.max(1);
    let sockets = u32::try_from(machine.pinning.nodes.len()).unwrap_or(1);
    add("-name", format!("{},debug-threads=on", request.name));
    add("-machine", "q35,accel=kvm".to_owned());
    let hidden = match request.windows {
        true => ",kvm=off,hv_relaxed=on,hv_spinlocks=0x1fff,hv_vapic=on,hv_time=on,hv_vendor_id=divvy",
        false => "",
    };
    let topology = match machine.is_amd && threads > 1 {
        true => ",topoext=on",
        false => "",
    };
    add("-cpu", format!("host,host-phys-bits=on{topology}{hidden}"));
    add(
        "-smp",
        format!(
            "{},sockets={sockets},cores={},threads={threads}",
            request.vcpus,
            request.vcpus / sockets / threads
        ),
    );
    add("-m", format!("{}M", request.memory.0 >> 20));
    for (at, node) in machine.pinning.nodes.iter().enumerate() {
        let huge = match request.pages {
            Pages::Ordinary => "",
            Pages::Large => ",hugetlb=on,hugetlbsize=2M",
            Pages::Huge => ",hugetlb=on,hugetlbsize=1G",
        };
        add(
            "-object",
            format!(
                "memory-backend-memfd,id=ram{at},size={}M{huge},share=on,prealloc=on,host-nodes={node},policy=bind",
                machine.memory_of_node() >> 20
            ),
        );
        let cpus: Vec<String> = machine
            .vcpus_of_node(at)
            .chunk_by(|one, next| one + 1 == *next)
            .map(|run| format!(",cpus={}-{}", run[0], run[run.len() - 1]))
            .collect();
        add(
            "-numa",
            format!("node,nodeid={at}{},memdev=ram{at}", cpus.concat()),
        );
    }
    if request.iommufd {
        add("-object", "iommufd,id=iommufd0".to_owned());
    }
    if machine.has_nodes() {
        for at in 0..machine.pinning.nodes.len() {
            add(
                "-device",
                format!(
                    "pxb-pcie,id=pxb{at},bus=pcie.0,bus_nr={},numa_node={at}",
                    64 + 32 * at
                ),
            );
        }
    }
    let iommufd = if request.iommufd { ",iommufd=iommufd0" } else { "" };
    for (at, card) in machine.cards.iter().enumerate() {
        let bus = match machine.has_nodes() {
            true => format!("pxb{}", card.node),
            false => "pcie.0".to_owned(),
        };
        add(
            "-device",
            format!(
                "pcie-root-port,id=gpu{at},bus={bus},chassis={},slot={}",
                at + 1,
                at + 1
            ),
        );
        let several = card.functions.len() > 1;
        for (number, function) in card.functions.iter().enumerate() {
            let multifunction = match several && number == 0 {
                true => ",multifunction=on",
                false => "",
            };
            add(
                "-device",
                format!(
                    "vfio-pci,host={},bus=gpu{at},addr=0.{number}{multifunction}{iommufd}",
                    function.address
                ),
            );
        }
    }
    for (at, vgpu) in (machine.cards.len()..).zip(&machine.vgpus) {
        let bus = match machine.has_nodes() {
            true => format!("pxb{}", vgpu.node),
            false => "pcie.0".to_owned(),
        };
        let port = at + 1;
        add(
            "-device",
            format!("pcie-root-port,id=gpu{at},bus={bus},chassis={port},slot={port}"),
        );
        add(
            "-device",
            format!(
                "vfio-pci,sysfsdev={},bus=gpu{at},addr=0.0{iommufd}",
                vgpu.folder()
            ),
        );
    }
    if let Some(first) = machine.vgpus.iter().find(|vgpu| vgpu.way == VgpuWay::Mediated) {
        // NVIDIA's manager of virtual GPUs wants each machine to have a UUID.
        add("-uuid", first.id.clone());
    }
    if machine.has_uefi() {
        add(
            "-drive",
            format!(
                "if=pflash,format=raw,unit=0,readonly=on,file={}",
                machine.firmware.code
            ),
        );
        add(
            "-drive",
            format!("if=pflash,format=raw,unit=1,file={}", settings(machine)),
        );
    }
    if machine.needs_window() {
        add(
            "-fw_cfg",
            format!("name=opt/ovmf/X-PciMmio64Mb,string={}", window(machine)),
        );
    }
    if let Some(disk) = &request.disk {
        add("-drive", format!("{},discard=unmap", self::disk(disk)));
    }
    let mut all = vec!["qemu-system-x86_64".to_owned()];
    all.append(&mut words);
    all
}

/// The file of the machine's own settings of UEFI, a copy of the host's empty ones.
#[must_use]
pub fn settings(machine: &Machine) -> String {
    format!("{}_VARS.fd", machine.request.name)
}

/// A disk. Its format is said: QEMU would look for it in the first bytes, which are the guest's, and may name a file of the
/// host there.
pub(crate) fn disk(file: &str) -> String {
    let format = super::disk_format(file);
    // QEMU takes `fat:` and the like at the beginning for a protocol.
    let file = match file.split('/').next().is_some_and(|first| first.contains(':')) {
        true => &format!("./{file}"),
        false => file,
    };
    // A comma in a value is written twice.
    format!("file={},format={format},if=virtio", file.replace(',', ",,"))
}

/// The window for BARs in MiB: a power of two that has room for all of them, each at a multiple of its size.
#[must_use]
pub fn window(machine: &Machine) -> u64 {
    let bytes = machine.bars.saturating_mul(2).max(64 << 30);
    bytes.checked_next_power_of_two().unwrap_or(1 << 62) >> 20
}

/// A line for a shell, in short lines.
#[must_use]
pub fn line(words: &[String]) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,+@%".contains(letter);
    let quoted = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    let mut text = String::new();
    for word in words {
        match (text.is_empty(), word.starts_with('-')) {
            (true, _) => {}
            (false, true) => text.push_str(" \\\n  "),
            (false, false) => text.push(' '),
        }
        text.push_str(&quoted(word));
    }
    text + "\n"
}
