//! `divvy k8s plan`: where claims would go, without a cluster.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use divvy_model::{Bytes, Code, Fault};
use divvy_placement::plan::{Options, Plan, plan};
use divvy_placement::read::{LARGEST, read};

use crate::context::Context;
use crate::output;

/// Flags of `divvy k8s plan`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  kubectl get nodes,deviceclasses,resourceslices,resourceclaims,pods -A -o json | divvy k8s plan -
  divvy k8s plan cluster.json new-claims.yaml
  divvy k8s plan cluster.json -o json

A small file plans a cluster that is not there yet:
  format: divvy/plan
  nodes: [{name: worker, count: 100, gpus: 8, memory: 80Gi}]
  claims: [{name: notebook, count: 900, memory: 20Gi, cores: 25}, {name: train, count: 40, whole: true}]

Nothing is asked of a cluster, and nothing is changed there.")]
pub struct Args {
    /// Files with what `kubectl get -o json` prints, or small files; `-` is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// What decides between equal nodes; the scheduler leaves it to chance
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Do not look for orders and partitions that would place more
    #[arg(long)]
    only: bool,
}

/// Plans. The status is 1 where some have no place.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let mut left = LARGEST;
    let mut files = Vec::new();
    for path in &args.files {
        let file = text(path, left)?;
        left = left.saturating_sub(file.1.len() as u64);
        files.push(file);
    }
    let cluster = read(&files).map_err(|error| {
        Fault::new(Code::Usage, "the cluster's files are not understood")
            .cause(error)
            .hint(
                "`kubectl get nodes,deviceclasses,resourceslices,resourceclaims,pods -A -o json` prints one",
            )
    })?;
    let plan = plan(
        &cluster,
        Options {
            seed: args.seed,
            try_others: !args.only,
        },
    );
    let status = u8::from(plan.placed < plan.asked);
    if !output::document(context.format, "K8sPlan", &plan)? {
        output::print(&words(&plan))?;
    }
    Ok(status)
}

/// A file's name and text, which may have so many bytes.
fn text(path: &Path, most: u64) -> Result<(String, String), Fault> {
    let name = path.display().to_string();
    // One byte more tells that it is larger.
    let whole = |file: &mut dyn Read| {
        let mut text = String::new();
        file.take(most.saturating_add(1))
            .read_to_string(&mut text)
            .map(|_| text)
    };
    let read = match name.as_str() {
        "-" => whole(&mut std::io::stdin().lock()),
        _ => File::open(path).and_then(|mut file| whole(&mut file)),
    };
    if read.as_ref().is_ok_and(|text| text.len() as u64 > most) {
        let message = format!("`{name}` is too large: a plan reads {} at most", Bytes(LARGEST));
        return Err(Fault::new(Code::Usage, message).hint(
            "ask for what counts only: `kubectl get nodes,deviceclasses,resourceslices,resourceclaims,pods`",
        ));
    }
    let read = read.map_err(|error| {
        Fault::new(Code::Usage, format!("`{name}` cannot be read"))
            .because(&error)
            .hint("give files of JSON or YAML; `-` is standard input")
    });
    read.map(|text| (name, text))
}

fn words(plan: &Plan) -> String {
    let plain = |text: &str| text.replace(char::is_control, "?");
    let mut lines = vec![format!(
        "{} of {} have a place on {} nodes with {} devices.",
        plan.placed, plan.asked, plan.nodes, plan.devices
    )];
    for pending in &plan.pending {
        let why = match pending.reason.as_str() {
            "devices" => "no node has their devices free",
            "resources" => "no node has as much left of the extended resources that they ask for",
            "node" => "no node takes them, or none has processors, memory or pods left",
            _ => "they name their node, so no scheduler allocates their claims",
        };
        let examples: Vec<String> = pending.examples.iter().map(|name| plain(name)).collect();
        lines.push(format!(
            "{} wait: {why} ({} …)",
            pending.count,
            examples.join(", ")
        ));
    }
    let left = &plan.fragmentation;
    lines.push(String::new());
    lines.push(format!(
        "Left: {} free devices, {} with slices, {} given out whole.",
        left.free_devices, left.shared_devices, left.whole_devices
    ));
    lines.push(format!(
        "Free memory: {}, the largest on one device {}; {} % of it is beside slices, and {} cannot be used: its devices have no \
         cores or slots left.",
        Bytes(left.free_memory_bytes),
        Bytes(left.largest_free_memory_bytes),
        left.broken_percent,
        Bytes(left.stranded_memory_bytes)
    ));
    lines.push(format!(
        "Free cores: {} %, of which {} % are on devices without memory or slots.",
        left.free_cores_percent, left.stranded_cores_percent
    ));
    if !plan.alternatives.is_empty() {
        lines.push(String::new());
        let better = plan.alternatives.iter().filter(|one| one.more > 0);
        let better: Vec<String> = better
            .map(|one| format!("{:+} if you {}", one.more, one.how))
            .collect();
        match better.is_empty() {
            true => lines.push("No other order and no partition places more.".into()),
            false => lines.extend(better),
        }
    }
    lines.extend(
        plan.remarks
            .iter()
            .map(|remark| format!("Note: {}", plain(remark))),
    );
    lines.join("\n")
}
