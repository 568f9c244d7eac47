//! `divvy k8s device-plugin`: slices behind the resources of NVIDIA's device plugin, for clusters before DRA.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use divvy_container::cdi;
use divvy_kube::device_plugin::allocate::Allocator;
use divvy_kube::device_plugin::config::{self, Config};
use divvy_kube::device_plugin::granted::{Granted, ThisCluster, counted};
use divvy_kube::device_plugin::prefer::Choice;
use divvy_kube::device_plugin::resources::{resources, unmatched};
use divvy_kube::device_plugin::serve::{Terms, serve};
use divvy_kube::grants::Believed;
use divvy_kube::live::Live;
use divvy_kube::server::Folders;
use divvy_kube::split::Split;
use divvy_kube::state::State;
use divvy_model::{Code, DeviceRecord, Fault};

use super::dra_plugin::{Said, ended, lines, node_name};
use super::host::ThisNode;
use super::podlist::PodList;
use crate::context::Context;
use crate::report::{line, remark};

/// Flags of `divvy k8s device-plugin`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy k8s device-plugin --config config.yaml
  divvy k8s device-plugin --config config.yaml --allocation packed
  divvy k8s device-plugin --config config.yaml --device GPU-5a7c --device GPU-91f0
  divvy k8s device-plugin --grant-key grant.pub

The file is that of NVIDIA's plugin. Each replica is a slice: its part of the device's memory and time. With --grant-key it serves
divvy.dev/gpu instead: slices of pods that `divvy k8s extender` placed.")]
pub struct Args {
    /// NVIDIA's configuration file, version v1 [default: each device is given out whole]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Which replicas a container had better get
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Allocation::Distinct)]
    allocation: Allocation,
    /// Serve divvy.dev/gpu: slices of pods whose grants these keys have signed (PEM, by `divvy k8s grant-key`)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "allocation"])]
    grant_key: Option<PathBuf>,
    /// This node's name in the cluster, for --grant-key [default: NODE_NAME, else the host's name]
    #[arg(long, value_name = "NAME", requires = "grant_key")]
    node: Option<String>,
    /// Only these devices, by UUID or its beginning; others are another plugin's [default: all]
    #[arg(long, value_name = "UUID")]
    device: Vec<String>,
    /// The kubelet's root directory
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// Where CDI files go: a directory that the container runtime reads
    #[arg(long, value_name = "DIR", default_value = cdi::DYNAMIC)]
    cdi_directory: PathBuf,
}

/// Which replicas a container had better get.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Allocation {
    /// Of different devices, the emptiest first
    Distinct,
    /// Of one device, the fullest that has enough
    Packed,
}

/// How often it looks whether devices have come or gone.
const LOOK: Duration = Duration::from_secs(10);
/// After so many looks it tells the node's devices again.
const TELL: u64 = 30;
/// After so many looks it compares its allocations with the kubelet's pods.
const SWEEP: u64 = 6;

/// Serves the kubelet.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let config = match &args.config {
        Some(path) => read(path)?,
        None => Config::default(),
    };
    if !config.passed_over.is_empty() {
        remark(&format!(
            "passed over in the configuration: {}",
            config.passed_over.join(", ")
        ));
    }
    let split = Split::new(&args.device, &[], &[])?;
    // What is wrong with it is said at once.
    args.grant_key.as_deref().map(Believed::read).transpose()?;
    let folders = Folders::find(&args.kubelet_dir)?;
    let folder = folders.device_plugins();
    alone(&folder)?;
    drop(context.agent()?);
    let state = State::open(&folders.allocations())?;
    let host = Box::new(ThisNode::new(context.clone(), args.cdi_directory.clone()));
    let allocator = Arc::new(Allocator::open(host, state)?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Fault::new(Code::Internal, "cannot make a loop").because(&error))?;
    let granted = match args.grant_key.clone() {
        None => None,
        Some(keys) => {
            let node = node_name(args.node.as_deref())?;
            let around = ThisCluster::new(runtime.block_on(Live::find())?, folders.pod_resources());
            let believed = Box::new(move || Believed::read(&keys));
            let granted = Granted::new(allocator.clone(), Box::new(around), node, believed);
            Some(Arc::new(granted))
        }
    };
    let mut looks = Looks {
        allocator: allocator.clone(),
        granted: granted.clone(),
        config,
        split,
        told: None,
    };
    looks.look()?;
    let terms = Terms {
        choice: match args.allocation {
            Allocation::Distinct => Choice::Distinct,
            Allocation::Packed => Choice::Packed,
        },
        annotations: looks.config.annotations,
        granted,
        line,
        log: Arc::new(remark),
    };
    let pods = PodList {
        socket: folders.pod_resources(),
        runtime: runtime.handle().clone(),
    };
    std::thread::spawn(move || looks.watch(&pods));
    let served = runtime.block_on(async { serve(&folder, allocator, terms, ended()?).await });
    // Calls to the agent may be under way: the next plugin finds what they leave.
    runtime.shutdown_background();
    served.map(|()| 0)
}

fn read(path: &Path) -> Result<Config, Fault> {
    let cannot = |error: &std::io::Error| {
        Fault::new(Code::Config, format!("cannot read `{}`", path.display()))
            .because(error)
            .hint("`--config` takes NVIDIA's configuration file, version v1")
    };
    let facts = std::fs::metadata(path).map_err(|error| cannot(&error))?;
    if !facts.is_file() || facts.len() > config::LARGEST {
        let message = format!("`{}` is no file of a configuration's size", path.display());
        return Err(Fault::new(Code::Config, message).hint("`--config` takes the file, not its folder"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| cannot(&error))?;
    Config::read(&text)
}

/// Refuses to run beside NVIDIA's plugin, which has the same resources: a kubelet takes the last that registers.
fn alone(folder: &Path) -> Result<(), Fault> {
    let entries = std::fs::read_dir(folder).map_err(|error| {
        Fault::new(Code::Kubelet, format!("cannot read `{}`", folder.display()))
            .because(&error)
            .hint("a kubelet makes this folder when it starts, there also where its `--root-dir` is another")
    })?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name
            .to_str()
            .filter(|name| name.starts_with("nvidia-") && name.ends_with(".sock"))
        else {
            continue;
        };
        // A plugin that is gone leaves its file.
        if std::os::unix::net::UnixStream::connect(entry.path()).is_ok() {
            return Err(Fault::new(Code::Kubelet, format!("NVIDIA's device plugin serves this node (`{name}`)"))
                .hint("keep it off this node (label and nodeAffinity), or give its GPUs to it alone and use DRA here"));
        }
    }
    Ok(())
}

/// Looks at devices and pods.
struct Looks {
    allocator: Arc<Allocator>,
    granted: Option<Arc<Granted>>,
    config: Config,
    split: Split,
    /// What the node's annotation was told last.
    told: Option<String>,
}

impl Looks {
    /// Looks at the devices once; the devices, and names that are of none of them.
    fn look(&self) -> Result<(Vec<DeviceRecord>, Vec<Fault>), Fault> {
        let mut devices = self.allocator.devices()?;
        let mut names = self.split.unmatched(&devices);
        devices.retain(|device| self.split.has(device));
        let found = match &self.granted {
            Some(_) => vec![counted(&devices)],
            None => {
                names.extend(unmatched(&devices, &self.config)?);
                resources(&devices, &self.config)?
            }
        };
        self.allocator.set(found);
        Ok((devices, names))
    }

    /// Looks for ever. What goes wrong is said once, until it changes.
    fn watch(&mut self, pods: &PodList) {
        let (mut said, mut trouble) = (Said::default(), Said::default());
        let mut misnamed = Said::default();
        for turn in 0_u64.. {
            if turn % TELL == 0 {
                // Whatever others wrote there meanwhile.
                self.told = None;
            }
            let looked = self.look().and_then(|(devices, names)| {
                misnamed.say(lines(&names));
                match &self.granted {
                    Some(granted) => granted.announce(&devices, &mut self.told),
                    None => Ok(()),
                }
            });
            said.say(looked.err().as_ref().map(line).unwrap_or_default());
            let mut failed = self.allocator.restore();
            if let Some(pods) = pods.ask().filter(|_| turn % SWEEP == SWEEP - 1) {
                let (done, more) = self.allocator.sweep(&pods);
                for slice in done {
                    remark(&format!("ended slice {slice}: no pod has it"));
                }
                failed.extend(more);
            }
            trouble.say(failed.iter().map(line).collect::<Vec<_>>().join("; "));
            std::thread::sleep(LOOK);
        }
    }
}
