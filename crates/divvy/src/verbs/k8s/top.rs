//! `divvy k8s top`: this node's slices with the pods that have them.

use std::path::{Path, PathBuf};

use divvy_kube::kept::WORD;
use divvy_kube::pods::{PodContainer, Pods};
use divvy_kube::server::Folders;
use divvy_model::{Bytes, Code, Fault, SliceRecord};
use serde::Serialize;

use super::podlist::cdi_name;
use crate::context::Context;
use crate::output;
use crate::report::{line, remark};
use crate::table::Table;

/// Flags of `divvy k8s top`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy k8s top
  divvy k8s top -o json
  kubectl divvy top                  # with a link to divvy named kubectl-divvy in PATH

The kubelet tells root which pods have which devices. Without that the claims are shown, and no pods.")]
pub struct Args {
    /// The kubelet's root directory
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
}

/// A slice of a container.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct PodSlice {
    /// The slice's name.
    pub name: String,
    /// The pod's namespace; empty where it is not known.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container.
    pub container: String,
    /// What it was asked for by: a claim as `namespace/name`, or the name of a resource.
    pub source: String,
    /// Its devices.
    pub device_uuids: Vec<String>,
    /// Its share of the first device's memory.
    pub memory_limit_bytes: Bytes,
    /// What its processes hold of it.
    pub memory_used_bytes: Bytes,
    /// Allocations that did not fit.
    pub refused_allocations: u64,
    /// Its processes, by process id.
    pub pids: Vec<u32>,
}

/// Lists them.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let items = collect(&args.kubelet_dir, context)?;
    output::list(context.format, "PodSliceList", items, |item| &item.name, table)?;
    Ok(0)
}

/// The slices that pods have, one for each container.
pub(super) fn collect(kubelet: &Path, context: &Context) -> Result<Vec<PodSlice>, Fault> {
    let slices = context.agent()?.slices()?.body.items;
    let (found, trouble) = of_slices(&slices, kubelet);
    if let Some(fault) = trouble {
        remark(&format!("pods are not shown: {}", line(&fault)));
    }
    Ok(found)
}

/// Those among these slices that pods have, and why the pods are not known where they are not.
pub(super) fn of_slices(slices: &[SliceRecord], kubelet: &Path) -> (Vec<PodSlice>, Option<Fault>) {
    let (pods, trouble) = match ask(kubelet) {
        Ok(pods) => (pods, None),
        Err(fault) => (Pods::default(), Some(fault)),
    };
    // A command says whose a slice is, and any user may write such a command.
    let own = rustix::process::geteuid().as_raw();
    let made_here = slices.iter().filter(|slice| slice.uid == own);
    (
        made_here.flat_map(|slice| of_slice(slice, &pods)).collect(),
        trouble,
    )
}

fn of_slice(slice: &SliceRecord, pods: &Pods) -> Vec<PodSlice> {
    let mut containers = pods.of_slice(&cdi_name(slice), &slice.command);
    let source = match slice.command.as_slice() {
        [word, source, ..] if word == WORD => source.clone(),
        // Another's, such as a `divvy run`'s.
        _ if containers.is_empty() => return Vec::new(),
        _ => String::new(),
    };
    if containers.is_empty() {
        containers.push(PodContainer::default());
    }
    let shares = || slice.shares.iter();
    let of = |container: PodContainer| PodSlice {
        name: slice.name.clone(),
        namespace: container.namespace,
        pod: container.pod,
        container: container.container,
        source: source.clone(),
        device_uuids: shares().map(|share| share.device_uuid.clone()).collect(),
        memory_limit_bytes: slice.shares.first.memory_limit_bytes,
        memory_used_bytes: slice.shares.first.memory_used_bytes,
        refused_allocations: shares().map(|share| share.refused_allocations).sum(),
        pids: slice.processes.iter().map(|process| process.pid).collect(),
    };
    containers.into_iter().map(of).collect()
}

fn table(items: &[PodSlice], wide: bool) -> Table {
    let mut columns = vec![
        ("NAMESPACE", false),
        ("POD", false),
        ("CONTAINER", false),
        ("SLICE", false),
        ("USED", true),
        ("LIMIT", true),
        ("REFUSED", true),
        ("PIDS", false),
    ];
    if wide {
        columns.extend([("SOURCE", false), ("DEVICES", false)]);
    }
    let mut table = Table::new(columns);
    let known = |text: &str| match text {
        "" => "-".to_owned(),
        text => text.to_owned(),
    };
    for item in items {
        let pids: Vec<String> = item.pids.iter().map(u32::to_string).collect();
        let mut row = vec![
            known(&item.namespace),
            known(&item.pod),
            known(&item.container),
            item.name.clone(),
            item.memory_used_bytes.to_string(),
            item.memory_limit_bytes.to_string(),
            item.refused_allocations.to_string(),
            known(&pids.join(",")),
        ];
        if wide {
            row.extend([known(&item.source), item.device_uuids.join(",")]);
        }
        table.row(row);
    }
    table
}

fn ask(kubelet: &Path) -> Result<Pods, Fault> {
    let folders = Folders::find(kubelet)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Fault::new(Code::Internal, "cannot make a loop").because(&error))?;
    runtime.block_on(Pods::ask(&folders.pod_resources()))
}
