//! The grammar: every verb and its flags.

use clap::{Parser, Subcommand};
use divvy_container::engine::Engine;
use divvy_model::Fault;

use crate::context::Context;
use crate::env;
use crate::output::Format;
use crate::verbs::{
    agent, attend, cdi, completions, config, devices, doctor, engine, enter, environment, events, explain,
    inspect, keep, kill, man, mig, mps, nri, oci_runtime, partition, ps, resize, run, runtime, selftest,
    slice, top, topology, vgpu,
};

const EXAMPLES: &str = "\
Examples:
  divvy run --memory 4GiB -- python train.py
  divvy run --memory 4GiB --compute 30% -- python train.py
  divvy run --memory 50% --device emulated:h100 -- ./saxpy
  divvy podman run --memory 4GiB image python train.py
  divvy ps
  divvy resize train --memory 8GiB
  divvy doctor";

/// Divvy divides a GPU among programs and keeps each inside its slice
#[derive(Debug, Parser)]
#[command(
    name = "divvy",
    version,
    before_help = EXAMPLES,
    after_long_help = env::help(),
    disable_help_subcommand = false,
    max_term_width = 100,
    propagate_version = true
)]
pub struct Cli {
    /// How lists are printed
    #[arg(short = 'o', long, global = true, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
    /// The run directory of the agent to talk to
    #[arg(long, global = true, value_name = "DIR", hide_short_help = true)]
    pub run_dir: Option<std::path::PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run a program in a slice of a device
    Run(run::Args),
    /// List the devices of this machine
    Devices(devices::Args),
    /// Show where the devices sit and how far they are from one another
    Topology(topology::Args),
    /// Choose the devices that programs are shown, and explain what they see
    Env(environment::Args),
    /// Divide devices into MIG instances
    Mig(mig::Args),
    /// Look after NVIDIA's MPS daemons and time slices
    Mps(mps::Args),
    /// Divide AMD's accelerators into partitions
    Partition(partition::Args),
    /// Make and free virtual GPUs for guests
    Vgpu(vgpu::Args),
    /// Let container engines give out devices and slices
    Cdi(cdi::Args),
    /// Run a container in a slice of its own, with podman
    #[command(before_help = engine::PODMAN, after_help = engine::AFTER)]
    Podman(engine::Args),
    /// Run a container in a slice of its own, with docker
    #[command(before_help = engine::DOCKER, after_help = engine::AFTER)]
    Docker(engine::Args),
    /// Be the OCI runtime of an engine that knows no CDI
    OciRuntime(oci_runtime::Args),
    /// Be a plugin of containerd or CRI-O, which asks it of each container that it makes
    Nri(nri::Args),
    /// Tell container engines of the runtime
    Runtime(runtime::Args),
    /// List the slices
    Ps(ps::Args),
    /// Show who uses the devices, against what each was promised, again and again
    Top(top::Args),
    /// Tell what happens to slices and devices
    Events(events::Args),
    /// Make, list and delete slices that stay while nothing runs in them
    Slice(slice::Args),
    /// Show everything about slices
    Inspect(inspect::Args),
    /// Change the memory or the compute of a running slice
    Resize(resize::Args),
    /// End slices and the programs in them
    Kill(kill::Args),
    /// Check that this machine can run programs in slices
    Doctor(doctor::Args),
    /// Look after the agent
    Agent(agent::Args),
    /// Show the settings and where each comes from
    Config(config::Args),
    /// Explain an error's code
    Explain(explain::Args),
    /// Print a shell's completions
    Completions(completions::Args),
    /// Become a program inside a slice
    #[command(hide = true)]
    Enter(enter::Args),
    /// Show which of Divvy's promises hold on this machine, in two minutes
    Selftest(selftest::Args),
    /// Keep a lasting slice
    #[command(hide = true)]
    Keep(keep::Args),
    /// End a container's slice when the container has ended
    #[command(hide = true)]
    Attend(attend::Args),
    /// Write the manual pages
    #[command(hide = true)]
    Man(man::Args),
}

impl Verb {
    /// Whether the exit status follows the rules of `run`.
    pub fn is_run(&self) -> bool {
        matches!(
            self,
            Self::Run(_) | Self::Enter(_) | Self::Podman(_) | Self::Docker(_)
        )
    }

    /// Does it; the exit status.
    ///
    /// # Errors
    /// Whatever stopped it.
    pub fn run(&self, context: &Context) -> Result<u8, Fault> {
        let outcome = self.perform(context);
        let divides = match self {
            Self::Mig(args) => args.changes(),
            Self::Partition(args) => args.changes(),
            _ => false,
        };
        if divides {
            cdi::refresh(context);
        }
        outcome
    }

    fn perform(&self, context: &Context) -> Result<u8, Fault> {
        match self {
            Self::Run(args) => run::run(args, context),
            Self::Devices(args) => devices::run(args, context),
            Self::Topology(args) => topology::run(args, context),
            Self::Mig(args) => mig::run(args, context),
            Self::Mps(args) => mps::run(args, context),
            Self::Partition(args) => partition::run(args, context),
            Self::Vgpu(args) => vgpu::run(args, context),
            Self::Env(args) => environment::run(args, context),
            Self::Cdi(args) => cdi::run(args, context),
            Self::Podman(args) => engine::run(Engine::Podman, args, context),
            Self::Docker(args) => engine::run(Engine::Docker, args, context),
            Self::OciRuntime(args) => oci_runtime::run(args, context),
            Self::Nri(args) => nri::run(args, context),
            Self::Runtime(args) => runtime::run(args, context),
            Self::Attend(args) => attend::run(args, context),
            Self::Ps(args) => ps::run(args, context),
            Self::Top(args) => top::run(args, context),
            Self::Events(args) => events::run(args, context),
            Self::Slice(args) => slice::run(args, context),
            Self::Selftest(args) => selftest::run(args),
            Self::Keep(args) => keep::run(args, context),
            Self::Inspect(args) => inspect::run(args, context),
            Self::Resize(args) => resize::run(args, context),
            Self::Kill(args) => kill::run(args, context),
            Self::Doctor(args) => doctor::run(args, context),
            Self::Agent(args) => agent::run(args, context),
            Self::Config(args) => config::run(args, context),
            Self::Explain(args) => explain::run(args, context),
            Self::Completions(args) => completions::run(args),
            Self::Enter(args) => enter::run(args),
            Self::Man(args) => man::run(args),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_consistent() {
        Cli::command().debug_assert();
    }
}
