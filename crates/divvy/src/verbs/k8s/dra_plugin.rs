//! `divvy k8s dra-plugin`: the DRA driver of a node.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use divvy_container::cdi;
use divvy_kube::bites::Bites;
use divvy_kube::device_plugin::left::Left;
use divvy_kube::health::Watch;
use divvy_kube::kept::Host;
use divvy_kube::live::Live;
use divvy_kube::node::Node;
use divvy_kube::order::Prefer;
use divvy_kube::pods::Pods;
use divvy_kube::publish::Publisher;
use divvy_kube::rivals::rivals;
use divvy_kube::server::{Folders, serve};
use divvy_kube::split::Split;
use divvy_kube::state::State;
use divvy_model::{Code, Fault, SliceRecord};

use super::host::ThisNode;
use super::podlist::{PodList, cdi_name};
use crate::context::Context;
use crate::report::{line, remark};

/// Flags of `divvy k8s dra-plugin`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy k8s dra-plugin
  divvy k8s dra-plugin --node worker-1 --kubelet-dir /var/lib/k0s/kubelet
  divvy k8s dra-plugin --device GPU-5a7c --device GPU-91f0 --whole GPU-91f0
  KUBECONFIG=/etc/kubernetes/admin.conf divvy k8s dra-plugin --node worker-1

It runs as root beside the node's agent. Without KUBECONFIG it has the rights of its pod's service account.")]
pub struct Args {
    /// This node's name in the cluster [default: NODE_NAME, else the host's name]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// The kubelet's root directory
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// What all claims of one device may have of its time together, in percent; more than 100 overcommits it
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u64).range(100..=10_000))]
    overcommit_cores: u64,
    /// Only these devices, by UUID or its beginning; others are another driver's [default: all]
    #[arg(long, value_name = "UUID")]
    device: Vec<String>,
    /// Give these devices out whole only, by UUID or its beginning
    #[arg(long, value_name = "UUID")]
    whole: Vec<String>,
    /// Give these devices out in shares only, by UUID or its beginning
    #[arg(long, value_name = "UUID")]
    shared: Vec<String>,
    /// Which of a node's devices the scheduler tries first: by index, the fullest (binpack) or the emptiest (spread)
    #[arg(long, value_name = "ORDER", value_enum, default_value_t = Preferred::Index)]
    prefer: Preferred,
    /// Where CDI files go: a directory that the container runtime reads
    #[arg(long, value_name = "DIR", default_value = cdi::DYNAMIC)]
    cdi_directory: PathBuf,
}

/// Which devices come first in the node's pool.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Preferred {
    Index,
    Binpack,
    Spread,
}

impl From<Preferred> for Prefer {
    fn from(preferred: Preferred) -> Self {
        match preferred {
            Preferred::Index => Self::Index,
            Preferred::Binpack => Self::Binpack,
            Preferred::Spread => Self::Spread,
        }
    }
}

/// How often it looks whether devices have come or gone.
const LOOK: Duration = Duration::from_secs(10);
/// After so many looks, an hour, it asks whether another driver publishes its devices too.
const RIVALS: u64 = 360;
/// After so many looks it compares its claims with the API server's.
const SWEEP: u64 = 6;

/// Serves the kubelet.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let name = node_name(args.node.as_deref())?;
    let split = Split::new(&args.device, &args.whole, &args.shared)?;
    let folders = Folders::find(&args.kubelet_dir)?;
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
            let (name, most_cores) = (name.clone(), args.overcommit_cores);
            let open = move || Node::open(&name, host, cluster, state, most_cores);
            let opened = tokio::task::spawn_blocking(open).await;
            let opened =
                opened.map_err(|error| Fault::new(Code::Internal, "cannot start").because(&error))??;
            Arc::new(opened.splitting(split.clone()))
        };
        let published = node.clone();
        let (watch, reports) = Watch::new();
        let pods = PodList {
            socket: folders.pod_resources(),
            runtime: tokio::runtime::Handle::current(),
        };
        let (most_cores, prefer) = (args.overcommit_cores, Prefer::from(args.prefer));
        let mut earlier = Earlier {
            left: Left::new(folders.allocations()),
            context: context.clone(),
            directory: args.cdi_directory.clone(),
        };
        std::thread::spawn(move || {
            let publisher = Publisher::new(published.cluster(), published.name(), most_cores);
            look(
                &published,
                publisher.preferring(prefer).splitting(split.clone()),
                &split,
                watch,
                &pods,
                &mut earlier,
            );
        });
        let ended = ended()?;
        serve(&folders, node, reports, line, Arc::new(remark), ended).await
    });
    // Calls to the agent may be under way: the next driver finds what they leave.
    runtime.shutdown_background();
    served.map(|()| 0)
}

/// This node's name: as it was given, as NODE_NAME has it, or the host's.
///
/// # Errors
/// [`Code::Usage`] for what is no name.
pub(super) fn node_name(given: Option<&str>) -> Result<String, Fault> {
    let named = given
        .map(str::to_owned)
        .or_else(|| std::env::var("NODE_NAME").ok());
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

/// Slices of a device plugin that served this node before.
struct Earlier {
    left: Left,
    context: Context,
    directory: PathBuf,
}

impl Earlier {
    /// Ends what no pod has any more; what failed.
    fn sweep(&mut self, pods: &Pods) -> Vec<Fault> {
        let host = || Box::new(ThisNode::new(self.context.clone(), self.directory.clone())) as Box<dyn Host>;
        let (ended, failed) = self.left.sweep(host, pods);
        for slice in ended {
            remark(&format!(
                "ended slice {slice} of the device plugin that served this node: no pod has it"
            ));
        }
        failed
    }
}

/// Looks at devices, claims and slices for ever. What goes wrong is said once, until it changes.
fn look(
    node: &Node,
    mut publisher: Publisher<'_>,
    split: &Split,
    mut watch: Watch,
    pods: &PodList,
    earlier: &mut Earlier,
) {
    let (mut bites, mut rivals_due) = (Bites::default(), 0);
    let (mut said, mut trouble) = (Said::default(), Said::default());
    let (mut misnamed, mut rivalling) = (Said::default(), Said::default());
    for turn in 0_u64.. {
        let devices = node.devices();
        if let Ok(devices) = &devices {
            misnamed.say(lines(&split.unmatched(devices)));
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let now = now.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0));
            watch.note(node.name(), devices, now);
            if turn >= rivals_due
                && let Ok(slices) = node.cluster().slices_of_all(node.name())
            {
                rivals_due = turn + RIVALS;
                rivalling.say(lines(&rivals(&slices, devices, split)));
            }
        }
        let done = devices.and_then(|devices| {
            let published = publisher.publish_if_due(&devices);
            published.map_err(|refusal| {
                let why = refusal.to_string();
                // As etcd says it, through the API server.
                let is_full = why.contains("database space exceeded");
                let fault = Fault::new(Code::Cluster, "this node's devices cannot be published").cause(why);
                match is_full {
                    true => fault.hint(
                        "etcd is full: compact and defragment it, or raise its quota, and disarm its alarm; claims \
                         that are allocated are prepared meanwhile",
                    ),
                    false => fault,
                }
            })
        });
        said.say(match done {
            Err(fault) => line(&fault),
            Ok(published) => {
                let fallback = published
                    .fallback
                    .map_or_else(String::new, |words| format!(": {words}"));
                format!("published generation {}{fallback}", published.generation)
            }
        });
        let listed = pods.ask();
        if turn % SWEEP == SWEEP - 1 {
            let (done, failed) = node.reconcile(listed.as_ref().map(|pods| &pods.claims));
            for claim in done {
                remark(&format!(
                    "took claim {}/{} back: no pod has it",
                    claim.namespace, claim.name
                ));
            }
            let aside = node.set_aside().unwrap_or_default();
            let aside = aside
                .iter()
                .map(|uid| format!("the record of claim {uid} is damaged and set aside"));
            let left = listed
                .as_ref()
                .map(|pods| earlier.sweep(pods))
                .unwrap_or_default();
            let all: Vec<String> = failed.iter().chain(&left).map(line).chain(aside).collect();
            trouble.say(all.join("; "));
        }
        if let (Ok(slices), Some(pods)) = (node.slices(), &listed) {
            tell(node, &mut bites, &slices, pods);
        }
        std::thread::sleep(LOOK);
    }
}

/// Events on the pods whose limits have bitten since the last look.
fn tell(node: &Node, bites: &mut Bites, slices: &[SliceRecord], pods: &Pods) {
    let own = rustix::process::geteuid().as_raw();
    for (slice, bite) in bites.since(slices) {
        // Its command says whose it is, and any user may write such a command.
        if slice.uid != own {
            continue;
        }
        for container in pods.of_slice(&cdi_name(slice), &slice.command) {
            // An event that is lost is no reason to stop: the counters stay.
            let _told = bite.tell(node.cluster(), node.name(), &container);
        }
    }
}

/// Failures in one line for the log.
pub(super) fn lines(faults: &[Fault]) -> String {
    faults.iter().map(line).collect::<Vec<_>>().join("; ")
}

/// Words for the log that are not repeated.
#[derive(Default)]
pub(super) struct Said(String);

impl Said {
    pub(super) fn say(&mut self, words: String) {
        if words != self.0 {
            if !words.is_empty() {
                remark(&words);
            }
            self.0 = words;
        }
    }
}

/// Ends when this process is told to.
pub(super) fn ended() -> Result<impl Future<Output = ()>, Fault> {
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
