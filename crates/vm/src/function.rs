//! A PCI function of any class, as `/sys` shows it.

use divvy_host::machine::Sysroot;
use divvy_model::{Code, Fault};
use serde::Serialize;

/// Where PCI functions are, below the root.
pub const DEVICES: &str = "sys/bus/pci/devices";

/// What a function is for, as far as handing it over is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A display controller or an accelerator.
    Gpu,
    /// The sound of a GPU's monitors, or a sound card.
    Audio,
    /// A USB controller.
    Usb,
    /// A serial bus, such as the controller of a GPU's USB-C port.
    Serial,
    /// A network card.
    Network,
    /// A disk's controller.
    Storage,
    /// A bridge, which stays with the host.
    Bridge,
    /// An NVSwitch.
    Switch,
    /// Anything else.
    Other,
}

impl Kind {
    /// What people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => "GPU",
            Self::Audio => "audio",
            Self::Usb => "USB",
            Self::Serial => "serial bus",
            Self::Network => "network card",
            Self::Storage => "disk controller",
            Self::Bridge => "bridge",
            Self::Switch => "NVSwitch",
            Self::Other => "device",
        }
    }
}

/// A function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// `0000:65:00.0`.
    pub address: String,
    /// 24 bits: `0x030200`.
    pub class: u32,
    /// `10de`.
    pub vendor: u16,
    /// `2330`.
    pub device: u16,
    /// The bound driver.
    pub driver: Option<String>,
    /// IOMMU group.
    pub group: Option<u32>,
    /// NUMA node.
    pub numa: Option<u32>,
    /// CPUs near it, `0-23,96-119`.
    pub cpus: Option<String>,
    /// How the kernel can reset it; None where the kernel does not say.
    pub resets: Option<Vec<String>>,
    /// Sizes of its BARs in bytes, 0 where there is none.
    pub bars: Vec<u64>,
    /// Whether the firmware shows its messages on it.
    pub boot_display: bool,
    /// `pci:v000010DEd00002330sv…`.
    pub modalias: Option<String>,
}

/// Reads an address as people write it: `65:00.0` is in domain 0. What comes out has no other letters than an address.
///
/// # Errors
/// [`Code::Usage`] for what is no address.
pub fn address(text: &str) -> Result<String, Fault> {
    let wrong = || {
        Fault::new(
            Code::Usage,
            format!("`{}` is no PCI address", text.escape_debug()),
        )
        .hint("an address is like 0000:65:00.0; `divvy vm status` lists those of GPUs")
    };
    let lower = text.to_ascii_lowercase();
    let (place, number) = lower.rsplit_once('.').ok_or_else(wrong)?;
    let parts: Vec<&str> = place.split(':').collect();
    let (domain, bus, slot) = match parts[..] {
        [bus, slot] => ("0000", bus, slot),
        [domain, bus, slot] => (domain, bus, slot),
        _ => return Err(wrong()),
    };
    let hex = |text: &str, least: usize, most: usize| {
        (least..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let number_is_right = number.len() == 1 && matches!(number.as_bytes()[0], b'0'..=b'7');
    match hex(domain, 4, 8) && hex(bus, 2, 2) && hex(slot, 2, 2) && number_is_right {
        true => Ok(format!("{domain}:{bus}:{slot}.{number}")),
        false => Err(wrong()),
    }
}

/// The addresses that name something in a folder. Other names are none of the kernel's: a captured tree may have quotes and
/// commas there, for the texts that addresses are put into.
pub(crate) fn addresses(root: &Sysroot, folder: &str) -> Vec<String> {
    let mut names = root.names(folder);
    names.retain(|name| address(name).as_deref() == Ok(name));
    names
}

impl Function {
    /// Reads one; None where there is none of this address, or it is going away.
    #[must_use]
    pub fn read(root: &Sysroot, address: &str) -> Option<Self> {
        let at = |file: &str| format!("{DEVICES}/{address}/{file}");
        let class = root.number::<u32>(&at("class"))?;
        let resets = root.read(&at("reset_method")).ok().flatten();
        Some(Self {
            address: address.to_owned(),
            class,
            vendor: root.number(&at("vendor"))?,
            device: root.number(&at("device"))?,
            driver: root.link(&at("driver")),
            group: root.link(&at("iommu_group")).and_then(|group| group.parse().ok()),
            numa: root.number(&at("numa_node")),
            cpus: root.text(&at("local_cpulist")),
            resets: resets.map(|text| text.split_whitespace().map(str::to_owned).collect()),
            bars: root
                .text(&at("resource"))
                .map_or_else(Vec::new, |text| bars(&text)),
            boot_display: root.text(&at("boot_vga")).as_deref() == Some("1"),
            modalias: root.text(&at("modalias")),
        })
    }

    /// The only driver that may bind it. No list asks for it: the kernel answers under the device's lock, and holds that for as
    /// long as a machine keeps a card that is to go.
    #[must_use]
    pub fn driver_override(&self, root: &Sysroot) -> Option<String> {
        let path = format!("{DEVICES}/{}/driver_override", self.address);
        root.text(&path).filter(|text| text != "(null)")
    }

    /// Every function of this machine, by address.
    #[must_use]
    pub fn all(root: &Sysroot) -> Vec<Self> {
        let names = addresses(root, DEVICES);
        names.iter().filter_map(|name| Self::read(root, name)).collect()
    }

    /// What it is for.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match (self.class >> 16, (self.class >> 8) & 0xff) {
            (0x03 | 0x12, _) => Kind::Gpu,
            (0x04, 0x01 | 0x03) => Kind::Audio,
            (0x0c, 0x03) => Kind::Usb,
            (0x0c, _) => Kind::Serial,
            (0x02, _) => Kind::Network,
            (0x01, _) => Kind::Storage,
            (0x06, 0x80) if self.vendor == 0x10de => Kind::Switch,
            (0x06, 0x00 | 0x01 | 0x04) => Kind::Bridge,
            _ => Kind::Other,
        }
    }

    /// Whether one of VFIO's drivers is bound to it.
    #[must_use]
    pub fn is_on_vfio(&self) -> bool {
        self.driver.as_deref().is_some_and(is_vfio)
    }

    /// The address without its function's number: functions with the same one are one card.
    #[must_use]
    pub fn slot(&self) -> &str {
        self.address.split('.').next().unwrap_or_default()
    }

    /// `10de:2330`.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{:04x}:{:04x}", self.vendor, self.device)
    }

    /// `GPU 10de:2330`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} {}", self.kind().name(), self.id())
    }
}

/// Whether a driver's name is one of VFIO's: `vfio-pci`, `nvgrace_gpu_vfio_pci`, `mlx5_vfio_pci`.
#[must_use]
pub fn is_vfio(driver: &str) -> bool {
    driver.replace('-', "_").contains("vfio_pci")
}

/// The sizes of the six BARs in a function's `resource`: a line each of begin, end and flags.
fn bars(text: &str) -> Vec<u64> {
    let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    let size = |line: &str| {
        let mut words = line.split_whitespace();
        let (begin, end, flags) = (
            number(words.next()?)?,
            number(words.next()?)?,
            number(words.next()?)?,
        );
        (flags != 0 && end >= begin).then(|| (end - begin).saturating_add(1))
    };
    text.lines().take(6).map(|line| size(line).unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them_and_nothing_else_passes() {
        assert_eq!(address("65:00.0").expect("one"), "0000:65:00.0");
        assert_eq!(address("0001:AF:1f.7").expect("one"), "0001:af:1f.7");
        assert_eq!(address("10000:e1:00.0").expect("one"), "10000:e1:00.0");
        for text in [
            "",
            "0",
            "65:00",
            "65:00.8",
            "../..:00.0",
            "0000:65:00.0/..",
            "x:y.0",
            "65:0.0",
            "-1:00.0",
        ] {
            assert_eq!(address(text).expect_err(text).code, Code::Usage, "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_no_function() {
        let folder = tempfile::tempdir().expect("a folder");
        let built = divvy_host::built::Built::at(folder.path());
        for name in [
            "0000:01:00.0",
            "0000:01:00.0,file=x",
            "0000:02:00.0\"}",
            "0000:0A:00.0",
            "x",
        ] {
            for file in ["class", "vendor", "device"] {
                built.file(&format!("{DEVICES}/{name}/{file}"), "0x030000\n");
            }
            let vendor = format!("{DEVICES}/{name}/vendor");
            built.file(&vendor, "0x10de\n");
            built.file(&format!("{DEVICES}/{name}/device"), "0x2330\n");
            built.link(&format!("{}/7/devices/{name}", crate::group::GROUPS), "x");
        }
        let root = Sysroot::at(folder.path());
        let found = |functions: Vec<Function>| -> Vec<String> {
            functions.into_iter().map(|function| function.address).collect()
        };
        assert_eq!(found(Function::all(&root)), ["0000:01:00.0"]);
        assert_eq!(
            found(crate::group::Group::read(&root, 7).functions),
            ["0000:01:00.0"]
        );
    }

    #[test]
    fn bars_are_sizes() {
        let text = "0x00000000a1000000 0x00000000a1ffffff 0x0000000000040200\n\
                    0x0000038000000000 0x0000039fffffffff 0x000000000014220c\n\
                    0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
        assert_eq!(bars(text), [16 << 20, 128 << 30, 0]);
        assert_eq!(bars("broken\n"), [0]);
    }
}
