//! `divvy k8s`: slices for pods.

mod device_plugin;
mod dra_plugin;
mod extender;
mod grant_key;
mod host;
mod metrics;
mod migrate;
mod plan;
mod podlist;
mod serving;
mod top;
mod webhook;

use std::ffi::OsString;
use std::path::PathBuf;

use divvy_model::Fault;

use crate::context::Context;

/// Flags of `divvy k8s`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy k8s dra-plugin
  divvy k8s device-plugin --config config.yaml
  divvy k8s top
  NODE_NAME=worker-1 divvy k8s dra-plugin --kubelet-dir /var/lib/k0s/kubelet
  divvy k8s plan cluster.json
  divvy k8s migrate pod.yaml")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

/// The verbs.
#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Serve this node's kubelet as the DRA driver gpu.divvy.dev, and publish this node's devices
    DraPlugin(dra_plugin::Args),
    /// Serve this node's kubelet as a device plugin, with NVIDIA's configuration file: for clusters before 1.34
    DevicePlugin(device_plugin::Args),
    /// Print figures of this node's slices with their pods' names, for Prometheus
    Metrics(metrics::Args),
    /// List this node's slices with the pods that have them
    Top(top::Args),
    /// Show where claims would go, what is left over, and what would place more; no cluster is needed
    Plan(plan::Args),
    /// Rewrite manifests of HAMi, gpushare, elastic-gpu and NVIDIA's time-slicing
    Migrate(migrate::Args),
    /// Serve the API server as a webhook that gives pods with others' names their claims
    Webhook(webhook::Args),
    /// Serve the scheduler as an extender, for clusters without DRA
    Extender(extender::Args),
    /// Make the key by which the extender signs what pods have
    GrantKey(grant_key::Args),
}

/// Does it; the exit status.
///
/// # Errors
/// Whatever stopped it.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    match &args.verb {
        Verb::DraPlugin(args) => dra_plugin::run(args, context),
        Verb::DevicePlugin(args) => device_plugin::run(args, context),
        Verb::Metrics(args) => metrics::run(args, context),
        Verb::Top(args) => top::run(args, context),
        Verb::Plan(args) => plan::run(args, context),
        Verb::Migrate(args) => migrate::run(args, context),
        Verb::Webhook(args) => webhook::run(args),
        Verb::Extender(args) => extender::run(args),
        Verb::GrantKey(args) => grant_key::run(args),
    }
}

/// The words of `kubectl divvy …`: kubectl runs a program of this name for a verb that it does not know. None where this was
/// called by another name.
pub fn words() -> Option<Vec<OsString>> {
    let mut words = std::env::args_os();
    let called = PathBuf::from(words.next()?);
    let is_plugin = called.file_name()? == "kubectl-divvy";
    is_plugin.then(|| ["divvy".into(), "k8s".into()].into_iter().chain(words).collect())
}
