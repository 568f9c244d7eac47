//! Machines built as trees of files, for tests and benches: what `/sys` and `/proc` hold on machines that are not here.
//!
//! Values are those that real machines print, shortened to what the inventory reads.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A tree under construction. A tree that cannot be written is a panic: this is for tests.
pub struct Built {
    root: PathBuf,
}

/// A PCI function to be added.
#[derive(Clone, Copy, Debug)]
pub struct Function<'a> {
    /// `0000:65:00.0`.
    pub address: &'a str,
    /// `10de:2330`.
    pub id: &'a str,
    /// `0x030200`.
    pub class: &'a str,
    /// The bound driver, or nothing.
    pub driver: &'a str,
    /// The bridge above it.
    pub port: &'a str,
    /// NUMA node, -1 where there is none.
    pub numa: i32,
    /// IOMMU group.
    pub group: u32,
}

impl Built {
    /// An empty machine below `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where it is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Writes a file.
    pub fn file(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    /// Makes a link that need not lead anywhere.
    pub fn link(&self, path: &str, target: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
        symlink(target, path).expect("a link");
    }

    /// Removes a file or a tree.
    pub fn remove(&self, path: &str) {
        let path = self.root.join(path);
        if fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir()) {
            fs::remove_dir_all(path).expect("a folder is removed");
        } else {
            fs::remove_file(path).expect("a file is removed");
        }
    }

    /// Puts something in a file's place that cannot be read as one, even by root.
    pub fn unreadable(&self, path: &str) {
        self.remove(path);
        fs::create_dir_all(self.root.join(path)).expect("a folder");
    }

    /// Adds a PCI function with its link, IOMMU group and driver.
    pub fn function(&self, function: Function<'_>) {
        let Function { address, port, .. } = function;
        let bus = address.split(':').next().unwrap_or("0000");
        let host = port.split(':').nth(1).unwrap_or("00");
        let folder = format!("sys/devices/pci{bus}:{host}/{port}/{address}");
        let (vendor, device) = function.id.split_once(':').expect("vendor:device");
        for (name, text) in [
            ("class", function.class.to_owned()),
            ("vendor", format!("0x{vendor}")),
            ("device", format!("0x{device}")),
            ("numa_node", function.numa.to_string()),
            (
                "local_cpulist",
                if function.numa == 1 { "48-95" } else { "0-47" }.into(),
            ),
            ("current_link_speed", "32.0 GT/s PCIe".into()),
            ("max_link_speed", "32.0 GT/s PCIe".into()),
            ("current_link_width", "16".into()),
            ("max_link_width", "16".into()),
        ] {
            self.file(&format!("{folder}/{name}"), &format!("{text}\n"));
        }
        if !function.driver.is_empty() {
            let driver = format!("../../../../bus/pci/drivers/{}", function.driver);
            self.link(&format!("{folder}/driver"), &driver);
        }
        let group = function.group;
        self.link(
            &format!("{folder}/iommu_group"),
            &format!("../../../../kernel/iommu_groups/{group}"),
        );
        let member = format!("sys/kernel/iommu_groups/{group}/devices/{address}");
        self.link(
            &member,
            &format!("../../../../devices/pci{bus}:{host}/{port}/{address}"),
        );
        let listed = format!("sys/bus/pci/devices/{address}");
        self.link(
            &listed,
            &format!("../../../devices/pci{bus}:{host}/{port}/{address}"),
        );
    }

    /// Adds a file to a PCI function.
    pub fn function_file(&self, address: &str, name: &str, text: &str) {
        self.file(&format!("sys/bus/pci/devices/{address}/{name}"), text);
    }

    /// Eight MI300X, each in `partitions` parts: 1 is SPX/NPS1, 8 is CPX/NPS4.
    #[must_use]
    pub fn mi300x(root: impl Into<PathBuf>, partitions: u32) -> Self {
        let built = Self::at(root);
        let nodes = "sys/class/kfd/kfd/topology/nodes";
        for cpu in 0..2 {
            built.file(&format!("{nodes}/{cpu}/gpu_id"), "0\n");
            built.file(
                &format!("{nodes}/{cpu}/properties"),
                "cpu_cores_count 96\nsimd_count 0\n",
            );
        }
        let buses = [0x05_u64, 0x26, 0x46, 0x65, 0x85, 0xa6, 0xc6, 0xe5];
        let mut node = 2;
        for (at, bus) in (0_u32..).zip(buses) {
            let address = format!("0000:{bus:02x}:00.0");
            let port = format!("0000:{:02x}:01.0", bus - 1);
            let numa = i32::from(at >= 4);
            built.function(Function {
                address: &address,
                id: "1002:74a1",
                class: "0x120000",
                driver: "amdgpu",
                port: &port,
                numa,
                group: 40 + at,
            });
            let (compute, memory) = if partitions == 1 {
                ("SPX", "NPS1")
            } else {
                ("CPX", "NPS4")
            };
            built.function_file(&address, "current_compute_partition", compute);
            built.function_file(&address, "current_memory_partition", memory);
            built.function_file(&address, "available_compute_partition", "SPX, DPX, QPX, CPX\n");
            built.function_file(&address, "product_name", "AMD Instinct MI300X");
            built.function_file(&address, "mem_info_vram_total", "206141652992\n");
            built.function_file(&address, "mem_info_vram_used", "297263104\n");
            for part in 0..partitions {
                let folder = format!("{nodes}/{node}");
                let simds = 1216 / partitions;
                let location = bus << 8 | u64::from(part) << 28;
                let unique = 0x5a3f_0000_0000_1000_u64 + u64::from(at);
                built.file(&format!("{folder}/gpu_id"), &format!("{}\n", 10_000 + node));
                built.file(&format!("{folder}/name"), "ip discovery\n");
                let properties = format!(
                    "cpu_cores_count 0\nsimd_count {simds}\nmem_banks_count 1\nsimd_per_cu 4\n\
                     gfx_target_version 90402\nvendor_id 4098\ndevice_id 29857\nlocation_id {location}\ndomain 0\n\
                     drm_render_minor {}\nunique_id {unique}\nnum_xcc {}\n",
                    128 + node,
                    8 / partitions
                );
                built.file(&format!("{folder}/properties"), &properties);
                let bytes = 206_141_652_992 / u64::from(partitions);
                let bank = format!("heap_type 1\nsize_in_bytes {bytes}\n");
                built.file(&format!("{folder}/mem_banks/0/properties"), &bank);
                built.file(
                    &format!("{folder}/io_links/0/properties"),
                    "type 2\nnode_from 9\nnode_to 0\n",
                );
                for (link, other) in (0..8).filter(|other| *other != at).enumerate() {
                    let to = 2 + other * partitions;
                    let text = format!("type 11\nnode_from {node}\nnode_to {to}\n");
                    built.file(&format!("{folder}/io_links/{}/properties", link + 1), &text);
                }
                node += 1;
            }
        }
        built
    }

    /// `count` H100 without NVML, two to a switch; every other one in MIG mode with two instances.
    #[must_use]
    pub fn h100(root: impl Into<PathBuf>, count: u32) -> Self {
        let built = Self::at(root);
        built.file(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n",
        );
        for at in 0..count {
            let address = format!("0000:{:02x}:00.0", 0x10 + at * 8);
            let port = format!("0000:{:02x}:01.0", at / 2 * 16);
            built.function(Function {
                address: &address,
                id: "10de:2330",
                class: "0x030200",
                driver: "nvidia",
                port: &port,
                numa: i32::from(at >= count / 2),
                group: 60 + at,
            });
            let information = format!(
                "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\nGPU UUID: \t GPU-{at:08x}-aaaa-bbbb-cccc-{at:012x}\n\
                 Bus Location: \t {address}\nDevice Minor: \t {at}\n"
            );
            built.file(
                &format!("proc/driver/nvidia/gpus/{address}/information"),
                &information,
            );
            if at % 2 == 1 {
                for instance in [1, 5] {
                    let mig = format!("proc/driver/nvidia/capabilities/gpu{at}/mig/gi{instance}");
                    let access = "DeviceFileMinor: 30\nDeviceFileMode: 292\nDeviceFileModify: 1\n";
                    built.file(&format!("{mig}/access"), access);
                    built.file(&format!("{mig}/ci0/access"), access);
                }
            }
        }
        built
    }

    /// A desktop: an integrated GPU that shows the boot messages, and a discrete one.
    #[must_use]
    pub fn desktop(root: impl Into<PathBuf>) -> Self {
        let built = Self::at(root);
        built.function(Function {
            address: "0000:00:02.0",
            id: "8086:a780",
            class: "0x030000",
            driver: "i915",
            port: "0000:00:00.0",
            numa: -1,
            group: 0,
        });
        built.function_file("0000:00:02.0", "boot_vga", "1\n");
        built.function(Function {
            address: "0000:01:00.0",
            id: "10de:2684",
            class: "0x030000",
            driver: "nouveau",
            port: "0000:00:01.0",
            numa: -1,
            group: 2,
        });
        built.function_file("0000:01:00.0", "boot_vga", "0\n");
        built.audio("0000:01:00.1", "0000:00:01.0", 2);
        built
    }

    /// Two GPUs handed to vfio-pci with their companion functions.
    #[must_use]
    pub fn passed_through(root: impl Into<PathBuf>) -> Self {
        let built = Self::at(root);
        for (at, address) in ["0000:41:00.0", "0000:c1:00.0"].into_iter().enumerate() {
            let port = ["0000:40:01.0", "0000:c0:01.0"][at];
            let group = [17, 33][at];
            built.function(Function {
                address,
                id: "10de:26b9",
                class: "0x030200",
                driver: "vfio-pci",
                port,
                numa: i32::try_from(at).unwrap_or(0),
                group,
            });
            built.audio(&address.replace(".0", ".1"), port, group);
        }
        built
    }

    /// A host of virtual machines: an A40 with mediated devices, one of them made, and an L40S with virtual functions, one
    /// of them with a type.
    #[must_use]
    pub fn vgpu(root: impl Into<PathBuf>) -> Self {
        let built = Self::at(root);
        let gpu = |address, id, driver, port, group| Function {
            address,
            id,
            class: "0x030200",
            driver,
            port,
            numa: 0,
            group,
        };
        let a40 = "0000:3b:00.0";
        built.function(gpu(a40, "10de:2235", "nvidia", "0000:3a:00.0", 24));
        let types = format!("sys/class/mdev_bus/{a40}/mdev_supported_types");
        let uuid = "5b6c3a52-0d0f-4d0a-9a47-2f2b1f6f2a10";
        for (id, name, memory, available) in [
            ("nvidia-557", "NVIDIA A40-2Q", 2048, 0),
            ("nvidia-558", "NVIDIA A40-4Q", 4096, 11),
            ("nvidia-560", "NVIDIA A40-8Q", 8192, 0),
        ] {
            let folder = format!("{types}/{id}");
            built.file(&format!("{folder}/name"), &format!("{name}\n"));
            let description = format!("num_heads=4, frl_config=60, framebuffer={memory}M\n");
            built.file(&format!("{folder}/description"), &description);
            built.file(
                &format!("{folder}/available_instances"),
                &format!("{available}\n"),
            );
            built.file(&format!("{folder}/create"), "");
        }
        let device = format!("sys/bus/mdev/devices/{uuid}");
        built.file(&format!("{device}/remove"), "");
        built.link(
            &format!("{device}/mdev_type"),
            &format!("../../../../{types}/nvidia-558"),
        );
        built.link(
            &format!("{device}/iommu_group"),
            "../../../../kernel/iommu_groups/90",
        );
        built.function(gpu("0000:41:00.0", "10de:26b9", "nvidia", "0000:40:01.0", 17));
        for (at, address) in ["0000:41:00.4", "0000:41:00.5"].into_iter().enumerate() {
            built.function(gpu(
                address,
                "10de:26b9",
                "nvidia",
                "0000:40:01.0",
                18 + u32::try_from(at).unwrap_or(0),
            ));
            let offered = "ID    : vGPU Name\n1148  : NVIDIA L40S-1Q\n1151  : NVIDIA L40S-4Q\n";
            built.function_file(
                address,
                "nvidia/creatable_vgpu_types",
                if at == 0 { offered } else { "" },
            );
            built.function_file(
                address,
                "nvidia/current_vgpu_type",
                if at == 0 { "0\n" } else { "1148\n" },
            );
        }
        built
    }

    fn audio(&self, address: &str, port: &str, group: u32) {
        self.function(Function {
            address,
            id: "10de:22ba",
            class: "0x040300",
            driver: "snd_hda_intel",
            port,
            numa: -1,
            group,
        });
        let bridge = Function {
            address: port,
            id: "8086:a70d",
            class: "0x060400",
            driver: "pcieport",
            port: "0000:00:00.0",
            numa: -1,
            group,
        };
        if !self.root.join(format!("sys/bus/pci/devices/{port}")).exists() {
            self.function(bridge);
        }
    }
}
