//! Slices of pods that the extender placed. The kubelet only counts `divvy.dev/gpu`: which devices a pod has stands in its grants,
//! which the extender signed.
//!
//! Allocate tells no pod, so it only names the CDI device. Before a container starts the kubelet asks PreStartContainer, and by
//! then lists which container has the ids. The slice is made there, and the container's runtime finds its CDI device afterwards.

use std::path::PathBuf;
use std::sync::Arc;

use divvy_model::{Bytes, Code, Compute, DeviceRecord, Fault, MemoryAmount, SliceRequest};
use divvy_placement::fallback::{Gpu, Grant};
use k8s_openapi::api::core::v1::Pod;

use super::allocate::{Allocator, slice_name};
use super::resources::{Part, Resource, id};
use crate::claim::{Allocated, refused};
use crate::cluster::{Cluster, Refusal};
use crate::devices::{ailments, given_slots, is_offered};
use crate::extender::objects::DEVICES;
use crate::grants::Believed;
use crate::kept::SLICE_KIND;
use crate::live::Live;
use crate::pods::{PodContainer, Pods};
use crate::state::{Prepared, Record};

/// The resource that pods for the extender ask for.
pub const RESOURCE: &str = "divvy.dev/gpu";

/// What is asked of kubelet and API server, so that tests have them of their own. Calls block.
///
/// # Errors
/// Every method: why there is no answer.
#[expect(clippy::missing_errors_doc, reason = "said once, above")]
pub trait Around: Send + Sync {
    /// The kubelet's list of pods.
    fn pods(&self) -> Result<Pods, Fault>;
    /// A pod as the API server has it.
    fn pod(&self, namespace: &str, name: &str) -> Result<Pod, Refusal>;
    /// Writes the devices of this node into the node's annotation.
    fn announce(&self, node: &str, text: &str) -> Result<(), Refusal>;
}

/// The kubelet and the API server of this node.
pub struct ThisCluster {
    live: Live,
    pod_resources: PathBuf,
}

impl ThisCluster {
    /// By this client, and the kubelet's socket that lists pods. Calls have to come from threads that are not the runtime's own.
    #[must_use]
    pub fn new(live: Live, pod_resources: PathBuf) -> Self {
        Self { live, pod_resources }
    }
}

impl Around for ThisCluster {
    fn pods(&self) -> Result<Pods, Fault> {
        self.live.runtime().block_on(Pods::ask(&self.pod_resources))
    }

    fn pod(&self, namespace: &str, name: &str) -> Result<Pod, Refusal> {
        self.live.pod(namespace, name)
    }

    fn announce(&self, node: &str, text: &str) -> Result<(), Refusal> {
        self.live.annotate_node(node, DEVICES, text)
    }
}

/// See the module.
pub struct Granted {
    allocator: Arc<Allocator>,
    around: Box<dyn Around>,
    node: String,
    believed: Box<Keys>,
}

/// The keys whose grants are believed, as they are now: a key that was taken away must not count until the next restart.
pub type Keys = dyn Fn() -> Result<Believed, Fault> + Send + Sync;

impl Granted {
    /// On this node, with grants that these keys signed. They are asked for at each start of a container.
    #[must_use]
    pub fn new(
        allocator: Arc<Allocator>,
        around: Box<dyn Around>,
        node: String,
        believed: Box<Keys>,
    ) -> Self {
        Self {
            allocator,
            around,
            node,
            believed,
        }
    }

    /// What container runtimes will call the slice of a container that has these ids. Nothing is made yet.
    ///
    /// # Errors
    /// [`Code::Claim`]: the ids are not this node's.
    pub fn named(&self, ids: &[String]) -> Result<String, Fault> {
        self.allocator.check(RESOURCE, ids)?;
        Ok(format!("{SLICE_KIND}={}", slice_name(RESOURCE, ids)))
    }

    /// Makes the slice of the container that has these ids, or finds it.
    ///
    /// # Errors
    /// [`Code::Claim`]: the container cannot be told, or its pod has no grants that count; [`Code::Cluster`] and [`Code::Kubelet`]
    /// where they do not answer; what is wrong with the keys; what the agent refuses.
    pub fn start(&self, ids: &[String]) -> Result<(), Fault> {
        let pods = self.around.pods()?;
        let whose = whose(&pods, ids)?;
        let name = format!("{}/{}", whose.namespace, whose.pod);
        let pod = self.around.pod(&whose.namespace, &whose.pod).map_err(|refusal| {
            Fault::new(Code::Cluster, format!("pod {name} cannot be read")).cause(refusal.to_string())
        })?;
        let told = |why: &str| {
            refused(&format!("pod {name}: {why}")).hint(
                "the scheduler extender places pods that ask for divvy.dev/gpu: their `schedulerName` has to be of a profile \
                 with the extender, and `nodeName` empty",
            )
        };
        let granted = (self.believed)()?.granted(&pod).map_err(|why| told(&why))?;
        let granted = granted.ok_or_else(|| told("the extender has granted it no device"))?;
        if granted.node != self.node {
            return Err(told(&format!("its devices are of node {}", granted.node)));
        }
        let own = granted
            .grants
            .iter()
            .filter(|grant| grant.container == whose.container);
        let own: Vec<&Grant> = own.collect();
        if own.len() != ids.len() {
            return Err(told(&format!(
                "container `{}` has {} of {RESOURCE} and grants of {} devices",
                whose.container,
                ids.len(),
                own.len()
            )));
        }
        let request = format!("{}/{}", granted.pod, whose.container);
        let record = planned(&whose, &request, ids, &own)?;
        self.allocator.start(record, &pods)
    }

    /// Ends what no pod has, and tells the node's devices where they have changed; `told` is what was written last.
    ///
    /// # Errors
    /// [`Code::Cluster`]: the annotation cannot be written.
    pub fn announce(&self, devices: &[DeviceRecord], told: &mut Option<String>) -> Result<(), Fault> {
        let text = serde_json::to_string(&announced(devices))
            .map_err(|error| Fault::new(Code::Internal, "the devices are no JSON").because(&error))?;
        if told.as_ref() == Some(&text) {
            return Ok(());
        }
        self.around.announce(&self.node, &text).map_err(|refusal| {
            Fault::new(
                Code::Cluster,
                "this node's devices cannot be written to its annotation",
            )
            .cause(refusal.to_string())
        })?;
        *told = Some(text);
        Ok(())
    }
}

/// The devices as the extender reads them.
#[must_use]
pub fn announced(devices: &[DeviceRecord]) -> Vec<Gpu> {
    let offered = devices.iter().filter(|device| is_offered(device));
    let gpu = |device: &DeviceRecord| Gpu {
        uuid: device.uuid.clone(),
        model: device.name.clone(),
        memory_mib: device.memory_usable_bytes().0 >> 20,
        slots: given_slots(device),
        numa: device.hardware.as_ref().and_then(|facts| facts.numa_node),
        link: None,
        healthy: ailments(device).is_empty(),
    };
    offered.map(gpu).collect()
}

/// What the kubelet counts: as many ids as there may be slices. Which device a pod gets has nothing to do with its ids.
#[must_use]
pub fn counted(devices: &[DeviceRecord]) -> Resource {
    let parts = devices
        .iter()
        .filter(|device| is_offered(device))
        .flat_map(|device| {
            let of = u32::try_from(given_slots(device)).unwrap_or(u32::MAX);
            (0..of).map(move |number| Part {
                id: id(&device.uuid, Some(number)),
                device: device.clone(),
                of,
            })
        });
    Resource {
        name: RESOURCE.into(),
        way: None,
        one_only: false,
        counts_only: true,
        parts: parts.collect(),
    }
}

/// The one container that has all these ids.
fn whose(pods: &Pods, ids: &[String]) -> Result<PodContainer, Fault> {
    let of = |id: &String| pods.by_id.get(&(RESOURCE.to_owned(), id.clone()));
    let first = ids.first().and_then(of);
    match first {
        Some(first) if ids.iter().all(|id| of(id) == Some(first)) => Ok(first.clone()),
        _ => Err(
            refused("the kubelet does not tell which container has these devices").hint(
                "it lists no init containers: ask for divvy.dev/gpu in `containers`, or in a sidecar (restartPolicy: Always)",
            ),
        ),
    }
}

/// One slice of all the container's devices, of each as much as the least of its grants.
fn planned(whose: &PodContainer, request: &str, ids: &[String], grants: &[&Grant]) -> Result<Record, Fault> {
    let slice = slice_name(RESOURCE, ids);
    let mut ask = SliceRequest {
        name: Some(slice.clone()),
        ..SliceRequest::default()
    };
    ask.isolation_unasked = true;
    let least = |of: fn(&Grant) -> u64| grants.iter().map(|grant| of(grant)).min().unwrap_or_default();
    if grants.iter().all(|grant| grant.whole) {
        ask.terms.compute.share = Some(Compute::WHOLE);
    } else {
        let memory = least(|grant| grant.memory_mib).checked_mul(1 << 20);
        let memory = memory.filter(|memory| *memory > 0);
        let memory = memory.ok_or_else(|| refused("its grants are of no memory"))?;
        ask.memory = Some(MemoryAmount::Bytes(Bytes(memory)));
        let cores = u16::try_from(least(|grant| grant.cores).min(100)).unwrap_or(100);
        ask.terms.compute.share = (cores > 0).then(|| Compute(cores * 100));
    }
    // A slice that names no device would be given any.
    let selectors = grants.iter().map(|grant| {
        grant
            .uuid
            .parse()
            .map_err(|error: divvy_model::SelectorError| Fault::from(error))
    });
    ask.select(selectors.collect::<Result<_, Fault>>()?);
    let devices = ids.iter().zip(grants).map(|(id, grant)| Allocated {
        pool: RESOURCE.into(),
        device: grant.uuid.clone(),
        share_id: Some(id.clone()),
        memory: None,
        cores: 0,
    });
    let prepared = Prepared {
        request: request.to_owned(),
        devices: devices.collect(),
        slice,
        slice_id: String::new(),
        cdi: String::new(),
        ask,
    };
    Ok(Record::new(
        &super::allocate::uid(RESOURCE, ids),
        &whose.namespace,
        RESOURCE,
        vec![prepared],
    ))
}

#[cfg(test)]
mod tests;
