//! `divvy gpu`: the devices themselves, and what divides them.

pub mod mig;
pub mod mps;
pub mod partition;
pub mod topology;
pub mod vgpu;

use clap::Subcommand;
use divvy_model::Fault;

use crate::context::Context;
use crate::verbs::container::cdi;

/// Flags of `divvy gpu`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy gpu topology
  divvy gpu mig list
  divvy gpu mps start --device 0
  divvy gpu partition list
  divvy gpu vgpu list")]
pub struct Args {
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs of devices. Each can be given without `gpu` too.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Show where the devices sit and how far they are from one another
    Topology(topology::Args),
    /// Divide devices into MIG instances
    Mig(mig::Args),
    /// Look after NVIDIA's MPS daemons and time slices
    Mps(mps::Args),
    /// Divide AMD's accelerators into partitions
    Partition(partition::Args),
    /// Make and free virtual GPUs for virtual machines
    Vgpu(vgpu::Args),
}

/// Does it. Dividing a device changes the names that container engines give out.
///
/// # Errors
/// Whatever stopped it.
pub fn run(verb: &Verb, context: &Context) -> Result<u8, Fault> {
    let (outcome, divides) = match verb {
        Verb::Topology(args) => (topology::run(args, context), false),
        Verb::Mig(args) => (mig::run(args, context), args.changes()),
        Verb::Mps(args) => (mps::run(args, context), false),
        Verb::Partition(args) => (partition::run(args, context), args.changes()),
        Verb::Vgpu(args) => (vgpu::run(args, context), false),
    };
    if divides {
        cdi::refresh(context);
    }
    outcome
}
