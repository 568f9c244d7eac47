//! A machine to be: what it gets of the host. From here the texts for QEMU, libvirt and others are made.

use divvy_host::machine::Sysroot;
use divvy_model::{Bytes, Code, Fault};
use serde::Serialize;

use crate::cpus::{Pinning, nodes, pin};
use crate::function::Function;
use crate::group::Group;
use crate::vgpu::VirtualGpu;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The machine's name: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// The GPUs' PCI addresses.
    pub gpus: Vec<String>,
    /// How many processors.
    pub vcpus: u32,
    /// How much memory.
    pub memory: Bytes,
    /// Pages of 1 GiB, pages of 2 MiB, or ordinary ones.
    pub pages: Pages,
    /// By iommufd in the place of a VFIO group's container.
    pub iommufd: bool,
    /// A guest that is Windows.
    pub windows: bool,
    /// The file of its disk.
    pub disk: Option<String>,
    /// Virtual GPUs, by UUID or PCI address.
    pub vgpus: Vec<String>,
}

/// What a machine's memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Pages {
    /// Ordinary ones.
    #[serde(rename = "4KiB")]
    Ordinary,
    /// Huge ones of 2 MiB.
    #[serde(rename = "2MiB")]
    Large,
    /// Huge ones of 1 GiB.
    #[serde(rename = "1GiB")]
    Huge,
}

impl Pages {
    /// Their size.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Ordinary => 4 << 10,
            Self::Large => 2 << 20,
            Self::Huge => 1 << 30,
        }
    }
}

/// A card: the functions that go together into one slot of the machine.
#[derive(Clone, Debug)]
pub struct Card {
    /// Its functions, the GPU first.
    pub functions: Vec<Function>,
    /// Which of the machine's nodes it is near.
    pub node: usize,
}

/// UEFI for machines, as a distribution installs it: its code, and the settings that each machine gets a copy of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Firmware {
    /// The code.
    pub code: &'static str,
    /// What a new machine's settings are copied from.
    pub settings: &'static str,
}

/// Debian and Ubuntu, RHEL and Fedora, Arch, SUSE.
const FIRMWARE: [Firmware; 4] = [
    Firmware {
        code: "/usr/share/OVMF/OVMF_CODE_4M.fd",
        settings: "/usr/share/OVMF/OVMF_VARS_4M.fd",
    },
    Firmware {
        code: "/usr/share/edk2/ovmf/OVMF_CODE.fd",
        settings: "/usr/share/edk2/ovmf/OVMF_VARS.fd",
    },
    Firmware {
        code: "/usr/share/edk2/x64/OVMF_CODE.4m.fd",
        settings: "/usr/share/edk2/x64/OVMF_VARS.4m.fd",
    },
    Firmware {
        code: "/usr/share/qemu/ovmf-x86_64-code.bin",
        settings: "/usr/share/qemu/ovmf-x86_64-vars.bin",
    },
];

/// See the module.
#[derive(Clone, Debug)]
pub struct Machine {
    /// What was asked for.
    pub request: Request,
    /// Its cards, by slot.
    pub cards: Vec<Card>,
    /// Its virtual GPUs, in slots behind those of the cards.
    pub vgpus: Vec<VirtualGpu>,
    /// UEFI of this host; Debian's where it has none.
    pub firmware: Firmware,
    /// Its processors.
    pub pinning: Pinning,
    /// The bytes of all BARs: how large the window for them has to be.
    pub bars: u64,
    /// Whether the processors are AMD's, which tell of threads only where they are told to.
    pub is_amd: bool,
}

impl Machine {
    /// Looks at the host, and decides.
    ///
    /// # Errors
    /// As [`Group::of`] and [`pin`]; [`Code::Usage`] for a name or an amount of memory that no machine can have.
    pub fn plan(root: &Sysroot, request: Request) -> Result<Self, Fault> {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if request.name.is_empty() || request.name.len() > 63 || !request.name.chars().all(plain) {
            return Err(Fault::new(
                Code::Usage,
                format!("`{}` is no name for a machine", request.name.escape_debug()),
            )
            .hint("a name is 1 to 63 letters, digits, `-`, `_` or `.`"));
        }
        if let Some(disk) = request
            .disk
            .as_deref()
            .filter(|disk| disk.contains(char::is_control))
        {
            return Err(Fault::new(
                Code::Usage,
                format!("`{}` is no path of a disk", disk.escape_debug()),
            ));
        }
        if let Some(has) = memory_of(root).filter(|has| request.memory.0 > has.0) {
            return Err(Fault::new(
                Code::Usage,
                format!("a machine with {} does not fit a host with {has}", request.memory),
            )
            .hint("ask for less with --memory"));
        }
        let mut cards: Vec<(Vec<Function>, Option<u32>)> = Vec::new();
        let mut seen: Vec<u32> = Vec::new();
        for address in &request.gpus {
            let group = Group::of(root, address)?;
            if seen.contains(&group.number) {
                continue;
            }
            seen.push(group.number);
            // The functions of one slot stay one card; the group's others get slots of their own.
            let mut slots: Vec<Vec<Function>> = Vec::new();
            for function in group.functions {
                match slots.iter_mut().find(|slot| slot[0].slot() == function.slot()) {
                    Some(slot) => slot.push(function),
                    None => slots.push(vec![function]),
                }
            }
            cards.extend(slots.into_iter().map(|slot| {
                let node = slot[0].numa;
                (slot, node)
            }));
        }
        let vgpus = request
            .vgpus
            .iter()
            .map(|id| VirtualGpu::find(root, id))
            .collect::<Result<Vec<_>, Fault>>()?;
        let host = nodes(root);
        let of_cards = cards.iter().map(|(_, node)| *node);
        let wanted: Vec<u32> = of_cards
            .chain(vgpus.iter().map(|vgpu| vgpu.numa))
            .flatten()
            .collect();
        let pinning = pin(&host, &wanted, request.vcpus)?;
        let parts = pinning.nodes.len() as u64;
        let unit = request.pages.bytes() * parts;
        if request.memory.0 == 0 || !request.memory.0.is_multiple_of(unit) {
            return Err(Fault::new(
                Code::Usage,
                format!(
                    "{} of memory is no multiple of the page size on {parts} node{}",
                    request.memory,
                    if parts == 1 { "" } else { "s" }
                ),
            )
            .hint("choose a multiple, or --pages 2MiB"));
        }
        let bars = cards
            .iter()
            .flat_map(|(functions, _)| functions)
            .flat_map(|function| &function.bars)
            .fold(0_u64, |total, size| total.saturating_add(*size));
        let place = |node: Option<u32>| {
            let at = pinning.nodes.iter().position(|known| Some(*known) == node);
            at.unwrap_or(0)
        };
        let cards = cards
            .into_iter()
            .map(|(functions, node)| Card {
                node: place(node),
                functions,
            })
            .collect();
        let vgpus = vgpus
            .into_iter()
            .map(|vgpu| VirtualGpu {
                node: place(vgpu.numa),
                ..vgpu
            })
            .collect();
        let mut known = FIRMWARE.into_iter();
        Ok(Self {
            vgpus,
            firmware: known
                .find(|firmware| root.has(firmware.code.trim_start_matches('/')))
                .unwrap_or(FIRMWARE[0]),
            request,
            cards,
            pinning,
            bars,
            is_amd: root
                .long_text("proc/cpuinfo")
                .is_some_and(|text| text.contains("AuthenticAMD")),
        })
    }

    /// Bytes of memory of each of its nodes.
    #[must_use]
    pub fn memory_of_node(&self) -> u64 {
        self.request.memory.0 / self.pinning.nodes.len().max(1) as u64
    }

    /// Its processors of one of its nodes.
    #[must_use]
    pub fn vcpus_of_node(&self, node: usize) -> Vec<u32> {
        let all = (0..).zip(&self.pinning.vcpus);
        all.filter(|(_, (_, at))| usize::try_from(*at) == Ok(node))
            .map(|(vcpu, _)| vcpu)
            .collect()
    }

    /// Whether its nodes are told to the guest.
    #[must_use]
    pub fn has_nodes(&self) -> bool {
        self.pinning.nodes.len() > 1
    }

    /// Whether it starts by UEFI: Windows wants it, and only UEFI has room for large BARs.
    #[must_use]
    pub fn has_uefi(&self) -> bool {
        self.request.windows || self.needs_window()
    }

    /// Whether the BARs need a larger window than firmware opens by itself.
    #[must_use]
    pub fn needs_window(&self) -> bool {
        self.bars > 32 << 30
    }
}

/// The memory of a host; None for a captured one without the kernel's list.
fn memory_of(root: &Sysroot) -> Option<Bytes> {
    let text = root.text("proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(Bytes(kib.checked_mul(1024)?))
}

#[cfg(test)]
mod tests {
    use divvy_host::built::Built;

    use super::*;

    #[test]
    fn a_machine_is_no_larger_than_its_host() {
        let folder = tempfile::tempdir().expect("a folder");
        let built = Built::at(folder.path());
        built.file("proc/meminfo", "MemTotal:        8388608 kB\nMemFree: 1 kB\n");
        built.file("sys/devices/system/node/node0/cpulist", "0-3\n");
        let plan = |memory: u64| {
            let request = Request {
                name: "trainer".to_owned(),
                gpus: Vec::new(),
                vcpus: 1,
                memory: Bytes(memory),
                pages: Pages::Ordinary,
                iommufd: false,
                windows: false,
                disk: None,
                vgpus: Vec::new(),
            };
            Machine::plan(&Sysroot::at(folder.path()), request)
        };
        plan(8 << 30).expect("it fits");
        let refused = plan((8 << 30) + (2 << 20)).expect_err("it does not");
        assert!(
            refused.message.contains("does not fit a host with 8 GiB"),
            "{refused:?}"
        );
    }
}
