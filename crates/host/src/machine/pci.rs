//! Display controllers and accelerators as PCI shows them.

use divvy_model::{Hardware, PcieLink, Vendor};

use super::Sysroot;

const DEVICES: &str = "sys/bus/pci/devices";

/// A display or accelerator function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciFunction {
    /// `0000:65:00.0`.
    pub address: String,
    /// Who made it.
    pub vendor: Vendor,
    /// `10de:2330`.
    pub pci_id: String,
    /// `0302`.
    pub class: String,
    /// The bound driver.
    pub driver: Option<String>,
    /// Where it hangs: the PCI addresses from the root complex down to itself.
    pub path: Vec<String>,
    /// What PCI knows of it.
    pub(super) facts: Hardware,
}

impl PciFunction {
    /// What PCI knows of it.
    #[must_use]
    pub fn hardware(&self) -> Hardware {
        self.facts.clone()
    }
}

/// Every function of class 03 (display) or 12 (accelerator), by address.
pub fn functions(root: &Sysroot, notes: &mut Vec<String>) -> Vec<PciFunction> {
    let addresses = root.names(DEVICES);
    addresses
        .iter()
        .filter_map(|address| function(root, address, notes))
        .collect()
}

fn function(root: &Sysroot, address: &str, notes: &mut Vec<String>) -> Option<PciFunction> {
    let at = |file: &str| format!("{DEVICES}/{address}/{file}");
    let class = match root.read(&at("class")) {
        Ok(Some(class)) => class,
        Ok(None) => {
            notes.push(format!(
                "{address}: PCI lists it and tells nothing of it: it is going away"
            ));
            return None;
        }
        Err(error) => {
            notes.push(format!("{address}: its class cannot be read: {error}"));
            return None;
        }
    };
    let class = class.trim_start_matches("0x").get(..4)?.to_owned();
    if !class.starts_with("03") && class != "1200" {
        return None;
    }
    let id = |file: &str| root.number::<u32>(&at(file));
    let (Some(vendor), Some(device)) = (id("vendor"), id("device")) else {
        notes.push(format!(
            "{address}: a display function whose vendor cannot be read"
        ));
        return None;
    };
    let vendor_kind = Vendor::of_pci(u16::try_from(vendor).unwrap_or(0));
    let pci_id = format!("{vendor:04x}:{device:04x}");
    let mut facts = Hardware {
        vendor: vendor_kind,
        pci_id: Some(pci_id.clone()),
        pci_class: Some(class.clone()),
        driver: root.link(&at("driver")),
        // The kernel writes -1 where there is no NUMA.
        numa_node: root.number(&at("numa_node")),
        cpu_list: root.text(&at("local_cpulist")),
        pcie: link(root, address),
        iommu_group: root.link(&at("iommu_group")).and_then(|group| group.parse().ok()),
        boot_display: root.text(&at("boot_vga")).as_deref() == Some("1"),
        ..Hardware::default()
    };
    let path = path(root, address);
    facts.pcie_root = path.first().filter(|first| first.starts_with("pci")).cloned();
    if let Some(group) = facts.iommu_group {
        facts.iommu_peers = peers(root, group, address);
    }
    if vendor == 0xffff || root.text(&at("current_link_speed")).as_deref() == Some("Unknown") {
        facts
            .health
            .push("it does not answer on the bus: it fell off, or is switched off".into());
    }
    if let Some(errors) = fatal_errors(root, address).filter(|errors| *errors > 0) {
        facts.health.push(format!("{errors} fatal PCIe errors"));
    }
    Some(PciFunction {
        address: address.to_owned(),
        vendor: vendor_kind,
        pci_id,
        class,
        driver: facts.driver.clone(),
        path,
        facts,
    })
}

fn link(root: &Sysroot, address: &str) -> Option<PcieLink> {
    let width = |file: &str| root.number(&format!("{DEVICES}/{address}/{file}"));
    let rate = |file: &str| {
        let text = root.text(&format!("{DEVICES}/{address}/{file}"))?;
        // `32.0 GT/s PCIe`, of older kernels `8 GT/s`.
        let giga: f64 = text.split(' ').next()?.parse().ok()?;
        (giga.is_finite() && (0.0..=1000.0).contains(&giga)).then_some(())?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "in 0..=1000000"
        )]
        let mega = (giga * 1000.0).round() as u32;
        Some(mega)
    };
    Some(PcieLink {
        width: width("current_link_width")?,
        width_max: width("max_link_width").unwrap_or(0),
        megatransfers: rate("current_link_speed").unwrap_or(0),
        megatransfers_max: rate("max_link_speed").unwrap_or(0),
    })
}

/// Other functions of an IOMMU group. Bridges share a group and do not matter.
fn peers(root: &Sysroot, group: u32, own: &str) -> Vec<String> {
    let names = root.names(&format!("sys/kernel/iommu_groups/{group}/devices"));
    names
        .into_iter()
        .filter(|name| name != own)
        .filter(|name| {
            let class = root.text(&format!("{DEVICES}/{name}/class")).unwrap_or_default();
            !class.trim_start_matches("0x").starts_with("0604")
        })
        .collect()
}

fn fatal_errors(root: &Sysroot, address: &str) -> Option<u64> {
    let text = root.text(&format!("{DEVICES}/{address}/aer_dev_fatal"))?;
    let total = text
        .lines()
        .find_map(|line| line.strip_prefix("TOTAL_ERR_FATAL "))?;
    total.trim().parse().ok()
}

/// The addresses along `../../../devices/pci0000:60/0000:60:01.0/0000:61:00.0`.
fn path(root: &Sysroot, address: &str) -> Vec<String> {
    let target = root.target(&format!("{DEVICES}/{address}")).unwrap_or_default();
    let mut path: Vec<String> = target
        .split('/')
        .filter(|part| part.starts_with("pci") || is_address(part))
        .map(str::to_owned)
        .collect();
    if path.is_empty() {
        path.push(address.to_owned());
    }
    path
}

fn is_address(text: &str) -> bool {
    text.len() >= 12 && text.matches(':').count() == 2 && text.contains('.')
}
