//! A virtual machine with an IOMMU and a stand-in for a GPU, in which devices are handed over as on a real host.
//!
//! The GPU is a card of two functions: QEMU's plain display, and an Intel HDA controller, which reaches memory by itself. A
//! second card has a network function in its group. The kernel is Debian's for virtual machines, which has no drivers for
//! those displays: `uio_pci_generic` stands in for the vendor's.
//!
//! A line `unplug ID` that a story prints takes the device of this id out of the machine.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::build::binaries;
use crate::clients::strace;
use crate::machine::{Archive, Machines, needed};

/// The modules, with those that each needs.
const MODULES: [(&str, &[&str]); 13] = [
    ("virt/lib/irqbypass", &[]),
    ("drivers/vfio/vfio_virqfd", &[]),
    ("drivers/vfio/vfio", &[]),
    ("drivers/vfio/vfio_iommu_type1", &["drivers/vfio/vfio"]),
    (
        "drivers/vfio/pci/vfio-pci-core",
        &[
            "drivers/vfio/vfio",
            "drivers/vfio/vfio_virqfd",
            "virt/lib/irqbypass",
        ],
    ),
    (
        "drivers/vfio/pci/vfio-pci",
        &[
            "drivers/vfio/pci/vfio-pci-core",
            "drivers/vfio/vfio",
            "drivers/vfio/vfio_virqfd",
            "virt/lib/irqbypass",
        ],
    ),
    ("drivers/uio/uio", &[]),
    ("drivers/uio/uio_pci_generic", &["drivers/uio/uio"]),
    ("drivers/virtio/virtio_ring", &[]),
    ("drivers/virtio/virtio", &["drivers/virtio/virtio_ring"]),
    ("drivers/virtio/virtio_pci_legacy_dev", &[]),
    ("drivers/virtio/virtio_pci_modern_dev", &[]),
    (
        "drivers/virtio/virtio_pci",
        &[
            "drivers/virtio/virtio",
            "drivers/virtio/virtio_ring",
            "drivers/virtio/virtio_pci_legacy_dev",
            "drivers/virtio/virtio_pci_modern_dev",
        ],
    ),
];

const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin NO_COLOR=1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
exec </dev/ttyS0 >/dev/ttyS0 2>&1
stty raw -echo
echo /bin/modprobe >/proc/sys/kernel/modprobe
modprobe uio_pci_generic
modprobe virtio_pci
for id in "1234 1111" "8086 2668"; do echo $id >/sys/bus/pci/drivers/uio_pci_generic/new_id; done
cd /
. /story
poweroff -f
"#;

/// The machine's devices.
const DEVICES: &[&str] = &[
    "-device",
    "intel-iommu,intremap=on",
    "-audiodev",
    "none,id=none",
    "-device",
    "pcie-root-port,id=rp1,chassis=1,addr=0x3",
    "-device",
    "secondary-vga,id=gpu,bus=rp1,addr=0.0,multifunction=on",
    "-device",
    "intel-hda,id=hda,bus=rp1,addr=0.1",
    "-device",
    "hda-micro,audiodev=none,bus=hda.0",
    "-device",
    "pcie-root-port,id=rp2,chassis=2,addr=0x4",
    "-device",
    "secondary-vga,id=gpu2,bus=rp2,addr=0.0,multifunction=on",
    "-device",
    "virtio-net-pci,bus=rp2,addr=0.1,disable-legacy=on",
];

/// What a machine has besides what every one has.
#[derive(Default)]
pub struct More {
    /// Files, by their path there.
    pub files: Vec<(String, Vec<u8>)>,
    /// Programs of `/bin`, with the libraries that they need.
    pub programs: Vec<PathBuf>,
    /// Its memory in MiB, where it needs more.
    pub memory: Option<u32>,
}

/// Runs a story, a script of root's there, with `divvy`, `vfio-probe`, `strace` and QEMU; what it printed.
///
/// None where something is missing and need not be there.
pub fn run(machines: &Machines, folder: &Path, story: &str, more: &More) -> Option<String> {
    let strace = strace()?;
    let root = folder.join("root");
    fs::write(&root, archive(machines, &strace, folder, story, more)).expect("written");
    let control = folder.join("control");
    let mut machine = Command::new("timeout")
        .arg(if more.memory.is_some() { "900" } else { "300" })
        .arg(&machines.qemu)
        .args(["-accel", "tcg,thread=multi"])
        .args(["-machine", "q35,kernel-irqchip=split"])
        .args(["-cpu", "qemu64,+svm", "-smp", "2"])
        .args(["-m", &more.memory.unwrap_or(1280).to_string()])
        .args([
            "-nodefaults",
            "-no-reboot",
            "-display",
            "none",
            "-serial",
            "stdio",
        ])
        .args(["-qmp", &format!("unix:{},server=on,wait=off", control.display())])
        .arg("-kernel")
        .arg(&machines.kernel)
        .arg("-initrd")
        .arg(&root)
        .args([
            "-append",
            "quiet loglevel=0 panic=-1 tsc=reliable no_timer_check intel_iommu=on",
        ])
        .args(DEVICES)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("QEMU starts");
    let mut lines = BufReader::new(machine.stdout.take().expect("it is piped"));
    let mut said = String::new();
    loop {
        let mut line = Vec::new();
        if lines.read_until(b'\n', &mut line).expect("its output") == 0 {
            break;
        }
        let line = String::from_utf8_lossy(&line).into_owned();
        if let Some(id) = line.trim().strip_prefix("unplug ") {
            unplug(&control, id);
        }
        said.push_str(&line);
    }
    let mut trouble = String::new();
    let mut errors = machine.stderr.take().expect("it is piped");
    errors.read_to_string(&mut trouble).expect("its messages");
    let status = machine.wait().expect("it ends");
    assert!(status.success(), "{status}: {said}: {trouble}");
    Some(said)
}

/// Takes a device out, as QEMU's monitor does.
fn unplug(control: &Path, id: &str) {
    let mut stream = UnixStream::connect(control).expect("QEMU listens");
    let mut answers = BufReader::new(stream.try_clone().expect("a second descriptor"));
    let mut ask = |line: String| {
        let mut answer = String::new();
        answers.read_line(&mut answer).expect("an answer");
        stream.write_all(line.as_bytes()).expect("sent");
        answer
    };
    // The greeting, the answer to the first command, and that to the second.
    ask("{\"execute\": \"qmp_capabilities\"}\n".to_owned());
    ask(format!(
        "{{\"execute\": \"device_del\", \"arguments\": {{\"id\": \"{id}\"}}}}\n"
    ));
    let answer = ask(String::new());
    assert!(answer.contains("return"), "{answer}");
}

fn archive(machines: &Machines, strace: &Path, folder: &Path, story: &str, more: &More) -> Vec<u8> {
    let mut root = Archive::default();
    for name in ["bin", "dev", "etc", "proc", "run", "sys", "tmp", "var/lib"] {
        root.folder(name);
    }
    let read = |path: &Path| fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    root.file("init", INIT.as_bytes(), 0o755);
    root.file("story", story.as_bytes(), 0o644);
    root.file("etc/passwd", b"root:x:0:0:root:/:/bin/sh\n", 0o644);
    root.file("bin/busybox", &read(&machines.busybox), 0o755);
    let release = machines
        .modules
        .file_name()
        .expect("a release")
        .to_string_lossy()
        .into_owned();
    let mut list = String::new();
    for (module, needs) in MODULES {
        let file = format!("kernel/{module}.ko");
        root.file(
            &format!("lib/modules/{release}/{file}"),
            &read(&machines.modules.join(&file)),
            0o644,
        );
        let needs: Vec<String> = needs.iter().map(|need| format!(" kernel/{need}.ko")).collect();
        list.push_str(&format!("{file}:{}\n", needs.concat()));
    }
    root.file(
        &format!("lib/modules/{release}/modules.dep"),
        list.as_bytes(),
        0o644,
    );
    let nested = [
        Path::new("/usr/share/seabios/bios-256k.bin"),
        // Debian's QEMU has its processor in a module.
        Path::new("/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so"),
    ];
    for file in nested.into_iter().filter(|file| file.exists()) {
        let path = file.strip_prefix("/").expect("from the root");
        root.file(path.to_str().expect("a path of text"), &read(file), 0o644);
    }
    for (path, bytes) in &more.files {
        root.file(path, bytes, 0o755);
    }
    let mut programs = vec![
        binaries().join("divvy"),
        binaries().join("vfio-probe"),
        strace.to_owned(),
        machines.qemu.clone(),
    ];
    programs.extend(more.programs.iter().cloned());
    for program in &programs {
        let name = program
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        // QEMU looks for its modules beside the folder of programs.
        let place = match *program == machines.qemu {
            true => "usr/bin",
            false => "bin",
        };
        // Without what debuggers need, which is most of it.
        let small = folder.join(&name);
        let stripped = Command::new("strip").arg("-o").arg(&small).arg(program).status();
        let file = match stripped.is_ok_and(|status| status.success()) {
            true => &small,
            false => program,
        };
        root.file(&format!("{place}/{name}"), &read(file), 0o755);
        for library in needed(program) {
            let path = library.strip_prefix("/").unwrap_or(&library);
            root.file(path.to_str().expect("a path of text"), &read(&library), 0o755);
        }
    }
    root.end()
}
