//! `divvy k8s`: slices for pods.

mod dra_plugin;
mod host;

use divvy_model::Fault;

use crate::context::Context;

/// Flags of `divvy k8s`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy k8s dra-plugin
  NODE_NAME=worker-1 divvy k8s dra-plugin --kubelet-dir /var/lib/k0s/kubelet")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

/// The verbs.
#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Serve this node's kubelet as the DRA driver gpu.divvy.dev, and publish this node's devices
    DraPlugin(dra_plugin::Args),
}

/// Does it; the exit status.
///
/// # Errors
/// Whatever stopped it.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    match &args.verb {
        Verb::DraPlugin(args) => dra_plugin::run(args, context),
    }
}
