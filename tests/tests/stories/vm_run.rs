//! `divvy vm run`: a program in a small machine, which QEMU's own processor runs.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use divvy_tests::build::binaries;
use divvy_tests::clients::required_file;
use divvy_tests::machine::Machines;
use divvy_tests::processes;
use divvy_tests::system::System;
use divvy_tests::users::User;
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
    if rustix::process::geteuid().is_root() {
        // QEMU is no root, and has no way back to it.
        let status = std::fs::read_to_string(format!("/proc/{machine}/status")).expect("it runs");
        let of = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap_or_default()
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let uids = of("Uid:");
        assert!(
            uids.len() == 4 && uids.iter().all(|uid| uid.len() == 5 && uid.starts_with('8')),
            "{status}"
        );
        assert!(!of("Gid:").contains(&"0".to_owned()), "{status}");
        assert_eq!(
            (of("Groups:"), of("CapPrm:")),
            (Vec::new(), vec!["0".repeat(16)]),
            "{status}"
        );
        // It is behind a filter of system calls.
        assert_eq!(of("Seccomp:"), ["2"], "{status}");
    }
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

/// Whether QEMU runs on this host's own processors, by this file of the kernel's.
fn has_kvm(machines: &Machines, kvm: &Path) -> bool {
    use std::io::Write;
    if std::fs::File::options().read(true).write(true).open(kvm).is_err() {
        return false;
    }
    let words = [
        "-accel",
        "kvm",
        "-cpu",
        "host",
        "-nodefaults",
        "-display",
        "none",
        "-S",
        "-monitor",
        "stdio",
    ];
    let qemu = Command::new(&machines.qemu)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut qemu = qemu.expect("QEMU starts");
    let mut monitor = qemu.stdin.take().expect("it is piped");
    // Where it has ended already nothing reads this.
    let _told = monitor.write_all(b"quit\n");
    drop(monitor);
    qemu.wait().expect("it ends").success()
}

/// QEMU's user has the host's processors where their file is of a group.
#[test]
fn a_program_runs_on_the_hosts_processors() {
    let Some(machines) = Machines::new() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let kvm = folder.path().join("kvm");
    let (kind, mode) = (
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::from_raw_mode(0o660),
    );
    let made = rustix::fs::mknodat(rustix::fs::CWD, &kvm, kind, mode, rustix::fs::makedev(10, 232));
    if made.is_err() || !Path::new("/dev/kvm").exists() || !has_kvm(&machines, &kvm) {
        return;
    }
    // On many hosts the file is of a group; here it is, in the command's own view.
    std::os::unix::fs::chown(&kvm, Some(0), Some(64_032)).expect("root may");
    std::fs::set_permissions(&kvm, std::fs::Permissions::from_mode(0o660)).expect("a mode");
    let (root, modules) = (system(&machines), modules(&machines));
    let script = "busybox grep -m1 'model name' /proc/cpuinfo; exit 3";
    let child = Command::new("unshare")
        .args([
            "--mount",
            "sh",
            "-c",
            "mount --bind \"$0\" /dev/kvm && exec \"$@\"",
        ])
        .arg(&kvm)
        .arg(binaries().join("divvy"))
        .args(["vm", "run", "--memory", "512MiB", "--root"])
        .arg(root.path())
        .arg("--kernel")
        .arg(&machines.kernel)
        .arg("--modules")
        .arg(modules.path())
        .args(["--", "/bin/sh", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let (status, output, error) = said(child);
    assert_eq!(status, Some(3), "{output}: {error}");
    assert!(
        output.contains("model name") && !output.contains("TCG"),
        "{output}"
    );
    assert!(!error.contains("there is no KVM"), "{error}");
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

/// The same content as qcow2: clusters of 64 KiB, each of which is there.
fn qcow2(content: &[u8]) -> Vec<u8> {
    const CLUSTER: usize = 1 << 16;
    // Such a cluster has one user.
    const ALONE: u64 = 1 << 63;
    let clusters = content.len().div_ceil(CLUSTER);
    let at = |cluster: usize| (cluster * CLUSTER) as u64;
    let mut disk = vec![0; (5 + clusters) * CLUSTER];
    let mut put = |offset: usize, bytes: &[u8]| disk[offset..offset + bytes.len()].copy_from_slice(bytes);
    put(0, b"QFI\xfb");
    for (offset, word) in [(4, 3_u32), (20, 16), (36, 1), (56, 1), (96, 4), (100, 104)] {
        put(offset, &word.to_be_bytes());
    }
    // Its size, the first table, and the table of counts: of one block, which is in the next cluster.
    for (offset, word) in [
        (24, content.len() as u64),
        (40, at(3)),
        (48, at(1)),
        (CLUSTER, at(2)),
    ] {
        put(offset, &word.to_be_bytes());
    }
    for used in 0..5 + clusters {
        put(2 * CLUSTER + used * 2, &1_u16.to_be_bytes());
    }
    put(3 * CLUSTER, &(at(4) | ALONE).to_be_bytes());
    for number in 0..clusters {
        put(4 * CLUSTER + number * 8, &(at(5 + number) | ALONE).to_be_bytes());
    }
    put(5 * CLUSTER, content);
    disk
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
    // So does a qcow2, which its owner alone reads.
    let packed = folder.path().join("disk.qcow2");
    let before = qcow2(&before);
    std::fs::write(&packed, &before).expect("written");
    std::fs::set_permissions(&packed, std::fs::Permissions::from_mode(0o600)).expect("a mode");
    let machine = start(&machines, modules.path(), &packed, &["/bin/sh", "-c", script]);
    let (status, output, error) = said(machine);
    assert_eq!(status, Some(5), "{output}: {error}");
    assert!(output.contains("new\n"), "{output}: {error}");
    assert!(
        before == std::fs::read(&packed).expect("an image"),
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

/// A machine starts from a disk and writes to it, though QEMU's user could open neither the disk nor its folder.
#[test]
fn a_machine_starts_from_a_disk() {
    let Some(machines) = Machines::new() else { return };
    // As the firmware starts it: a letter to the serial port, itself to the next sector, and the end.
    let code = [
        0x31, 0xc0, 0x8e, 0xc0, 0xba, 0xf8, 0x03, 0xb0, b'K', 0xee, 0xb8, 0x01, 0x03, 0xbb, 0x00, 0x7c, 0xb9,
        0x02, 0x00, 0xba, 0x80, 0x00, 0xcd, 0x13, 0xb0, 0xfe, 0xe6, 0x64, 0xf4, 0xeb, 0xfd,
    ];
    let mut content = vec![0_u8; 1 << 20];
    content[..code.len()].copy_from_slice(&code);
    content[510..512].copy_from_slice(&[0x55, 0xaa]);
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes, at) in [
        ("raw.img", content.clone(), 0),
        ("packed.qcow2", qcow2(&content), 5 << 16),
    ] {
        let disk = folder.path().join(name);
        std::fs::write(&disk, bytes).expect("written");
        std::fs::set_permissions(&disk, std::fs::Permissions::from_mode(0o600)).expect("a mode");
        let machine = Command::new(binaries().join("divvy"))
            .env("PATH", machines.qemu.parent().expect("a folder"))
            .args(["vm", "run", "--no-kvm", "--memory", "64MiB", "--disk"])
            .arg(&disk)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let (status, output, error) = said(machine);
        assert_eq!(status, Some(0), "{name}: {output}: {error}");
        assert!(output.contains('K'), "{name}: {output}: {error}");
        let written = std::fs::read(&disk).expect("a disk");
        assert!(
            written[at + 512..at + 1024] == content[..512],
            "{name} was written"
        );
    }
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
    // A link of another user's leads root nowhere.
    if rustix::process::geteuid().is_root() {
        let theirs = tempfile::tempdir().expect("a folder");
        std::fs::set_permissions(theirs.path(), std::fs::Permissions::from_mode(0o755)).expect("a mode");
        let own = tempfile::tempdir().expect("a folder");
        std::fs::write(own.path().join("disk"), [0; 1024]).expect("written");
        for (target, name) in [("disk", "disk"), (".", "folder")] {
            let link = theirs.path().join(name);
            std::os::unix::fs::symlink(own.path().join(target), &link).expect("a link");
            std::os::unix::fs::lchown(&link, Some(64_031), Some(64_031)).expect("given away");
        }
        std::os::unix::fs::chown(theirs.path(), Some(64_031), Some(64_031)).expect("given away");
        for (flag, name) in [("--disk", "disk"), ("--root", "disk"), ("--root", "folder")] {
            let output = Command::new(binaries().join("divvy"))
                .args(["vm", "run", "--no-kvm", "--dry-run", flag])
                .arg(theirs.path().join(name))
                .stdin(Stdio::null())
                .output()
                .expect("it starts");
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            for wanted in ["is a link of user 64031: root is not led by it", "readlink -f"] {
                assert!(error.contains(wanted), "{flag} {name}: {error}");
            }
        }
    }
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

/// A guest that broke out of QEMU has no part of the host's devices: the agent knows that its user is no person.
#[test]
fn the_user_of_a_machine_gets_no_slice() {
    let Some(system) = System::new() else { return };
    let words = ["run", "--memory", "1GiB", "--", "true"];
    let alice = &system.users.alice;
    let output = system.divvy_as(alice, words).output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    let machine = User {
        uid: 80_001,
        gid: 80_001,
        ..alice.clone()
    };
    let output = system.divvy_as(&machine, words).output().expect("it starts");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && error.contains("makes slices for user"),
        "{error}"
    );
}
