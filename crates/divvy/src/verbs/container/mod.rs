//! `divvy container`: slices for containers, by an engine's command line, by CDI, by a runtime or by a plugin of one.

pub mod attend;
pub mod cdi;
pub mod engine;
pub mod given;
pub mod nri;
pub mod oci_runtime;
pub mod runtime;

use clap::Subcommand;
use divvy_container::engine::Engine;
use divvy_model::Fault;

use crate::context::Context;

/// Flags of `divvy container`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy container run --memory 4GiB image python train.py
  divvy container podman run --memory 4GiB -it --rm image bash
  divvy container cdi generate
  divvy container runtime configure --engine docker")]
pub struct Args {
    #[command(subcommand)]
    pub verb: Grouped,
}

/// What `divvy container` takes.
#[derive(Debug, Subcommand)]
pub enum Grouped {
    /// Run a container in a slice of its own, with the engine that is installed: podman, or else docker
    #[command(before_help = engine::RUN, after_help = engine::AFTER)]
    Run(engine::Args),
    /// All others.
    #[command(flatten)]
    Other(Verb),
}

impl Grouped {
    /// Whether the exit status follows the rules of `run`.
    pub fn is_run(&self) -> bool {
        match self {
            Self::Run(_) => true,
            Self::Other(verb) => verb.is_run(),
        }
    }
}

/// The verbs of containers that can be given without `container` too.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run a container in a slice of its own, with podman
    #[command(before_help = engine::PODMAN, after_help = engine::AFTER)]
    Podman(engine::Args),
    /// Run a container in a slice of its own, with docker
    #[command(before_help = engine::DOCKER, after_help = engine::AFTER)]
    Docker(engine::Args),
    /// Let container engines give out devices and slices
    Cdi(cdi::Args),
    /// Tell container engines of the runtime
    Runtime(runtime::Args),
    /// Be the OCI runtime of an engine that knows no CDI
    OciRuntime(oci_runtime::Args),
    /// Be a plugin of containerd or CRI-O, which asks it of each container that it makes
    Nri(nri::Args),
}

impl Verb {
    /// Whether the exit status follows the rules of `run`.
    pub fn is_run(&self) -> bool {
        matches!(self, Self::Podman(_) | Self::Docker(_))
    }
}

/// Does what `divvy container` was given.
///
/// # Errors
/// Whatever stopped it.
pub fn run_grouped(verb: &Grouped, context: &Context) -> Result<u8, Fault> {
    match verb {
        Grouped::Run(args) => engine::run_with_any(args, context),
        Grouped::Other(verb) => run(verb, context),
    }
}

/// Does it.
///
/// # Errors
/// Whatever stopped it.
pub fn run(verb: &Verb, context: &Context) -> Result<u8, Fault> {
    match verb {
        Verb::Podman(args) => engine::run(Engine::Podman, args, context),
        Verb::Docker(args) => engine::run(Engine::Docker, args, context),
        Verb::Cdi(args) => cdi::run(args, context),
        Verb::Runtime(args) => runtime::run(args, context),
        Verb::OciRuntime(args) => oci_runtime::run(args, context),
        Verb::Nri(args) => nri::run(args, context),
    }
}
