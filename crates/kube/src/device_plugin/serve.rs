//! The plugin's sockets, one for each resource, and its registration with the kubelet. A kubelet that starts again removes the
//! sockets and forgets the plugin: then all is made and told again.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use divvy_model::{Code, Fault};
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::allocate::Allocator;
use super::granted::{Granted, RESOURCE};
use super::prefer::{Choice, preferred};
use super::resources::Resource;
use crate::authority::readable;
use crate::dial::dial;
use crate::grpc::Log;
use crate::grpc::deviceplugin as wire;
use crate::grpc::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use crate::grpc::deviceplugin::registration_client::RegistrationClient;
use crate::server::{listen, of_root, replaced};
use crate::state::digest;

/// The version of the interface.
const VERSION: &str = "v1beta1";
/// How long it waits for a kubelet that does not answer, before it asks again.
const PAUSE: Duration = Duration::from_secs(1);
/// The most requests of one connection that are served at a time.
const AT_A_TIME: usize = 32;
/// The most containers of a call, and ids of a container.
const MOST: usize = 4096;

/// How the plugin answers.
#[derive(Clone)]
pub struct Terms {
    /// Which ids are preferred.
    pub choice: Choice,
    /// CDI devices go out as annotations.
    pub annotations: bool,
    /// Makes slices of pods that the extender placed, where the node serves it.
    pub granted: Option<Arc<Granted>>,
    /// A failure in one line.
    pub line: fn(&Fault) -> String,
    /// Where failures are told besides the kubelet.
    pub log: Log,
}

/// The socket of a resource's plugin.
fn socket(folder: &Path, resource: &str) -> PathBuf {
    let digest = digest(&[resource]);
    folder.join(format!("divvy-{}.sock", &digest[..12]))
}

/// Serves the resources of `allocator` until `ended` is; `folder` is the kubelet's `device-plugins`.
///
/// # Errors
/// [`Code::Kubelet`]: a socket cannot be made.
pub async fn serve(
    folder: &Path,
    allocator: Arc<Allocator>,
    terms: Terms,
    ended: impl Future<Output = ()>,
) -> Result<(), Fault> {
    let kubelet = folder.join("kubelet.sock");
    let mut resources = allocator.resources();
    let mut ended = std::pin::pin!(ended);
    let mut sockets: Vec<PathBuf>;
    loop {
        let names = names(&resources.borrow_and_update());
        sockets = names.iter().map(|name| socket(folder, name)).collect();
        let mut servers = JoinSet::new();
        for (name, socket) in names.iter().zip(&sockets) {
            let plugin = Plugin {
                resource: name.clone(),
                allocator: allocator.clone(),
                terms: terms.clone(),
            };
            let server = Server::builder()
                .concurrency_limit_per_connection(AT_A_TIME)
                .add_service(DevicePluginServer::new(plugin))
                // Earlier kubelets dial with the socket's path as authority, which h2 refuses (seen on 1.20.2).
                .serve_with_incoming(of_root(listen(socket)?).map(|socket| socket.map(readable)));
            servers.spawn(server);
        }
        // Before the kubelet is asked: one that starts again in between is seen.
        let mut watched: Vec<&Path> = sockets.iter().map(PathBuf::as_path).collect();
        watched.push(&kubelet);
        let mut replaced = std::pin::pin!(replaced(&watched));
        let mut registered = std::pin::pin!(register(&kubelet, &names, folder, &terms));
        let mut is_registered = false;
        let is_over = loop {
            tokio::select! {
                () = &mut ended => break true,
                path = &mut replaced => {
                    (terms.log)(&format!("`{}` was made again or removed: registering again", path.display()));
                    break false;
                }
                () = &mut registered, if !is_registered => is_registered = true,
                changed = resources.changed() => {
                    if changed.is_err() || self::names(&resources.borrow_and_update()) != names {
                        break changed.is_err();
                    }
                }
                Some(over) = servers.join_next() => {
                    let said = match over {
                        Ok(Err(error)) => error.to_string(),
                        _ => "it ended".into(),
                    };
                    return Err(Fault::new(Code::Kubelet, "a device plugin's socket is not served any more").cause(said));
                }
            }
        };
        servers.abort_all();
        for socket in &sockets {
            let _gone = std::fs::remove_file(socket);
        }
        if is_over {
            return Ok(());
        }
    }
}

fn names(resources: &[Resource]) -> Vec<String> {
    resources.iter().map(|resource| resource.name.clone()).collect()
}

/// Tells the kubelet of all resources, again and again until it has taken them.
async fn register(kubelet: &Path, names: &[String], folder: &Path, terms: &Terms) {
    for name in names {
        let mut said = String::new();
        while let Err(fault) = register_one(kubelet, name, &socket(folder, name), terms).await {
            let words = (terms.line)(&fault);
            if words != said {
                (terms.log)(&words);
                said = words;
            }
            tokio::time::sleep(PAUSE).await;
        }
        (terms.log)(&format!("registered {name} with the kubelet"));
    }
}

async fn register_one(kubelet: &Path, name: &str, socket: &Path, terms: &Terms) -> Result<(), Fault> {
    let mut client = RegistrationClient::new(dial(kubelet).await?);
    let endpoint = socket
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let request = wire::RegisterRequest {
        version: VERSION.into(),
        endpoint: endpoint.to_owned(),
        resource_name: name.to_owned(),
        options: Some(options(is_granted(name, terms))),
    };
    let answer = client.register(request).await;
    answer.map(drop).map_err(|status| {
        Fault::new(Code::Kubelet, format!("the kubelet refused `{name}`")).cause(status.message().to_owned())
    })
}

/// Of granted slices only the number of ids counts, and they are made before the container starts.
fn options(is_granted: bool) -> wire::DevicePluginOptions {
    wire::DevicePluginOptions {
        pre_start_required: is_granted,
        get_preferred_allocation_available: !is_granted,
    }
}

fn is_granted(resource: &str, terms: &Terms) -> bool {
    resource == RESOURCE && terms.granted.is_some()
}

/// The plugin of one resource.
struct Plugin {
    resource: String,
    allocator: Arc<Allocator>,
    terms: Terms,
}

impl Plugin {
    fn list(resource: &str, all: &[Resource]) -> wire::ListAndWatchResponse {
        let of_one = |one: &'_ Resource| -> Vec<wire::Device> {
            one.parts
                .iter()
                .map(|part| device(part, one.counts_only))
                .collect()
        };
        fn device(part: &super::resources::Part, counts_only: bool) -> wire::Device {
            let facts = part.device.hardware.as_ref().filter(|_| !counts_only);
            let node = facts.and_then(|facts| facts.numa_node);
            wire::Device {
                id: part.id.clone(),
                health: if part.is_well() { "Healthy" } else { "Unhealthy" }.into(),
                topology: node.map(|node| wire::TopologyInfo {
                    nodes: vec![wire::NumaNode { id: node.into() }],
                }),
            }
        }
        let parts = all.iter().filter(|one| one.name == resource);
        wire::ListAndWatchResponse {
            devices: parts.flat_map(of_one).collect(),
        }
    }

    /// What makes the slices, where they are granted.
    fn granted(&self) -> Option<Arc<Granted>> {
        self.terms.granted.clone().filter(|_| self.resource == RESOURCE)
    }

    fn answer(&self, cdi: String) -> wire::ContainerAllocateResponse {
        let mut answer = wire::ContainerAllocateResponse::default();
        // Kubelets before 1.28 know no CDI fields. Where slices are granted no configuration says how devices go, so they go both
        // ways: a runtime takes a device once.
        let is_granted = self.terms.granted.is_some();
        if self.terms.annotations || is_granted {
            // The name of the annotation is the plugin's to choose, once for each device.
            let key = format!("cdi.k8s.io/divvy_{}", digest(&[&cdi]));
            answer.annotations = HashMap::from([(key, cdi.clone())]);
        }
        if !self.terms.annotations {
            answer.cdi_devices = vec![wire::CdiDevice { name: cdi }];
        }
        answer
    }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = ReceiverStream<Result<wire::ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<wire::DevicePluginOptions>, Status> {
        Ok(Response::new(options(is_granted(&self.resource, &self.terms))))
    }

    async fn list_and_watch(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let mut resources = self.allocator.resources();
        let resource = self.resource.clone();
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            let mut told = None;
            loop {
                let list = Self::list(&resource, &resources.borrow_and_update());
                if told.as_ref() != Some(&list) {
                    told = Some(list.clone());
                    if sender.send(Ok(list)).await.is_err() {
                        break;
                    }
                }
                tokio::select! {
                    changed = resources.changed() => if changed.is_err() { break },
                    () = sender.closed() => break,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<wire::PreferredAllocationRequest>,
    ) -> Result<Response<wire::PreferredAllocationResponse>, Status> {
        let all = self.allocator.resources().borrow().clone();
        let found = all.iter().find(|one| one.name == self.resource);
        let found = found.ok_or_else(|| Status::not_found("the resource is gone"))?;
        let asked = request.into_inner().container_requests;
        if asked.len() > MOST || asked.iter().any(|one| one.available_device_i_ds.len() > MOST) {
            return Err(Status::invalid_argument("more devices than a node can have"));
        }
        let answers = asked
            .into_iter()
            .map(|one| wire::ContainerPreferredAllocationResponse {
                device_i_ds: preferred(
                    found,
                    &one.available_device_i_ds,
                    &one.must_include_device_i_ds,
                    usize::try_from(one.allocation_size).unwrap_or(0),
                    self.terms.choice,
                ),
            });
        Ok(Response::new(wire::PreferredAllocationResponse {
            container_responses: answers.collect(),
        }))
    }

    async fn allocate(
        &self,
        request: Request<wire::AllocateRequest>,
    ) -> Result<Response<wire::AllocateResponse>, Status> {
        let asked = request.into_inner().container_requests;
        if asked.len() > MOST || asked.iter().any(|one| one.devices_ids.len() > MOST) {
            return Err(Status::invalid_argument("more devices than a node can have"));
        }
        let (allocator, resource) = (self.allocator.clone(), self.resource.clone());
        let granted = self.granted();
        let work = move || -> Result<Vec<String>, Fault> {
            if let Some(granted) = granted {
                return asked.iter().map(|one| granted.named(&one.devices_ids)).collect();
            }
            let mut made = Vec::new();
            for (number, one) in asked.iter().enumerate() {
                match allocator.allocate(&resource, &one.devices_ids) {
                    Ok(cdi) => made.push(cdi),
                    Err(fault) => {
                        // The pod is refused as a whole.
                        for earlier in &asked[..number] {
                            let _later = allocator.give_back(&resource, &earlier.devices_ids);
                        }
                        return Err(fault);
                    }
                }
            }
            Ok(made)
        };
        // Off the loop: it asks the agent.
        let done = tokio::task::spawn_blocking(work).await;
        let done = done.map_err(|_| Status::internal("the call failed inside the plugin"))?;
        let slices = done.map_err(|fault| {
            let said = (self.terms.line)(&fault);
            (self.terms.log)(&format!("allocate {}: {said}", self.resource));
            Status::failed_precondition(said)
        })?;
        Ok(Response::new(wire::AllocateResponse {
            container_responses: slices.into_iter().map(|cdi| self.answer(cdi)).collect(),
        }))
    }

    async fn pre_start_container(
        &self,
        request: Request<wire::PreStartContainerRequest>,
    ) -> Result<Response<wire::PreStartContainerResponse>, Status> {
        let ids = request.into_inner().devices_ids;
        if ids.len() > MOST {
            return Err(Status::invalid_argument("more devices than a node can have"));
        }
        if let Some(granted) = self.granted() {
            let done = tokio::task::spawn_blocking(move || granted.start(&ids)).await;
            let done = done.map_err(|_| Status::internal("the call failed inside the plugin"))?;
            done.map_err(|fault| {
                let said = (self.terms.line)(&fault);
                (self.terms.log)(&format!("start {}: {said}", self.resource));
                Status::failed_precondition(said)
            })?;
        }
        Ok(Response::new(wire::PreStartContainerResponse {}))
    }
}

#[cfg(test)]
pub(super) mod tests;
