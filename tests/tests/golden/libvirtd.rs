//! A real libvirtd, with its QEMU driver, takes the domains that are written, and starts one on QEMU's own processor.
//!
//! It is a daemon of one test: as a user without rights, with its own folders and socket, and it ends with the test.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use divvy_host::machine::Sysroot;
use divvy_model::Bytes;
use divvy_tests::build::workspace;
use divvy_tests::clients::required_file;
use divvy_tests::wait::until;
use divvy_vm::machine::{Machine, Pages, Request};
use divvy_vm::output::libvirt;
use rustix::process::{Pid, Signal, geteuid, kill_process};

/// The kernel's user without rights. The daemon of a user who is not root is in that user's folders alone.
const UNPRIVILEGED: u32 = 65_534;

struct Libvirtd {
    daemon: Child,
    folder: PathBuf,
    // After the daemon: its folders go last.
    _home: tempfile::TempDir,
}

impl Libvirtd {
    /// None where a program is missing and need not be there.
    fn start() -> Option<Self> {
        let program = required_file("/usr/sbin/libvirtd", "libvirtd (cargo xtask setup)")?;
        required_file("/usr/bin/virsh", "virsh (cargo xtask setup)")?;
        required_file(
            "/usr/share/OVMF/OVMF_CODE_4M.fd",
            "UEFI for machines (cargo xtask setup)",
        )?;
        let home = tempfile::tempdir().expect("a folder");
        let folder = home.path().to_owned();
        for name in ["run", "configuration", "data", "cache"] {
            fs::create_dir(folder.join(name)).expect("a folder");
        }
        fs::write(
            folder.join("libvirtd.conf"),
            "log_level = 3\nlog_outputs = \"3:stderr\"\n",
        )
        .expect("written");
        if geteuid().is_root() {
            for name in ["", "run", "configuration", "data", "cache", "libvirtd.conf"] {
                chown(folder.join(name), Some(UNPRIVILEGED), Some(UNPRIVILEGED)).expect("root may");
            }
        }
        let log = File::create(folder.join("log")).expect("written");
        let daemon = as_user(&program, &folder)
            .args(["--timeout", "600", "--config"])
            .arg(folder.join("libvirtd.conf"))
            .arg("--pid-file")
            .arg(folder.join("run/pid"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("libvirtd starts");
        let mut made = Self {
            daemon,
            folder,
            _home: home,
        };
        until("libvirtd listens", || {
            let ended = made.daemon.try_wait().expect("it can be looked at");
            assert!(ended.is_none(), "{ended:?}: {}", made.log());
            made.folder
                .join("run/libvirt/libvirt-sock")
                .exists()
                .then_some(())
        });
        Some(made)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// What `virsh` of the daemon's user says.
    fn ask(&self, words: &[&str]) -> Output {
        as_user(Path::new("/usr/bin/virsh"), &self.folder)
            .args(["--quiet", "--connect", "qemu:///session"])
            .args(words)
            .stdin(Stdio::null())
            .output()
            .expect("virsh starts")
    }

    fn virsh(&self, words: &[&str]) -> String {
        let output = self.ask(words);
        assert!(
            output.status.success(),
            "{words:?}: {}\n{}",
            String::from_utf8_lossy(&output.stderr),
            self.log()
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A domain's file.
    fn file(&self, xml: &str) -> String {
        let path = self.folder.join("domain.xml");
        fs::write(&path, xml).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("a mode");
        path.to_str().expect("a path").to_owned()
    }
}

impl Drop for Libvirtd {
    fn drop(&mut self) {
        let _ended = self.ask(&["destroy", "trainer"]);
        let pid = i32::try_from(self.daemon.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _asked = kill_process(pid, Signal::TERM);
        }
        let _ended = self.daemon.wait();
    }
}

/// A command of the daemon's user, in its folders.
fn as_user(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("HOME", folder)
        .env("XDG_RUNTIME_DIR", folder.join("run"))
        .env("XDG_CONFIG_HOME", folder.join("configuration"))
        .env("XDG_DATA_HOME", folder.join("data"))
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .env_remove("LIBVIRT_DEFAULT_URI")
        .current_dir(folder);
    if geteuid().is_root() {
        command.gid(UNPRIVILEGED).uid(UNPRIVILEGED);
    }
    command
}

fn request(gpus: &[&str], vcpus: u32) -> Request {
    Request {
        name: "trainer".to_owned(),
        gpus: gpus.iter().map(|gpu| (*gpu).to_owned()).collect(),
        vcpus,
        memory: Bytes(1 << 30),
        pages: Pages::Ordinary,
        iommufd: false,
        windows: false,
        disk: None,
        vgpus: Vec::new(),
    }
}

/// The domain for QEMU's own processor, which has neither KVM nor the host's model.
fn emulated(machine: &Machine) -> String {
    let written = libvirt::domain(machine).written();
    let changed = written
        .replace("<domain type=\"kvm\">", "<domain type=\"qemu\">")
        .replace("mode=\"host-passthrough\"", "mode=\"maximum\"");
    assert_ne!(written, changed);
    changed
}

#[test]
fn a_real_daemon_takes_every_domain_and_tells_qemu_the_same() {
    let Some(libvirtd) = Libvirtd::start() else { return };
    let tree = Sysroot::at(workspace().join("examples/hosts/passthrough"));
    let (left, right) = ("0000:65:00.0", "0000:b3:00.0");
    let windows = Request {
        windows: true,
        ..request(&[left], 4)
    };
    let huge = Request {
        pages: Pages::Huge,
        disk: Some("/var/lib/images/trainer.qcow2".to_owned()),
        ..request(&[left], 6)
    };
    for (request, wanted) in [
        (request(&[left], 6), "<vcpupin vcpu='5' cpuset='11'/>"),
        (huge, "<page size='1048576' unit='KiB'/>"),
        (request(&[left, right], 8), "<target busNr='96'>"),
        (windows, "<vendor_id state='on' value='divvy'/>"),
    ] {
        let machine = Machine::plan(&tree, request).expect("it fits");
        let file = libvirtd.file(&emulated(&machine));
        libvirtd.virsh(&["define", &file, "--validate"]);
        let kept = libvirtd.virsh(&["dumpxml", "--inactive", "trainer"]);
        assert!(kept.contains(wanted), "{wanted}: {kept}");
        assert_eq!(
            kept.matches("<hostdev ").count(),
            machine.cards.len() * 2,
            "the GPUs and their sound: {kept}"
        );
        libvirtd.virsh(&["undefine", "trainer", "--nvram"]);
    }
    // So it does virtual GPUs.
    let (_folder, host) = super::vgpus::host();
    let virtual_gpu = Request {
        vgpus: vec!["5b6c3a52-0d0f-4d0a-9a47-2f2b1f6f2a10".to_owned()],
        windows: true,
        ..request(&[], 1)
    };
    let machine = Machine::plan(&host, virtual_gpu).expect("it fits");
    let file = libvirtd.file(&emulated(&machine));
    libvirtd.virsh(&["define", &file, "--validate"]);
    let kept = libvirtd.virsh(&["dumpxml", "--inactive", "trainer"]);
    assert!(
        kept.contains("type='mdev'") && kept.contains("uuid='5b6c3a52-"),
        "{kept}"
    );
    libvirtd.virsh(&["undefine", "trainer", "--nvram"]);

    // What libvirt makes of it for QEMU is what is printed for QEMU.
    let machine = Machine::plan(&tree, request(&[left], 6)).expect("it fits");
    let file = libvirtd.file(&emulated(&machine));
    let words = libvirtd.virsh(&["domxml-to-native", "qemu-argv", "--xml", &file]);
    for wanted in [
        r#""driver":"vfio-pci","host":"0000:65:00.0""#,
        r#""driver":"vfio-pci","host":"0000:65:00.1""#,
        r#""multifunction":true"#,
        "6,sockets=1,dies=1,cores=3,threads=2",
    ] {
        assert!(words.contains(wanted), "{wanted}: {words}");
    }
    // It knows what a domain is: one with the same function twice is refused.
    let twice = emulated(&machine).replace(
        "function=\"0x1\"/>\n      </source>",
        "function=\"0x0\"/>\n      </source>",
    );
    let refused = libvirtd.ask(&["define", &libvirtd.file(&twice)]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && why.contains("already exists"),
        "{why}"
    );
}

#[test]
fn a_domain_of_this_host_starts_with_each_processor_in_its_place() {
    let Some(libvirtd) = Libvirtd::start() else { return };
    let request = Request {
        memory: Bytes(256 << 20),
        ..request(&[], 1)
    };
    let machine = Machine::plan(&Sysroot::at("/"), request).expect("it fits");
    let file = libvirtd.file(&emulated(&machine));
    libvirtd.virsh(&["define", &file, "--validate"]);
    libvirtd.virsh(&["start", "trainer"]);
    assert_eq!(libvirtd.virsh(&["domstate", "trainer"]).trim(), "running");
    // What the kernel says of the thread that is the processor.
    let pid =
        fs::read_to_string(libvirtd.folder.join("run/libvirt/qemu/run/trainer.pid")).expect("QEMU's number");
    let threads = fs::read_dir(format!("/proc/{}/task", pid.trim())).expect("QEMU runs");
    let line = |file: PathBuf, key: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let mut lines = text.lines().map(str::to_owned);
        lines.find(|line| line.starts_with(key)).unwrap_or_default()
    };
    let pinned: Vec<String> = threads
        .flatten()
        .filter(|thread| line(thread.path().join("status"), "Name").contains("CPU 0"))
        .map(|thread| line(thread.path().join("status"), "Cpus_allowed_list:"))
        .collect();
    let (cpu, _) = machine.pinning.vcpus[0];
    assert_eq!(
        pinned,
        [format!("Cpus_allowed_list:\t{cpu}")],
        "{}",
        libvirtd.log()
    );
    libvirtd.virsh(&["destroy", "trainer"]);
    libvirtd.virsh(&["undefine", "trainer", "--nvram"]);
}
