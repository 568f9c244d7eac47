//! QEMU's command line for a machine that is started here.

use std::os::fd::RawFd;

use crate::machine::Machine;
use crate::output::qemu;

/// What runs the machine's processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processor {
    /// The host's own, by KVM.
    Kvm,
    /// QEMU's emulation: slow, and it needs nothing of the host.
    Emulated,
}

/// What a machine starts from besides its disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The kernel's file.
    pub kernel: String,
    /// The first file system.
    pub initrd: String,
    /// The file that the second serial port writes.
    pub status: String,
    /// The image of a disk with the program's files. It is not written: what the machine changes is gone with it.
    pub disk: Option<String>,
}

/// The words, the program first: the serial console is QEMU's standard input and output.
#[must_use]
pub fn words(machine: &Machine, processor: Processor, kernel: Option<&Kernel>) -> Vec<String> {
    let mut words = qemu::words(machine);
    if processor == Processor::Emulated {
        for word in &mut words {
            if let Some(rest) = word.strip_prefix("host,host-phys-bits=on") {
                // Threads of a core are told of by AMD's model only.
                let rest = rest.replace(",topoext=on", "").replace(",kvm=off", "");
                *word = format!("max{rest}");
            } else if word == "q35,accel=kvm" {
                *word = "q35,accel=tcg".to_owned();
            }
        }
    }
    // It lives as long as this process: its settings of UEFI need no file of its own.
    let own = format!("unit=1,file={}", qemu::settings(machine));
    for word in &mut words {
        if let Some(rest) = word.strip_suffix(&own) {
            *word = format!("{rest}unit=1,snapshot=on,file={}", machine.firmware.settings);
        }
    }
    let console = [
        "-nodefaults",
        "-no-reboot",
        "-display",
        "none",
        "-serial",
        "stdio",
        // It needs no other program and no other user's rights.
        "-sandbox",
        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
    ];
    words.extend(console.map(str::to_owned));
    if let Some(kernel) = kernel {
        // A comma in a value is written twice.
        let status = kernel.status.replace(',', ",,");
        let more = [
            "-serial",
            &format!("file:{status}"),
            "-kernel",
            &kernel.kernel,
            "-initrd",
            &kernel.initrd,
            "-append",
            "console=ttyS0 quiet loglevel=0 panic=-1 rdinit=/init",
        ];
        words.extend(more.map(str::to_owned));
        if let Some(disk) = &kernel.disk {
            words.extend(["-drive".to_owned(), format!("{},snapshot=on", qemu::disk(disk))]);
        }
    }
    words
}

/// A disk's file that QEMU gets open. As a user of its own it could not open it, and another file may have the name by then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its name, as it stands in the words.
    pub name: String,
    /// Its descriptors in QEMU: for reading, and one for writing where it is written.
    pub descriptors: Vec<RawFd>,
    /// Whether it is a block device.
    pub is_block: bool,
}

impl Opened {
    /// Puts the descriptors in the place of the name.
    pub fn put(&self, words: &mut Vec<String>) {
        // The numbers of QEMU's sets of descriptors are free.
        const SET: u32 = 1;
        let by_name = qemu::disk(&self.name);
        let driver = if self.is_block { "host_device" } else { "file" };
        let format = crate::output::disk_format(&self.name);
        for word in words.iter_mut() {
            if let Some(rest) = word.strip_prefix(&by_name) {
                *word = format!(
                    "file.driver={driver},file.filename=/dev/fdset/{SET},format={format},if=virtio{rest}"
                );
            }
        }
        for descriptor in &self.descriptors {
            words.extend(["-add-fd".to_owned(), format!("fd={descriptor},set={SET}")]);
        }
    }
}

/// Has QEMU use this descriptor of `/dev/iommu`, which it could not open as a user of its own.
pub fn with_iommu(words: &mut [String], descriptor: RawFd) {
    for word in words {
        if word == "iommufd,id=iommufd0" {
            *word = format!("{word},fd={descriptor}");
        }
    }
}
