//! `divvy vm run`: a program in a small machine, which QEMU's own processor runs.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use divvy_tests::build::binaries;
use divvy_tests::clients::required_file;
use divvy_tests::machine::Machines;
use divvy_tests::processes;
use rustix::process::{Pid, Signal, kill_process};

/// A folder with a system of one program, and one with the kernel's modules, of which the package has no list.
fn system(machines: &Machines) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("bin")).expect("a folder");
    std::fs::copy(&machines.busybox, folder.path().join("bin/busybox")).expect("copied");
    std::os::unix::fs::symlink("busybox", folder.path().join("bin/sh")).expect("a link");
    folder
}

/// The folder of the kernel's modules with a list, which the package does not have.
fn modules(machines: &Machines) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink(machines.modules.join("kernel"), folder.path().join("kernel"))
        .expect("a link");
    let list = "kernel/drivers/char/virtio_console.ko: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko\n\
                kernel/drivers/virtio/virtio.ko:\nkernel/drivers/virtio/virtio_ring.ko: kernel/drivers/virtio/virtio.ko\n\
                kernel/drivers/block/virtio_blk.ko: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko\n\
                kernel/drivers/virtio/virtio_pci_modern_dev.ko:\nkernel/drivers/virtio/virtio_pci_legacy_dev.ko:\n\
                kernel/drivers/virtio/virtio_pci.ko: kernel/drivers/virtio/virtio_pci_legacy_dev.ko \
                kernel/drivers/virtio/virtio_pci_modern_dev.ko kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko\n";
    std::fs::write(folder.path().join("modules.dep"), list).expect("written");
    folder
}

fn start(machines: &Machines, modules: &Path, root: &Path, command: &[&str]) -> Child {
    Command::new(binaries().join("divvy"))
        .args(["vm", "run", "--no-kvm", "--memory", "512MiB", "--root"])
        .arg(root)
        .arg("--kernel")
        .arg(&machines.kernel)
        .arg("--modules")
        .arg(modules)
        .args(["--module", "virtio_console", "--"])
        .args(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts")
}

/// The machine that a process started.
fn qemu(of: u32) -> Option<u32> {
    let is_qemu = |pid: &u32| {
        let words = processes::arguments(*pid);
        words.first().is_some_and(|word| word.contains("qemu-system"))
    };
    processes::tree(of).into_iter().find(is_qemu)
}

fn said(child: Child) -> (Option<i32>, String, String) {
    let output = child.wait_with_output().expect("it ends");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).replace('\r', ""),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// The program's output and exit status come back, and Ctrl-C ends the machine with nothing left.
#[test]
fn a_program_runs_in_a_machine_and_ends_with_it() {
    let Some(machines) = Machines::new() else { return };
    let (root, modules) = (system(&machines), modules(&machines));
    let script = "echo hello; busybox grep -c ^virtio_console /proc/modules; busybox cat; exit 7";
    let first = start(&machines, modules.path(), root.path(), &["/bin/sh", "-c", script]);
    // Beside it, one that does not end by itself.
    let mut second = start(
        &machines,
        modules.path(),
        root.path(),
        &["/bin/sh", "-c", "echo here; busybox sleep 1000"],
    );
    let mut lines = BufReader::new(second.stdout.take().expect("it is piped"));
    let mut line = String::new();
    while !line.contains("here") {
        line.clear();
        let read = lines.read_line(&mut line).expect("a line");
        if read == 0 {
            panic!("it ended: {:?}", said(second));
        }
    }
    let machine = qemu(second.id()).expect("QEMU runs");
    let pid = Pid::from_raw(i32::try_from(second.id()).expect("a number")).expect("a number");
    kill_process(pid, Signal::INT).expect("sent");
    let (status, _, error) = said(second);
    assert_eq!(status, Some(130), "{error}");
    assert!(!processes::is_alive(machine), "QEMU has ended too");
    lines.read_to_string(&mut line).expect("its end");

    let (status, output, error) = said(first);
    assert_eq!(status, Some(7), "{output}: {error}");
    assert!(output.contains("hello\n1\n"), "{output}: {error}");
}

/// A disk with one part, which has the system of a folder.
fn image(folder: &Path, system: &Path) -> Option<PathBuf> {
    const PART: usize = 1 << 20;
    let mkfs = required_file("/usr/sbin/mkfs.ext4", "mkfs.ext4 (e2fsprogs)")?;
    let part = folder.join("part");
    let made = Command::new(mkfs)
        .args(["-q", "-d"])
        .arg(system)
        .arg(&part)
        .arg("16M")
        .output()
        .expect("mkfs starts");
    assert!(made.status.success(), "{made:?}");
    let bytes = std::fs::read(&part).expect("an image");
    let mut disk = vec![0; PART];
    // A table of parts: Linux, from sector 2048 on.
    let sectors = u32::try_from(bytes.len() / 512).expect("a small one");
    disk[446 + 4] = 0x83;
    disk[446 + 8..446 + 12].copy_from_slice(&2048_u32.to_le_bytes());
    disk[446 + 12..446 + 16].copy_from_slice(&sectors.to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk.extend(bytes);
    let whole = folder.join("disk.img");
    std::fs::write(&whole, disk).expect("written");
    Some(whole)
}

/// The system on a disk's image runs a program, and what that writes is gone with the machine.
#[test]
fn a_program_runs_in_the_system_of_an_image() {
    let Some(machines) = Machines::new() else { return };
    let (root, modules) = (system(&machines), modules(&machines));
    let folder = tempfile::tempdir().expect("a folder");
    let Some(image) = image(folder.path(), root.path()) else {
        return;
    };
    let before = std::fs::read(&image).expect("an image");
    let script = "echo new >/file; busybox cat /file; exit 5";
    let machine = start(&machines, modules.path(), &image, &["/bin/sh", "-c", script]);
    let (status, output, error) = said(machine);
    assert_eq!(status, Some(5), "{output}: {error}");
    assert!(output.contains("new\n"), "{output}: {error}");
    assert!(
        before == std::fs::read(&image).expect("an image"),
        "the image is as it was"
    );
    // What fills the port of the answer would fill this host's memory.
    let fills = start(
        &machines,
        modules.path(),
        &image,
        &["/bin/sh", "-c", "busybox yes >/dev/ttyS1"],
    );
    let (status, output, error) = said(fills);
    assert!(
        error.contains("filled its second serial port"),
        "{status:?} {output}: {error}"
    );
    // One without a system.
    let empty = folder.path().join("empty.img");
    std::fs::write(&empty, vec![0; 1 << 20]).expect("written");
    let (status, output, error) = said(start(&machines, modules.path(), &empty, &["/bin/sh"]));
    assert!(
        error.contains("use the disk: none of vda has a system"),
        "{status:?} {output}: {error}"
    );
}

/// What cannot be run is said before a machine starts, or by the machine.
#[test]
fn what_cannot_be_run_is_said() {
    let Some(machines) = Machines::new() else { return };
    let (root, modules) = (system(&machines), modules(&machines));
    let refused = |more: &[&str], wanted: &str| {
        let kernel: PathBuf = machines.kernel.clone();
        let mut command = Command::new(binaries().join("divvy"));
        command
            .args(["vm", "run", "--no-kvm", "--kernel"])
            .arg(kernel)
            .arg("--modules");
        command.arg(modules.path()).args(more).stdin(Stdio::null());
        let output = command.output().expect("it starts");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{more:?}");
        assert!(error.contains(wanted), "{more:?}: {error}");
    };
    let folder = root.path().to_str().expect("a path of text");
    refused(&["--root", "/nowhere"], "cannot read `/nowhere`");
    refused(&["--root", "/dev/null"], "it is neither a folder nor an image");
    // A name that QEMU would take for a protocol.
    let output = Command::new(binaries().join("divvy"))
        .args(["vm", "run", "--no-kvm", "--disk", "fat:rw:/etc"])
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("cannot use the disk `fat:rw:/etc`"), "{error}");
    // What was typed comes before what this host lacks.
    let output = Command::new(binaries().join("divvy"))
        .args([
            "vm",
            "run",
            "--root",
            "/nowhere",
            "--kernel",
            "/no-kernel",
            "--modules",
            "/none",
        ])
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("cannot read `/nowhere`"), "{error}");
    refused(
        &["--root", folder, "--memory", "1MiB"],
        "more than the 512 KiB that the machine has for files",
    );
    refused(&["--root", folder, "--module", "no-such"], "no module `no_such`");
    refused(&["--root", folder, "--disk", "x"], "cannot be used with");
    refused(&["0000:ff:1f.7", "--root", folder], "0000:ff:1f.7 is not there");
    refused(&[], "--root <DIR|IMAGE>");
}
