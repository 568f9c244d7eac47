//! QEMU's command line for a machine that is started here.

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
