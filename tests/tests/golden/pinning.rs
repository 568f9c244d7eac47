//! The processors that a machine is pinned to, held to hwloc's reading of the host: on captured trees of real machines, out of
//! hwloc's own tests, and on shapes of hosts that people put GPUs into.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_host::machine::Sysroot;
use divvy_model::Bytes;
use divvy_tests::clients::{hwloc_machines, required_file};
use divvy_vm::machine::{Machine, Pages, Request};

/// A host: nodes, cores of each, threads of each core, and how the kernel numbers them.
#[derive(Clone, Copy, Debug)]
struct Shape {
    name: &'static str,
    nodes: u32,
    cores: u32,
    threads: u32,
    /// Threads of a core have numbers beside each other, as on ARM and POWER; else the second ones come behind all first ones.
    beside: bool,
    /// The nodes of its GPUs.
    gpus: &'static [u32],
}

const SHAPES: [Shape; 8] = [
    Shape {
        name: "desktop, one socket",
        nodes: 1,
        cores: 8,
        threads: 2,
        beside: false,
        gpus: &[0],
    },
    Shape {
        name: "workstation without SMT",
        nodes: 1,
        cores: 16,
        threads: 1,
        beside: false,
        gpus: &[0, 0],
    },
    Shape {
        name: "DGX A100: two sockets, four nodes each",
        nodes: 8,
        cores: 16,
        threads: 2,
        beside: false,
        gpus: &[3, 3, 1, 1, 7, 7, 5, 5],
    },
    Shape {
        name: "DGX H100: two sockets",
        nodes: 2,
        cores: 56,
        threads: 2,
        beside: false,
        gpus: &[0, 0, 0, 0, 1, 1, 1, 1],
    },
    Shape {
        name: "MI300X: two sockets of Genoa",
        nodes: 2,
        cores: 96,
        threads: 2,
        beside: false,
        gpus: &[0, 0, 0, 0, 1, 1, 1, 1],
    },
    Shape {
        name: "ARM server",
        nodes: 2,
        cores: 64,
        threads: 1,
        beside: true,
        gpus: &[0, 1],
    },
    Shape {
        name: "POWER9 with SMT4",
        nodes: 2,
        cores: 20,
        threads: 4,
        beside: true,
        gpus: &[0, 0, 1, 1],
    },
    Shape {
        name: "Loongson, four nodes",
        nodes: 4,
        cores: 4,
        threads: 1,
        beside: true,
        gpus: &[2],
    },
];

impl Shape {
    fn build(&self, root: &Path) -> Vec<String> {
        let write = |path: String, text: String| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, text + "\n").expect("written");
        };
        let all = self.nodes * self.cores;
        let number = |core: u32, thread: u32| match self.beside {
            true => core * self.threads + thread,
            false => core + thread * all,
        };
        let mask = |cpus: &[u32]| {
            let words = (all * self.threads).div_ceil(32);
            let word = |at: u32| {
                let bits = cpus.iter().filter(|cpu| *cpu / 32 == at);
                format!("{:08x}", bits.fold(0_u32, |bits, cpu| bits | 1 << (cpu % 32)))
            };
            (0..words).rev().map(word).collect::<Vec<_>>().join(",")
        };
        let list = |cpus: &[u32]| cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let cpu = "sys/devices/system/cpu";
        let everything: Vec<u32> = (0..all * self.threads).collect();
        for file in ["online", "possible", "present"] {
            write(format!("{cpu}/{file}"), format!("0-{}", all * self.threads - 1));
        }
        for node in 0..self.nodes {
            let mut own = Vec::new();
            for core in node * self.cores..(node + 1) * self.cores {
                let siblings: Vec<u32> = (0..self.threads).map(|thread| number(core, thread)).collect();
                for sibling in &siblings {
                    let folder = format!("{cpu}/cpu{sibling}/topology");
                    write(format!("{folder}/physical_package_id"), node.to_string());
                    write(format!("{folder}/core_id"), (core % self.cores).to_string());
                    write(format!("{folder}/thread_siblings_list"), list(&siblings));
                    write(format!("{folder}/thread_siblings"), mask(&siblings));
                    let package: Vec<u32> = (node * self.cores..(node + 1) * self.cores)
                        .flat_map(|core| (0..self.threads).map(move |thread| number(core, thread)))
                        .collect();
                    write(format!("{folder}/core_siblings"), mask(&package));
                }
                own.extend(siblings);
            }
            own.sort_unstable();
            let folder = format!("sys/devices/system/node/node{node}");
            write(format!("{folder}/cpulist"), list(&own));
            write(format!("{folder}/cpumap"), mask(&own));
            write(
                format!("{folder}/meminfo"),
                format!("Node {node} MemTotal: 1048576 kB"),
            );
        }
        write(
            "sys/devices/system/node/online".into(),
            format!("0-{}", self.nodes - 1),
        );
        write(
            "proc/cpuinfo".into(),
            everything
                .iter()
                .map(|cpu| format!("processor\t: {cpu}\n"))
                .collect(),
        );
        plant(root, self.gpus)
    }
}

/// A folder for some thousand files, in memory where there is a place for that.
fn in_memory() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    folder.expect("a folder")
}

/// Puts GPUs on these nodes into a tree; their addresses.
fn plant(root: &Path, nodes: &[u32]) -> Vec<String> {
    let planted = (0..).zip(nodes).map(|(at, node)| {
        // In a domain of their own: what was captured may have any bus.
        let address = format!("1000:{:02x}:00.0", 0x10 + at * 0x10);
        become_gpu(root, &address, at, Some(*node));
        address
    });
    planted.collect()
}

/// Makes the function of this address a GPU in a group of its own, on this node where one is named.
fn become_gpu(root: &Path, address: &str, group: u32, node: Option<u32>) {
    let folder = root.join("sys/bus/pci/devices").join(address);
    let members = root.join(format!("sys/kernel/iommu_groups/{group}/devices"));
    for folder in [&folder, &members] {
        std::fs::create_dir_all(folder).expect("a folder");
    }
    let write = |file: &str, text: String| std::fs::write(folder.join(file), text + "\n").expect("written");
    for (file, text) in [("class", "0x030200"), ("vendor", "0x10de"), ("device", "0x2330")] {
        write(file, text.to_owned());
    }
    if let Some(node) = node {
        write("numa_node", node.to_string());
    }
    let link = |to: String, from: PathBuf| symlink(to, from).expect("a link");
    link(
        format!("/sys/kernel/iommu_groups/{group}"),
        folder.join("iommu_group"),
    );
    link(format!("/sys/bus/pci/devices/{address}"), members.join(address));
}

/// hwloc's reading of a tree.
struct Hwloc {
    /// As hwloc itself writes it: a tree of a large host is slow to read.
    xml: PathBuf,
}

impl Hwloc {
    /// Reads a tree; nothing where hwloc is missing and need not be there.
    fn read(root: &Path) -> Option<Self> {
        required_file("/usr/bin/hwloc-calc", "hwloc (cargo xtask setup)")?;
        let lstopo = required_file("/usr/bin/lstopo-no-graphics", "hwloc (cargo xtask setup)")?;
        let xml = root.join("hwloc.xml");
        let output = Command::new(lstopo)
            .arg("--input")
            .arg(root)
            .args(["--input-format", "fsroot"])
            .arg(&xml)
            .output()
            .expect("hwloc starts");
        assert!(output.status.success(), "{}: {output:?}", root.display());
        Some(Self { xml })
    }

    fn ask(&self, words: &[&str], locations: &[String]) -> String {
        let output = Command::new("/usr/bin/hwloc-calc")
            .arg("--input")
            .arg(&self.xml)
            .arg("--physical")
            .args(words)
            .args(locations)
            .output()
            .expect("hwloc starts");
        assert!(output.status.success(), "{words:?} {locations:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn of_cpus(&self, words: &[&str], cpus: &[u32]) -> String {
        let cpus: Vec<String> = cpus.iter().map(|cpu| format!("pu:{cpu}")).collect();
        self.ask(words, &cpus)
    }

    /// How many threads a core of a node has.
    fn threads(&self, node: u32) -> u32 {
        let count = |what: &str| -> u32 {
            let said = self.ask(&["-N", what], &[format!("numa:{node}")]);
            said.parse().unwrap_or_else(|_| panic!("node {node}: {said}"))
        };
        count("pu") / count("core")
    }
}

/// Plans a machine of three cores near each GPU's node, and has hwloc judge it.
fn judge(name: &str, root: &Path, hwloc: &Hwloc, gpus: Vec<String>, nodes: &BTreeSet<u32>) {
    let nodes: Vec<u32> = nodes.iter().copied().collect();
    let threads = hwloc.threads(nodes[0]);
    let (each, parts) = (3 * threads, u32::try_from(nodes.len()).expect("few"));
    let request = Request {
        name: "trainer".to_owned(),
        gpus,
        vcpus: each * parts,
        memory: Bytes((8 << 30) * u64::from(parts)),
        pages: Pages::Huge,
        iommufd: false,
        windows: false,
        disk: None,
        vgpus: Vec::new(),
    };
    let planned =
        Machine::plan(&Sysroot::at(root), request).unwrap_or_else(|fault| panic!("{name}: {fault:?}"));
    let pinning = &planned.pinning;
    let cpus: Vec<u32> = pinning.vcpus.iter().map(|(cpu, _)| *cpu).collect();
    assert_eq!(pinning.nodes, nodes, "{name}");
    assert_eq!(pinning.threads, threads, "{name}");
    // Each processor once, all of them running, and none of QEMU's own.
    assert_eq!(
        hwloc.of_cpus(&["-N", "pu"], &cpus),
        (each * parts).to_string(),
        "{name}: {cpus:?}"
    );
    assert!(!cpus.iter().any(|cpu| pinning.emulator.contains(cpu)), "{name}");
    let count = pinning.emulator.len().to_string();
    assert_eq!(
        hwloc.of_cpus(&["-N", "pu"], &pinning.emulator),
        count,
        "{name}: {:?}",
        pinning.emulator
    );
    // The processors of each node of the machine are on the GPU's node.
    for (at, node) in nodes.iter().enumerate() {
        let vcpus = planned.vcpus_of_node(at);
        let own: Vec<u32> = vcpus
            .iter()
            .map(|vcpu| cpus[usize::try_from(*vcpu).expect("few")])
            .collect();
        assert_eq!(own.len(), usize::try_from(each).expect("few"), "{name}");
        assert_eq!(
            hwloc.of_cpus(&["-I", "numa"], &own),
            node.to_string(),
            "{name}: {own:?}"
        );
    }
    // Whole cores, and the threads of each of the machine's are those of one.
    let count = (each * parts / threads).to_string();
    assert_eq!(hwloc.of_cpus(&["-N", "core"], &cpus), count, "{name}");
    for core in cpus.chunks(usize::try_from(threads).expect("few")) {
        assert_eq!(hwloc.of_cpus(&["-N", "core"], core), "1", "{name}: {core:?}");
    }
}

#[test]
fn hwloc_agrees_on_shapes_of_hosts() {
    for shape in SHAPES {
        let folder = in_memory();
        let gpus = shape.build(folder.path());
        let Some(hwloc) = Hwloc::read(folder.path()) else {
            return;
        };
        judge(
            shape.name,
            folder.path(),
            &hwloc,
            gpus,
            &shape.gpus.iter().copied().collect(),
        );
    }
}

/// The GPUs of a captured machine.
enum Gpus {
    /// It had none: these are planted, on these nodes.
    Planted(&'static [u32]),
    /// Accelerators that it had, which become GPUs where they are. hwloc says where that is.
    There(&'static [&'static str]),
    /// As those, but this capture left their nodes out.
    On(&'static [(&'static str, u32)]),
}

/// Machines that were captured for hwloc's tests. `xtask` unpacks them from Debian's source of hwloc.
const CAPTURED: [(&str, Gpus); 8] = [
    // Two sockets with eight accelerators.
    (
        "32intel64-2p8co2t+8ve",
        Gpus::There(&[
            "0000:1b:00.0",
            "0000:1c:00.0",
            "0000:1d:00.0",
            "0000:1e:00.0",
            "0000:3d:00.0",
            "0000:3f:00.0",
            "0000:40:00.0",
            "0000:41:00.0",
        ]),
    ),
    // Two sockets of Sandy Bridge with an accelerator on the second.
    ("32em64t-2n8c+1mic", Gpus::There(&["0000:83:00.0"])),
    // POWER9 with V100s, whose memory are nodes without processors; most threads are off.
    (
        "nvidiagpunumanodes",
        Gpus::On(&[
            ("0004:05:00.0", 0),
            ("0004:06:00.0", 0),
            ("0035:04:00.0", 8),
            ("0035:05:00.0", 8),
        ]),
    ),
    // Four sockets of Magny-Cours, eight nodes.
    ("48amd64-4d2n6c-sparse", Gpus::Planted(&[1, 72])),
    // Four sockets of Interlagos: two threads of a module are numbered beside each other.
    ("64amd64-4s2n4ca2co", Gpus::Planted(&[7, 0])),
    // Two sockets of Westmere-EX whose processors are numbered in turn.
    ("40intel64-4n10c+pci-conflicts", Gpus::Planted(&[3])),
    // Two sockets of Kunpeng, four nodes, as a host of eight GPUs.
    (
        "128arm-2pa2n8cluster4co",
        Gpus::Planted(&[0, 0, 1, 1, 2, 2, 3, 3]),
    ),
    // The first processor and the first node are off.
    ("offline-cpu0-node0", Gpus::Planted(&[1])),
];

/// Thousands of files in those trees that say nothing of processors.
const IDLE: [&str; 10] = [
    "memory[0-9]*",
    "cache",
    "cpuidle",
    "cpufreq",
    "hugepages",
    "power",
    "msi_irqs",
    "infiniband",
    "net",
    "proc/[0-9]*",
];

#[test]
fn hwloc_agrees_on_captured_machines() {
    let Some(machines) = hwloc_machines() else {
        return;
    };
    for (name, gpus) in CAPTURED {
        let folder = in_memory();
        let unpacked = Command::new("tar")
            .arg("--extract")
            .arg("--file")
            .arg(machines.join(format!("{name}.tar.bz2")))
            .arg("--strip-components=1")
            // Thousands of files that say nothing of processors.
            .args(IDLE.map(|name| format!("--exclude={name}")))
            .arg("--no-same-owner")
            .arg("--directory")
            .arg(folder.path())
            .status()
            .expect("tar starts");
        assert!(unpacked.success(), "{name}: {unpacked}");
        let Some(hwloc) = Hwloc::read(folder.path()) else {
            return;
        };
        let (gpus, nodes) = match gpus {
            Gpus::Planted(nodes) => (plant(folder.path(), nodes), nodes.iter().copied().collect()),
            Gpus::There(addresses) => {
                let node = |address: &&str| -> u32 {
                    let said = hwloc.ask(&["-I", "numa"], &[format!("pci={address}")]);
                    said.parse()
                        .unwrap_or_else(|_| panic!("{name}: {address} is on {said}"))
                };
                let nodes: BTreeSet<u32> = addresses.iter().map(node).collect();
                for (group, address) in (0..).zip(addresses) {
                    become_gpu(folder.path(), address, group, None);
                }
                (
                    addresses.iter().map(|address| (*address).to_owned()).collect(),
                    nodes,
                )
            }
            Gpus::On(places) => {
                for (group, (address, node)) in (0..).zip(places) {
                    become_gpu(folder.path(), address, group, Some(*node));
                }
                let addresses = places.iter().map(|(address, _)| (*address).to_owned());
                (
                    addresses.collect(),
                    places.iter().map(|(_, node)| *node).collect(),
                )
            }
        };
        judge(name, folder.path(), &hwloc, gpus, &nodes);
    }
}
