//! The highest isolation level that a device reaches on this machine as it is, and the one command that opens the next
//! level.

use divvy_model::{DeviceKind, DeviceRecord, Isolation, MigProduct, Vendor};

/// The isolation levels of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The highest level that is open now.
    pub level: Isolation,
    /// The next that can be opened, and how.
    pub next: Option<(Isolation, String)>,
}

/// Where a device stands.
#[must_use]
pub fn reach(device: &DeviceRecord) -> Reach {
    let facts = device.hardware.as_deref();
    let vendor = facts.map_or(Vendor::Other, |facts| facts.vendor);
    let driver = facts.and_then(|facts| facts.driver.as_deref());
    let place = &device.pci_address;
    if driver.is_some_and(|driver| driver.starts_with("vfio")) {
        return Reach {
            level: Isolation::Vm,
            next: None,
        };
    }
    let to_vm = match facts.and_then(|facts| facts.iommu_group) {
        None => "divvy vm doctor".to_owned(),
        Some(_) => format!("divvy vm bind {place}"),
    };
    let to_vm = Some((Isolation::Vm, to_vm));
    match (device.kind, vendor) {
        (DeviceKind::Emulated, _) => Reach {
            level: Isolation::Cooperative,
            next: None,
        },
        (DeviceKind::Mig | DeviceKind::Partition, _) => Reach {
            level: Isolation::Hardware,
            next: to_vm,
        },
        (DeviceKind::Gpu, Vendor::Nvidia) if matches!(driver, None | Some("nvidia")) => Reach {
            level: Isolation::Cooperative,
            next: to_mig(device).or(to_vm),
        },
        (DeviceKind::Gpu, Vendor::Amd) if facts.is_some_and(|facts| facts.kfd_node.is_some()) => {
            let divisible = facts.is_some_and(|facts| facts.partition.is_some());
            Reach {
                level: Isolation::Env,
                next: match divisible {
                    true => Some((
                        Isolation::Hardware,
                        "divvy gpu partition set CPX/NPS4 --yes".into(),
                    )),
                    false => to_vm,
                },
            }
        }
        _ => Reach {
            level: Isolation::Env,
            next: to_vm,
        },
    }
}

/// The command that divides a GPU of a product with MIG into its smallest instances.
fn to_mig(device: &DeviceRecord) -> Option<(Isolation, String)> {
    let facts = device.hardware.as_deref()?;
    let id = facts.pci_id.as_deref()?.strip_prefix("10de:")?;
    let product = MigProduct::of_pci(u16::from_str_radix(id, 16).ok()?)?;
    let smallest = product.profiles.first()?;
    let list = vec![smallest.name; usize::from(smallest.max)].join(",");
    let command = format!(
        "divvy gpu mig apply --device {} --instances {list} --yes",
        device.index
    );
    Some((Isolation::Hardware, command))
}
