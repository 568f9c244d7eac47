//! `divvy gpu topology`: where the devices sit, and how far they are from one another.

use std::path::PathBuf;

use divvy_host::machine::Sysroot;
use divvy_host::{Link, links};
use divvy_model::Fault;
use serde::Serialize;

use crate::context::Context;
use crate::output;
use crate::report::remark;
use crate::table::Table;

/// Flags of `divvy gpu topology`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy gpu topology
  divvy gpu topology --sysroot ./captured -o json")]
pub struct Args {
    /// Look at the machine captured below this folder (its `sys` and `proc`) in the place of this one
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
}

/// A device, its place, and its links to every device in order.
#[derive(Serialize)]
struct Place {
    index: u32,
    uuid: String,
    pci_address: String,
    numa_node: Option<u32>,
    cpu_list: Option<String>,
    /// Active NVLinks of the device.
    nvlinks: usize,
    links: Vec<Link>,
}

/// Shows a row for each device.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let survey = context.survey(args.sysroot.as_deref())?;
    let root = args.sysroot.as_ref().map_or_else(Sysroot::default, Sysroot::at);
    let links = links(&root, &survey.machine, &survey.nvlinks, &survey.devices);
    for note in &survey.machine.notes {
        remark(note);
    }
    let places = survey.devices.into_iter().zip(links).map(|(device, links)| {
        let facts = device.hardware.as_deref();
        Place {
            index: device.index,
            numa_node: facts.and_then(|facts| facts.numa_node),
            cpu_list: facts.and_then(|facts| facts.cpu_list.clone()),
            nvlinks: survey.nvlinks.get(&device.uuid).map_or(0, Vec::len),
            uuid: device.uuid,
            pci_address: device.pci_address,
            links,
        }
    });
    output::list(
        context.format,
        "Topology",
        places.collect(),
        |place| &place.uuid,
        table,
    )?;
    Ok(0)
}

/// Columns for at most this many devices have a name.
const NAMES: [&str; 16] = [
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15",
];

fn table(places: &[Place], wide: bool) -> Table {
    let mut columns = vec![
        ("INDEX", true),
        ("PCI ADDRESS", false),
        ("NUMA", true),
        ("CPUS", false),
    ];
    if wide {
        columns.push(("UUID", false));
    }
    // A matrix of 64 partitions is not readable: JSON has it.
    let shown = places.len().min(NAMES.len());
    columns.extend(NAMES[..shown].iter().map(|name| (*name, false)));
    let mut table = Table::new(columns);
    for place in places {
        let mut row = vec![
            place.index.to_string(),
            place.pci_address.clone(),
            place
                .numa_node
                .map_or_else(|| "-".into(), |node| node.to_string()),
            place.cpu_list.clone().unwrap_or_else(|| "-".into()),
        ];
        if wide {
            row.push(place.uuid.clone());
        }
        row.extend(place.links[..shown].iter().map(Link::to_string));
        table.row(row);
    }
    table
}
