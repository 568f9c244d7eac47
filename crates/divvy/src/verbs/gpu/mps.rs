//! `divvy gpu mps`: NVIDIA's MPS daemons, one for each device and user, and time slices.

use clap::Subcommand;
use divvy_host::EmulatedTools;
use divvy_host::mps::{ClientLimits, Mps, TimeSlice, set_time_slice};
use divvy_host::tool::{HostTools, Tools};
use divvy_model::{Bytes, Compute, DeviceKind, Fault, Selector};
use serde::Serialize;

use crate::context::Context;
use crate::flags::{parse, word};
use crate::output;

/// Flags of `divvy gpu mps`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy gpu mps start --device 0
  divvy gpu mps limit --device 0 --compute 30% --memory 4GiB
  divvy gpu mps status --device 0
  divvy gpu mps stop --device 0
  divvy gpu mps timeslice long --device 0")]
pub struct Args {
    /// The device: index, UUID or unique prefix, PCI address
    #[arg(long, value_name = "SEL", value_parser = parse::<Selector>, global = true, default_value = "0")]
    device: Selector,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start the device's daemon
    Start {
        /// For static partitions of multiprocessors
        #[arg(long)]
        partitioned: bool,
    },
    /// Tell whether it runs, its clients, and the variables that clients need
    Status,
    /// Limit the clients that come after this
    Limit {
        /// Share of the multiprocessors
        #[arg(long, value_name = "SHARE", value_parser = parse::<Compute>)]
        compute: Option<Compute>,
        /// Device memory
        #[arg(long, value_name = "SIZE", value_parser = parse::<Bytes>)]
        memory: Option<Bytes>,
    },
    /// Set multiprocessors apart, by chunks; prints the partition's name
    Partition {
        /// How many chunks
        #[arg(value_name = "CHUNKS", value_parser = clap::value_parser!(u32).range(1..=64))]
        chunks: u32,
    },
    /// Give a static partition back
    Unpartition {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// End the daemon
    Stop {
        /// Though clients run
        #[arg(long)]
        force: bool,
    },
    /// Set how long a process keeps a GPU that several share without MPS: default, short, medium or long
    Timeslice {
        /// The length
        #[arg(value_name = "LENGTH", value_parser = word::<TimeSlice>)]
        length: TimeSlice,
    },
}

#[derive(Serialize)]
struct Status {
    device: String,
    running: bool,
    servers: Vec<u32>,
    clients: Vec<u32>,
    environment: std::collections::BTreeMap<&'static str, String>,
}

/// Starts, asks, limits or ends a daemon.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let device = args.device.choose(&context.inventory()?.devices)?.clone();
    let run_dir = context.peek().path().to_owned();
    let mps = Mps::of(&device.uuid, &run_dir);
    let (mut real, mut emulated) = (HostTools::default(), EmulatedTools::of(&run_dir));
    let tools: &mut dyn Tools = match device.kind {
        DeviceKind::Emulated => &mut emulated,
        DeviceKind::Gpu | DeviceKind::Mig | DeviceKind::Partition => &mut real,
    };
    match &args.verb {
        Verb::Start { partitioned } => {
            context.run_dir()?;
            mps.start(tools, *partitioned)?;
            output::print(&format!("started the MPS daemon of {}", device.uuid))?;
        }
        Verb::Limit { compute, memory } => {
            let limits = ClientLimits {
                compute: *compute,
                memory: *memory,
            };
            mps.limit(tools, limits)?;
            output::print(&format!(
                "limited the clients of {} that come from now on",
                device.uuid
            ))?;
        }
        Verb::Partition { chunks } => output::print(&mps.add_partition(tools, *chunks)?)?,
        Verb::Unpartition { name } => {
            mps.remove_partition(tools, name)?;
            output::print(&format!("removed the partition {name}"))?;
        }
        Verb::Stop { force } => {
            mps.stop(tools, *force)?;
            output::print(&format!("ended the MPS daemon of {}", device.uuid))?;
        }
        Verb::Timeslice { length } => {
            set_time_slice(tools, &device.uuid, *length)?;
            output::print(&format!("set the time slice of {}", device.uuid))?;
        }
        Verb::Status => {
            let state = mps.state(tools)?;
            let status = Status {
                device: device.uuid,
                running: state.running,
                servers: state.servers,
                clients: state.clients,
                environment: mps.environment().into_iter().collect(),
            };
            if output::document(context.format, "MpsStatus", &status)? {
                return Ok(0);
            }
            let mut text = format!(
                "{} {}\n",
                status.device,
                if status.running { "running" } else { "not running" }
            );
            for client in &status.clients {
                text.push_str(&format!("client process {client}\n"));
            }
            for (name, value) in &status.environment {
                text.push_str(&format!("{name}={value}\n"));
            }
            output::print(&text)?;
        }
    }
    Ok(0)
}
