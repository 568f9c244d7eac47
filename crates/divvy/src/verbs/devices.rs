//! `divvy devices`: what this machine has.

use divvy_model::{DeviceRecord, Fault};

use crate::context::Context;
use crate::output;
use crate::report::remark;
use crate::table::Table;

/// Flags of `divvy devices`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy devices
  divvy devices -o json
  DIVVY_EMULATED=h100*2 divvy devices")]
pub struct Args {
    /// Print only the UUIDs
    #[arg(short, long)]
    quiet: bool,
}

/// Lists them. An agent that runs knows more of each; none is started.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let mut devices = context.inventory()?.devices;
    if let Some(told) = context.agent_if_any().and_then(|agent| agent.devices().ok()) {
        for device in &mut devices {
            if let Some(known) = told.body.items.iter().find(|known| known.uuid == device.uuid) {
                device.memory_used_bytes = known.memory_used_bytes;
                device.sharing.clone_from(&known.sharing);
            }
        }
    }
    warn(&devices);
    let format = if args.quiet {
        output::Format::Name
    } else {
        context.format
    };
    output::list(format, "DeviceList", devices, |device| &device.uuid, table)?;
    Ok(0)
}

fn table(devices: &[DeviceRecord], wide: bool) -> Table {
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
        ]);
    }
    let mut table = Table::new(columns);
    for device in devices {
        let sharing = device.sharing.as_ref();
        let told = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        let mut row = vec![
            device.index.to_string(),
            device.name.clone(),
            device.uuid.clone(),
            device.memory_total_bytes.to_string(),
            device.memory_used_bytes.to_string(),
            told(sharing.map(|sharing| sharing.memory_free_bytes.to_string())),
            sharing.map_or(0, |sharing| sharing.slice_count).to_string(),
        ];
        if wide {
            row.extend([
                device.pci_address.clone(),
                device.sm_count.to_string(),
                device.compute_capability.clone(),
                told(sharing.map(|sharing| sharing.memory_promised_bytes.to_string())),
            ]);
        }
        table.row(row);
    }
    table
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
