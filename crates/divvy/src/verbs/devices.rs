//! `divvy devices`: what this machine has.

use std::path::PathBuf;

use divvy_model::{Bytes, DeviceKind, DeviceRecord, Fault, Hardware, PcieLink};

use crate::context::Context;
use crate::output;
use crate::report::remark;
use crate::table::Table;

/// Flags of `divvy devices`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy devices
  divvy devices -o json
  divvy devices --sysroot ./captured -o wide
  DIVVY_EMULATED=h100*2 divvy devices")]
pub struct Args {
    /// Print only the UUIDs
    #[arg(short, long)]
    quiet: bool,
    /// Look at the machine captured below this folder (its `sys` and `proc`) in the place of this one
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
}

/// Lists them. An agent that runs knows more of each; none is started.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let survey = context.survey(args.sysroot.as_deref())?;
    let mut devices = survey.devices;
    let own = args.sysroot.is_none();
    let agent = context.agent_if_any().filter(|_| own);
    if let Some(told) = agent.and_then(|agent| agent.devices().ok()) {
        for device in &mut devices {
            if let Some(known) = told.body.items.iter().find(|known| known.uuid == device.uuid) {
                device.memory_used_bytes = known.memory_used_bytes;
                device.sharing.clone_from(&known.sharing);
            }
        }
    }
    if own {
        warn(&devices);
    }
    for note in survey.machine.notes {
        remark(&note);
    }
    let format = if args.quiet {
        output::Format::Name
    } else {
        context.format
    };
    output::list(format, "DeviceList", devices, |device| &device.uuid, table)?;
    Ok(0)
}

pub fn table(devices: &[DeviceRecord], wide: bool) -> Table {
    let mut columns = vec![
        ("INDEX", true),
        ("NAME", false),
        ("UUID", false),
        ("MEMORY", true),
        ("USED", true),
        ("FREE TO SLICES", true),
        ("SLICES", true),
    ];
    if wide {
        columns.extend([
            ("PCI ADDRESS", false),
            ("SMS", true),
            ("CAPABILITY", true),
            ("PROMISED", true),
            ("OVERHEAD", true),
            ("DRIVER", false),
            ("NUMA", true),
            ("LINK", false),
            ("GROUP", true),
            ("STATE", false),
        ]);
    }
    let mut table = Table::new(columns).without(&["USED", "SLICES", "UUID"]);
    for device in devices {
        let sharing = device.sharing.as_ref();
        let told = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        let mut row = vec![
            device.index.to_string(),
            marked(&device.name, device.kind == DeviceKind::Emulated),
            device.uuid.clone(),
            told(
                Some(device.memory_total_bytes)
                    .filter(|bytes| *bytes > Bytes(0))
                    .map(|bytes| bytes.to_string()),
            ),
            device.memory_used_bytes.to_string(),
            told(sharing.map(|sharing| sharing.memory_free_bytes.to_string())),
            sharing.map_or(0, |sharing| sharing.slice_count).to_string(),
        ];
        if wide {
            row.extend([
                device.pci_address.clone(),
                told(
                    Some(device.sm_count)
                        .filter(|count| *count > 0)
                        .map(|count| count.to_string()),
                ),
                told(Some(device.compute_capability.clone()).filter(|text| !text.is_empty())),
                told(sharing.map(|sharing| sharing.memory_promised_bytes.to_string())),
                told(sharing.map(|sharing| sharing.memory_overhead_bytes.to_string())),
            ]);
            let facts = device.hardware.as_deref();
            row.extend([
                told(facts.and_then(|facts| facts.driver.clone())),
                told(
                    facts
                        .and_then(|facts| facts.numa_node)
                        .map(|node| node.to_string()),
                ),
                told(facts.and_then(|facts| facts.pcie.as_ref()).map(link)),
                told(
                    facts
                        .and_then(|facts| facts.iommu_group)
                        .map(|group| group.to_string()),
                ),
                state(facts),
            ]);
        }
        table.row(row);
    }
    table
}

/// A device's name; of an emulated one it is said that programs run on the CPU there.
pub fn marked(name: &str, emulated: bool) -> String {
    match emulated {
        true => format!("{name} [emulated]"),
        false => name.to_owned(),
    }
}

/// `gen5 x16`, and what it could be where that is more.
fn link(link: &PcieLink) -> String {
    let (now, most) = (
        PcieLink::generation(link.megatransfers),
        PcieLink::generation(link.megatransfers_max),
    );
    let shown = format!("gen{now} x{}", link.width);
    match (now < most, link.width < link.width_max) {
        (false, false) => shown,
        _ => format!("{shown} of gen{most} x{}", link.width_max),
    }
}

/// How it is divided and what is wrong with it.
fn state(facts: Option<&Hardware>) -> String {
    let Some(facts) = facts else { return "-".into() };
    let mut words: Vec<String> = facts.health.clone();
    if let Some(partition) = &facts.partition {
        words.push(format!("{}/{}", partition.compute, partition.memory));
    }
    if facts.mig_mode == Some(true) {
        words.push("MIG".into());
    }
    if facts.mps == Some(true) {
        words.push("MPS".into());
    }
    if words.is_empty() {
        "-".into()
    } else {
        words.join(", ")
    }
}

/// What CUDA programs started from this shell would see differently.
fn warn(devices: &[DeviceRecord]) {
    if let Ok(visible) = std::env::var("CUDA_VISIBLE_DEVICES") {
        let shown: Vec<&str> = visible.split(',').map(str::trim).collect();
        let hidden = devices.iter().filter(|device| {
            !shown.iter().any(|word| {
                *word == device.index.to_string() || (word.len() > 4 && device.uuid.starts_with(word))
            })
        });
        let hidden = hidden.count();
        if hidden > 0 {
            remark(&format!(
                "CUDA_VISIBLE_DEVICES={visible} hides {hidden} of these devices from CUDA programs of this shell"
            ));
        }
    }
    let order = std::env::var("CUDA_DEVICE_ORDER").unwrap_or_default();
    if devices.len() > 1 && !order.is_empty() && order != "PCI_BUS_ID" {
        remark(&format!(
            "CUDA_DEVICE_ORDER={order}: CUDA programs of this shell number the devices otherwise"
        ));
    }
}
