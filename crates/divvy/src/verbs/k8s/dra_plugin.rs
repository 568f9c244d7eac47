//! `divvy k8s dra-plugin`: the DRA driver of a node.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use divvy_container::cdi;
use divvy_kube::live::Live;
use divvy_kube::node::Node;
use divvy_kube::publish::Publisher;
use divvy_kube::server::{Folders, serve};
use divvy_kube::state::State;
use divvy_model::{Code, Fault};

use super::host::ThisNode;
use crate::context::Context;
use crate::report::{line, remark};

/// Flags of `divvy k8s dra-plugin`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy k8s dra-plugin
  divvy k8s dra-plugin --node worker-1 --kubelet-dir /var/lib/k0s/kubelet
  KUBECONFIG=/etc/kubernetes/admin.conf divvy k8s dra-plugin --node worker-1

It runs as root beside the node's agent. Without KUBECONFIG it has the rights of its pod's service account.")]
pub struct Args {
    /// This node's name in the cluster [default: NODE_NAME, else the host's name]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// The kubelet's root directory
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// Where CDI files go: a directory that the container runtime reads
    #[arg(long, value_name = "DIR", default_value = cdi::DYNAMIC)]
    cdi_directory: PathBuf,
}

/// How often it looks whether devices have come or gone.
const LOOK: Duration = Duration::from_secs(10);

/// Serves the kubelet.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let name = name(args)?;
    let folders = Folders::of(&args.kubelet_dir);
    // An unusable setting is better reported now than by the first pod.
    drop(context.agent()?);
    let state = State::open(&folders.claims())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Fault::new(Code::Internal, "cannot make a loop").because(&error))?;
    let served = runtime.block_on(async {
        let cluster = Box::new(Live::find().await?);
        let host = Box::new(ThisNode::new(context.clone(), args.cdi_directory.clone()));
        let node = {
            let name = name.clone();
            let open = move || Node::open(&name, host, cluster, state);
            let opened = tokio::task::spawn_blocking(open).await;
            Arc::new(opened.map_err(|error| Fault::new(Code::Internal, "cannot start").because(&error))??)
        };
        let published = node.clone();
        std::thread::spawn(move || publish(&published));
        let ended = ended()?;
        serve(&folders, node, line, Arc::new(remark), ended).await
    });
    // Calls to the agent may be under way: the next driver finds what they leave.
    runtime.shutdown_background();
    served.map(|()| 0)
}

fn name(args: &Args) -> Result<String, Fault> {
    let named = args.node.clone().or_else(|| std::env::var("NODE_NAME").ok());
    let name = match named {
        Some(name) => name,
        None => std::fs::read_to_string("/proc/sys/kernel/hostname")
            .map(|name| name.trim().to_ascii_lowercase())
            .unwrap_or_default(),
    };
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    match (1..=253).contains(&name.len()) && name.bytes().all(plain) {
        true => Ok(name),
        false => Err(Fault::new(Code::Usage, format!("`{name}` is no node's name"))
            .hint("`kubectl get nodes` lists them; `--node NAME` or NODE_NAME says which this is")),
    }
}

/// Publishes for ever. What goes wrong is said once, until it changes.
fn publish(node: &Node) {
    let mut publisher = Publisher::new(node.cluster(), node.name());
    let mut said = String::new();
    loop {
        let done = node.devices().and_then(|devices| {
            let published = publisher.publish(&devices);
            published.map_err(|refusal| {
                Fault::new(Code::Cluster, "this node's devices cannot be published")
                    .cause(refusal.to_string())
            })
        });
        let words = match done {
            Err(fault) => line(&fault),
            Ok(published) => {
                let fallback = published
                    .fallback
                    .map_or_else(String::new, |words| format!(": {words}"));
                format!("published generation {}{fallback}", published.generation)
            }
        };
        if words != said {
            remark(&words);
            said = words;
        }
        std::thread::sleep(LOOK);
    }
}

/// Ends when this process is told to.
pub fn ended() -> Result<impl Future<Output = ()>, Fault> {
    use tokio::signal::unix::{SignalKind, signal};
    let listen = |kind| {
        signal(kind).map_err(|error| Fault::new(Code::Internal, "cannot listen for signals").because(&error))
    };
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
