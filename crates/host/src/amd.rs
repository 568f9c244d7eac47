//! AMD's ways of dividing an accelerator: partitions of the whole, and masks of compute units.

use divvy_model::{Code, Compute, DeviceRecord, Fault};

use crate::machine::Sysroot;

/// A compute and a memory partition, `CPX` and `NPS4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partitioning {
    /// `SPX`, `DPX`, `QPX` or `CPX`.
    pub compute: String,
    /// `NPS1`, `NPS2` or `NPS4`.
    pub memory: String,
}

impl std::str::FromStr for Partitioning {
    type Err = Fault;

    /// `CPX/NPS4`, or `CPX` alone with the memory mode that usually goes with it.
    fn from_str(text: &str) -> Result<Self, Fault> {
        let upper = text.to_ascii_uppercase();
        let (compute, memory) = match upper.split_once('/') {
            Some((compute, memory)) => (compute.to_owned(), memory.to_owned()),
            None => {
                let usual = match upper.as_str() {
                    "DPX" => "NPS2",
                    "QPX" | "CPX" => "NPS4",
                    _ => "NPS1",
                };
                (upper.clone(), usual.to_owned())
            }
        };
        let known = matches!(compute.as_str(), "SPX" | "DPX" | "TPX" | "QPX" | "CPX")
            && matches!(memory.as_str(), "NPS1" | "NPS2" | "NPS4" | "NPS8");
        if known {
            return Ok(Self { compute, memory });
        }
        Err(Fault::new(Code::Usage, format!("`{text}` is no partition mode"))
            .hint("write SPX, DPX, QPX or CPX, and after a slash NPS1, NPS2 or NPS4: CPX/NPS4"))
    }
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The file, below the root.
    pub file: String,
    /// What is there.
    pub before: String,
    /// What is to be there.
    pub after: String,
}

/// The writes that divide every accelerator of the machine so; none where they are already.
///
/// The driver wants all of a node alike and idle, so one that is in use refuses the whole.
///
/// # Errors
/// [`Code::Partition`] where no device can be divided so; [`Code::MigBusy`] where a process uses one.
pub fn plan(root: &Sysroot, devices: &[DeviceRecord], wanted: &Partitioning) -> Result<Vec<Write>, Fault> {
    let mut writes: Vec<Write> = Vec::new();
    let mut seen = false;
    for device in devices {
        let Some(facts) = device
            .hardware
            .as_deref()
            .filter(|facts| facts.partition.is_some())
        else {
            let offers = format!(
                "sys/bus/pci/devices/{}/available_compute_partition",
                device.pci_address
            );
            if root.text(&offers).is_some() {
                let message = format!("device {} does not tell how it is divided now", device.index);
                return Err(Fault::new(Code::Partition, message)
                    .hint("all accelerators change together: look at it with `divvy devices -o wide`"));
            }
            continue;
        };
        seen = true;
        for (name, after) in [("memory", &wanted.memory), ("compute", &wanted.compute)] {
            let at = |kind: &str| {
                format!(
                    "sys/bus/pci/devices/{}/{kind}_{name}_partition",
                    device.pci_address
                )
            };
            let offered = root.text(&at("available")).unwrap_or_default();
            let known = offered.split([',', ' ']).any(|word| word.trim() == after);
            if !offered.is_empty() && !known {
                return Err(Fault::new(
                    Code::Partition,
                    format!("device {} cannot be {after}", device.index),
                )
                .hint(format!("it offers {offered}")));
            }
            let file = at("current");
            let before = root.text(&file).unwrap_or_default();
            let planned = writes.iter().any(|write| write.file == file);
            if before != *after && !planned {
                writes.push(Write {
                    file,
                    before,
                    after: after.clone(),
                });
            }
        }
        if let (Some(process), false) = (facts.processes.first(), writes.is_empty()) {
            return Err(Fault::new(
                Code::MigBusy,
                format!("process {} uses device {}", process.pid, device.index),
            )
            .hint("every accelerator of the machine must be idle: wait for it or end it"));
        }
    }
    if !seen {
        return Err(Fault::new(Code::Partition, "no device here has partition modes")
            .hint("AMD's MI300 and its kin have; `divvy devices -o wide` shows the mode"));
    }
    Ok(writes)
}

/// Makes the writes; on a refusal those made are taken back.
///
/// # Errors
/// [`Code::Privilege`], [`Code::Partition`].
pub fn write(root: &Sysroot, writes: &[Write]) -> Result<(), Fault> {
    for (at, write) in writes.iter().enumerate() {
        let Err(error) = root.write(&write.file, &write.after) else {
            continue;
        };
        let lost = writes[..at]
            .iter()
            .rev()
            .filter(|done| root.write(&done.file, &done.before).is_err());
        let lost = lost.count();
        let code = match error.kind() {
            std::io::ErrorKind::PermissionDenied => Code::Privilege,
            _ => Code::Partition,
        };
        let fault = Fault::new(
            code,
            format!("the driver refuses {} in /{}", write.after, write.file),
        )
        .because(&error);
        return Err(match lost {
            0 => fault.hint("what was written before is taken back"),
            many => fault.hint(format!("{many} earlier changes could not be taken back")),
        });
    }
    Ok(())
}

/// Variables that keep a program to a share of a device's compute units: `place` is its number among what the program
/// sees, `units` what the device has.
///
/// `HSA_CU_MASK` holds for every queue of ROCr, `ROC_GLOBAL_CU_MASK` for those of HIP and OpenCL, on every device
/// they see. Units are taken in pairs, as RDNA's work-group processors want; a share is rounded up, and never empty.
#[must_use]
pub fn unit_masks(place: usize, units: u32, share: Compute) -> Vec<(&'static str, String)> {
    let parts = u64::from(units) * u64::from(share.0);
    let wanted = u32::try_from(parts.div_ceil(10_000)).unwrap_or(units);
    let taken = wanted.next_multiple_of(2).clamp(1, units.max(1));
    let mut digits = String::new();
    let mut left = taken;
    while left > 0 {
        let nibble = left.min(4);
        digits.insert(0, char::from_digit((1 << nibble) - 1, 16).unwrap_or('f'));
        left -= nibble;
    }
    vec![
        ("HSA_CU_MASK", format!("{place}:0-{}", taken - 1)),
        ("ROC_GLOBAL_CU_MASK", format!("0x{digits}")),
    ]
}
