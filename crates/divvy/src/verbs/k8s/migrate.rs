//! `divvy k8s migrate`: manifests of other systems into ours.

use std::io::Read;
use std::path::{Path, PathBuf};

use divvy_kube::migrate::{migrate, replicas};
use divvy_kube::names::Terms;
use divvy_model::{Code, Fault, MemoryAmount};

use super::serving::mib;
use super::webhook::Into;
use crate::context::Context;
use crate::output;
use crate::report::remark;

/// Flags of `divvy k8s migrate`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy k8s migrate pod.yaml | kubectl apply -f -
  divvy k8s migrate --plugin-config nvidia.yaml --device-memory 80GiB deployment.yaml
  divvy k8s migrate --into extender *.yaml > migrated.yaml

Pods are found in whatever holds them. What was done is said on standard error, and nothing is asked of a cluster.")]
pub struct Args {
    /// Manifests; `-` is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// What pods get
    #[arg(long, value_enum, default_value_t)]
    into: Into,
    /// The configuration file of NVIDIA's device plugin, with its replicas
    #[arg(long, value_name = "FILE")]
    plugin_config: Option<PathBuf>,
    /// The memory of the cluster's GPUs, for pods that ask for a percentage, or for a replica
    #[arg(long, value_name = "SIZE")]
    device_memory: Option<MemoryAmount>,
    /// gpushare's memory is in MiB, as its device plugin may be told, and not in GiB
    #[arg(long)]
    gpushare_mib: bool,
    /// `nvidia.com/gpu` alone is a slice with all the memory, as HAMi has it, and not a whole device
    #[arg(long)]
    bare_gpu_is_slice: bool,
}

/// Rewrites.
pub fn run(args: &Args, _context: &Context) -> Result<u8, Fault> {
    let replicas = match &args.plugin_config {
        None => None,
        Some(path) => Some(replicas(&text(path)?).map_err(|error| refused(path, &error))?),
    };
    let terms = Terms {
        device_mib: args.device_memory.map(mib).transpose()?,
        replicas,
        gpushare_in_mib: args.gpushare_mib,
        bare_is_hami: args.bare_gpu_is_slice,
    };
    let mut all = String::new();
    for path in &args.files {
        let migrated =
            migrate(&text(path)?, &terms, args.into.target()).map_err(|error| refused(path, &error))?;
        for words in &migrated.remarks {
            remark(&format!("{}: {words}", path.display()));
        }
        if !all.is_empty() {
            all.push_str("---\n");
        }
        all.push_str(&migrated.text);
        if !all.ends_with('\n') {
            all.push('\n');
        }
    }
    output::print(&all)?;
    Ok(0)
}

fn refused(path: &Path, error: &str) -> Fault {
    Fault::new(
        Code::Usage,
        format!("`{}` cannot be migrated as it was meant", path.display()),
    )
    .cause(error)
    .hint("nothing was written; docs/kubernetes.md has the names that are understood")
}

fn text(path: &Path) -> Result<String, Fault> {
    let read = match path == Path::new("-") {
        true => {
            let mut text = String::new();
            std::io::stdin().lock().read_to_string(&mut text).map(|_| text)
        }
        false => std::fs::read_to_string(path),
    };
    read.map_err(|error| {
        Fault::new(Code::Usage, format!("`{}` cannot be read", path.display()))
            .because(&error)
            .hint("give files of YAML or JSON; `-` is standard input")
    })
}
