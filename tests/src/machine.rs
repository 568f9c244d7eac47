//! Virtual machines for the scenarios: Debian's kernel under QEMU's own processor (TCG), with a root file system in memory
//! that has the kit for machines and programs of the tests. The programs run there as a user who is not root.
//!
//! The kernel prints nothing. What the machine's programs read and write is QEMU's standard input and output.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::{binaries, workspace};
use crate::clients::{on_path, require};

/// The modules of the serial port's driver, in the order in which they are loaded.
const MODULES: [&str; 6] = [
    "virtio/virtio_ring",
    "virtio/virtio",
    "virtio/virtio_pci_legacy_dev",
    "virtio/virtio_pci_modern_dev",
    "virtio/virtio_pci",
    "char/virtio_console",
];

/// What every machine does first. A user's shell then runs `/story`.
const INIT: &str = r"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
exec </dev/ttyS0 >/dev/ttyS0 2>&1
stty raw -echo
for module in /modules/*; do insmod $module; done
if [ -x /usr/lib/divvy/divvy-guest ]; then
    /usr/lib/divvy/divvy-guest 2>/log &
    until [ -S /run/divvy/slice/worker.sock ]; do
        kill -0 $! || { cat /log; poweroff -f; }
        sleep 0.05
    done
fi
chown user /dev/ttyS0
cd /
export LD_LIBRARY_PATH=/usr/lib/divvy
su user -s /bin/sh -c '. /story'
poweroff -f
";

/// What machines need and this host has.
pub struct Machines {
    /// QEMU.
    pub qemu: PathBuf,
    /// A program with no libraries that is a shell and more.
    pub busybox: PathBuf,
    /// Debian's kernel for virtual machines.
    pub kernel: PathBuf,
    /// The folder of its modules.
    pub modules: PathBuf,
}

impl Machines {
    /// Nothing where something is missing and need not be there.
    pub fn new() -> Option<Self> {
        let qemu = on_path("qemu-system-x86_64", "QEMU (cargo xtask setup)")?;
        let busybox = on_path("busybox", "busybox (cargo xtask setup)")?;
        let home = workspace().join("target/debian/linux-image");
        let first = |folder: &str, begin: &str| {
            let entries = fs::read_dir(home.join(folder)).ok()?;
            let mut paths = entries.flatten().map(|entry| entry.path());
            paths.find(|path| {
                path.file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with(begin))
            })
        };
        let found = first("boot", "vmlinuz-").zip(first("lib/modules", ""));
        let _needed = require(found.is_some(), "Debian's kernel (cargo xtask setup)");
        let (kernel, modules) = found?;
        Some(Self {
            qemu,
            busybox,
            kernel,
            modules,
        })
    }

    /// Makes a machine's files in a folder: it runs `story`, a script, with these programs in `/bin`, and then ends. The
    /// words that start it.
    pub fn make(&self, folder: &Path, programs: &[&str], story: &str) -> Vec<String> {
        fs::create_dir_all(folder).expect("a folder");
        let kernel = folder.join("kernel");
        fs::copy(&self.kernel, &kernel).expect("the kernel is copied");
        let root = folder.join("root");
        fs::write(&root, self.root(programs, story)).expect("written");
        for file in [&kernel, &root] {
            fs::set_permissions(file, fs::Permissions::from_mode(0o644)).expect("a mode");
        }
        let text = |path: &Path| path.to_str().expect("a path of text").to_owned();
        [
            &text(&self.qemu),
            "-accel",
            "tcg,thread=multi",
            // Half of it is the most that the files may take.
            "-m",
            "768",
            "-nodefaults",
            "-no-reboot",
            "-display",
            "none",
            "-serial",
            "stdio",
            "-kernel",
            &text(&kernel),
            "-initrd",
            &text(&root),
            "-append",
            "quiet loglevel=0 panic=-1 tsc=reliable",
        ]
        .map(str::to_owned)
        .to_vec()
    }

    fn root(&self, programs: &[&str], story: &str) -> Vec<u8> {
        let mut root = Archive::default();
        for folder in [
            "bin",
            "dev",
            "etc",
            "modules",
            "proc",
            "run",
            "sys",
            "tmp",
            "usr/lib/divvy",
        ] {
            root.folder(folder);
        }
        let read = |path: &Path| fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        root.file("init", INIT.as_bytes(), 0o755);
        root.file("story", story.as_bytes(), 0o644);
        root.file(
            "etc/passwd",
            b"root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n",
            0o644,
        );
        root.file("bin/busybox", &read(&self.busybox), 0o755);
        for (number, module) in MODULES.iter().enumerate() {
            let path = self.modules.join("kernel/drivers").join(format!("{module}.ko"));
            let name = module.rsplit('/').next().unwrap_or_default();
            root.file(&format!("modules/{number}-{name}.ko"), &read(&path), 0o644);
        }
        let (broker, library) = (
            binaries().join("divvy-guest"),
            binaries().join("libdivvy_remote_cuda.so"),
        );
        root.file("usr/lib/divvy/divvy-guest", &read(&broker), 0o755);
        root.file("usr/lib/divvy/libcuda.so.1", &read(&library), 0o644);
        root.file("usr/lib/divvy/libcuda.so", &read(&library), 0o644);
        let mut libraries = needed(&broker);
        libraries.extend(needed(&library));
        for program in programs {
            let path = binaries().join(program);
            root.file(&format!("bin/{program}"), &read(&path), 0o755);
            libraries.extend(needed(&path));
        }
        for library in libraries {
            let path = library.strip_prefix("/").unwrap_or(&library);
            root.file(path.to_str().expect("a path of text"), &read(&library), 0o755);
        }
        root.end()
    }
}

/// The libraries that a program or a library is loaded with, as ldd prints them: the loader itself too.
pub(crate) fn needed(file: &Path) -> BTreeSet<PathBuf> {
    let output = Command::new("ldd").arg(file).output().expect("ldd starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = text.split_whitespace().filter(|word| word.starts_with('/'));
    words
        .map(|word| PathBuf::from(word.trim_end_matches(':')))
        .filter(|path| path != file)
        .collect()
}

/// A file system as the kernel unpacks it: cpio in the format `newc`.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

impl Archive {
    pub(crate) fn folder(&mut self, path: &str) {
        self.above(path);
        self.entry(path, 0o040_755, &[]);
    }

    pub(crate) fn file(&mut self, path: &str, bytes: &[u8], mode: u32) {
        self.above(path);
        self.entry(path, 0o100_000 | mode, bytes);
    }

    fn above(&mut self, path: &str) {
        if let Some((folder, _)) = path.rsplit_once('/') {
            self.folder(folder);
        }
    }

    fn entry(&mut self, path: &str, mode: u32, bytes: &[u8]) {
        if !self.names.insert(path.to_owned()) {
            return;
        }
        let number = self.names.len();
        let (length, name) = (bytes.len(), path.len() + 1);
        let fields = [number, mode as usize, 0, 0, 1, 0, length, 0, 0, 0, 0, name, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(bytes);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}
