//! `divvy slurm`: slices for the jobs of a Slurm cluster. Slurm counts shards of devices; these verbs, which slurmd runs, hold
//! each job to them. docs/adr/0059.

mod controller;
mod epilog;
mod files;
mod former;
mod job;
mod node;
mod plugin;
mod prolog;
mod setup;
mod steps;
mod task_prolog;

use std::path::PathBuf;

use divvy_model::Fault;

use crate::context::Context;

/// Flags of `divvy slurm`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy slurm setup
  divvy slurm setup --shards 80 --apply
  divvy slurm setup --undo
  divvy slurm sweep
  srun --gres=shard:20 python train.py
  srun --gres=shard:20 --divvy-memory=4GiB --divvy-compute=10% python train.py")]
pub struct Args {
    /// The node's file, which names its devices, and which root alone may write; %n in it is the node's name
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        default_value = "/etc/divvy/slurm.toml"
    )]
    node_file: PathBuf,
    #[command(subcommand)]
    verb: Verb,
}

/// The verbs.
#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Print what Slurm's files have to say and which mistakes they have; --apply puts it there, --undo takes it away
    Setup(setup::Args),
    /// Make a job's slice: slurmd runs this as root before a job starts on the node
    Prolog,
    /// Print the variables of a job's programs: slurmstepd runs this as the job's user before each task
    TaskProlog,
    /// End a job's slice and what is left in it: slurmd runs this as root when the job has left the node
    Epilog,
    /// End the slices of jobs that are no longer on this node: slurmd runs this as root when it starts, and every minute
    Sweep,
}

impl Args {
    /// Whether slurmd or slurmstepd runs it around a job.
    pub fn is_around_a_job(&self) -> bool {
        !matches!(self.verb, Verb::Setup(_))
    }

    /// Whether slurmstepd reads what it prints.
    pub fn is_task_prolog(&self) -> bool {
        matches!(self.verb, Verb::TaskProlog)
    }
}

/// Does it; the exit status.
///
/// # Errors
/// Whatever stopped it. For a prolog that is what an administrator has to repair.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    match &args.verb {
        Verb::Setup(setup) => setup::run(setup, &args.node_file, context),
        Verb::Prolog => prolog::run(&args.node_file),
        Verb::TaskProlog => task_prolog::run(&args.node_file),
        Verb::Epilog => epilog::run(&args.node_file),
        Verb::Sweep => epilog::sweep_all(&args.node_file),
    }
}
