//! The ledger follows the API server: nodes and pods, listed and watched. Whatever was missed, the next list has it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Binding as ApiBinding, Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Client};
use serde_json::json;
use tokio::runtime::Handle;
use tokio_stream::StreamExt;

use super::cluster::{Binding, Failed, Pods};
use super::service::Extender;
use crate::cluster::Refusal;
use crate::grants::{GRANTS, KeyFiles, SIGNATURE};
use crate::https::Remark;
use crate::live::{TIMEOUT, refusal};

/// The annotation that a fence writes.
const FENCE: &str = "gpu.divvy.dev/fence";
/// How often the files of keys are looked at.
const KEYS: Duration = Duration::from_secs(10);
/// How often binds without an outcome are asked about.
const SETTLE: Duration = Duration::from_secs(2);

/// A real API server. Calls have to come from threads that are not the runtime's own.
pub struct LivePods {
    client: Client,
    runtime: Handle,
}

impl LivePods {
    /// By this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            client,
            runtime: Handle::current(),
        }
    }

    fn ask<T>(&self, answer: impl Future<Output = kube::Result<T>>) -> Result<T, Failed> {
        let answered = self
            .runtime
            .block_on(async { tokio::time::timeout(TIMEOUT, answer).await });
        match answered {
            Err(_) => Err(Failed::Unknown(format!("not within {} s", TIMEOUT.as_secs()))),
            Ok(Ok(done)) => Ok(done),
            // Only a status below 500 says that nothing was done.
            Ok(Err(error)) => match &error {
                kube::Error::Api(status) if status.code < 500 => Err(Failed::Refused(refusal(&error))),
                _ => Err(Failed::Unknown(refusal(&error).to_string())),
            },
        }
    }
}

fn plain(failed: Failed) -> Refusal {
    match failed {
        Failed::Refused(refusal) => refusal,
        Failed::Unknown(why) => Refusal::Other(why),
    }
}

impl Pods for LivePods {
    fn pod(&self, namespace: &str, name: &str) -> Result<Pod, Refusal> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        self.ask(pods.get(name)).map_err(plain)
    }

    fn bind(&self, binding: &Binding) -> Result<(), Failed> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &binding.namespace);
        let body = ApiBinding {
            metadata: ObjectMeta {
                name: Some(binding.name.clone()),
                namespace: Some(binding.namespace.clone()),
                // The API server holds the pod to both.
                uid: Some(binding.uid.clone()),
                resource_version: Some(binding.version.clone()),
                annotations: Some(
                    [
                        (GRANTS.to_owned(), binding.grants.text.clone()),
                        (SIGNATURE.to_owned(), binding.grants.signature.clone()),
                    ]
                    .into(),
                ),
                ..ObjectMeta::default()
            },
            target: ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Node".into()),
                name: Some(binding.node.clone()),
                ..ObjectReference::default()
            },
        };
        let posted = async {
            let parameters = PostParams::default();
            pods.create_subresource::<ApiBinding, serde_json::Value>(
                "binding",
                &binding.name,
                &parameters,
                &body,
            )
            .await
        };
        self.ask(posted).map(drop)
    }

    fn fence(&self, pod: &Pod) -> Result<Pod, Refusal> {
        let metadata = &pod.metadata;
        let pods: Api<Pod> = Api::namespaced(
            self.client.clone(),
            metadata.namespace.as_deref().unwrap_or_default(),
        );
        // The version of the pod as it was seen makes each fence another text.
        let patch = json!({"metadata": {
            "uid": metadata.uid,
            "resourceVersion": metadata.resource_version,
            "annotations": {FENCE: metadata.resource_version},
        }});
        let name = metadata.name.as_deref().unwrap_or_default();
        // The status alone may be written, and the metadata with it: no right to change what a pod runs is needed.
        let patched = self.ask(pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)));
        let patched = patched.map_err(plain)?;
        match patched.metadata.resource_version == metadata.resource_version {
            true => Err(Refusal::Other("the API server kept no fence".into())),
            false => Ok(patched),
        }
    }
}

/// Fences off what an earlier extender may have sent. Until it is done, nothing is answered.
///
/// # Errors
/// What the API server refused.
pub async fn begin(client: &Client, extender: &Arc<Extender>) -> Result<usize, Refusal> {
    let pods: Api<Pod> = Api::all(client.clone());
    let pending = ListParams::default().fields("spec.nodeName=");
    let listed = pods.list(&pending).await.map_err(|error| refusal(&error))?.items;
    let extender = extender.clone();
    let fenced = tokio::task::spawn_blocking(move || {
        listed
            .iter()
            .try_for_each(|pod| extender.fence_before(pod))
            .map(|()| listed.len())
    });
    fenced.await.map_err(|error| Refusal::Other(error.to_string()))?
}

/// Follows nodes, and tells when the first list is in.
pub async fn follow_nodes(
    client: Client,
    extender: Arc<Extender>,
    remark: Remark,
    ready: Arc<tokio::sync::Semaphore>,
) {
    let mut events = std::pin::pin!(watcher(Api::<Node>::all(client), Config::default()));
    let mut listed: HashSet<String> = HashSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(node)) => said(&remark, extender.node(&node)),
            Ok(Event::Delete(node)) => {
                extender.ledger(|ledger| ledger.no_node(node.metadata.name.as_deref().unwrap_or_default()));
            }
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(node)) => {
                listed.extend(node.metadata.name.clone());
                said(&remark, extender.node(&node));
            }
            Ok(Event::InitDone) => {
                extender.ledger(|ledger| {
                    let gone: Vec<String> = ledger
                        .nodes()
                        .filter(|name| !listed.contains(*name))
                        .map(str::to_owned)
                        .collect();
                    gone.iter().for_each(|name| ledger.no_node(name));
                });
                ready.add_permits(1);
            }
            Err(error) => backed_off(&remark, "nodes", &error).await,
        }
    }
}

/// Follows pods, and tells when the first list is in.
pub async fn follow_pods(
    client: Client,
    extender: Arc<Extender>,
    remark: Remark,
    ready: Arc<tokio::sync::Semaphore>,
) {
    let mut events = std::pin::pin!(watcher(Api::<Pod>::all(client), Config::default()));
    let mut listed: HashSet<String> = HashSet::new();
    let mut before: HashSet<String> = HashSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(pod)) => said(&remark, extender.pod(&pod)),
            Ok(Event::Delete(pod)) => extender.gone(pod.metadata.uid.as_deref().unwrap_or_default()),
            Ok(Event::Init) => {
                listed.clear();
                before = extender.ledger(|ledger| ledger.confirmed());
            }
            Ok(Event::InitApply(pod)) => {
                listed.extend(pod.metadata.uid.clone());
                said(&remark, extender.pod(&pod));
            }
            Ok(Event::InitDone) => {
                // A pod that was confirmed while the list was on its way is not in it, and is there all the same.
                before.difference(&listed).for_each(|uid| extender.gone(uid));
                ready.add_permits(1);
            }
            Err(error) => backed_off(&remark, "pods", &error).await,
        }
    }
}

/// Asks about binds without an outcome, for ever.
pub async fn settle(extender: Arc<Extender>) {
    loop {
        tokio::time::sleep(SETTLE).await;
        let extender = extender.clone();
        drop(tokio::task::spawn_blocking(move || extender.settle()).await);
    }
}

/// Signs with what is in the files, whenever they change, for ever. Where what is there cannot be used, the keys of before stay.
pub async fn follow_keys(mut files: KeyFiles, extender: Arc<Extender>, remark: Remark) {
    loop {
        tokio::time::sleep(KEYS).await;
        look_at_keys(&mut files, &extender, &remark);
    }
}

/// One look of [`follow_keys`].
pub(super) fn look_at_keys(files: &mut KeyFiles, extender: &Extender, remark: &Remark) {
    match files.changed() {
        None => {}
        Some(Ok((signer, earlier))) => {
            extender.sign_with(signer, earlier);
            remark("the keys of grants were read again");
        }
        Some(Err(fault)) => {
            let cause = fault.causes.first().cloned().unwrap_or_default();
            remark(&format!(
                "the keys of grants were not read again: {fault}: {cause}"
            ));
        }
    }
}

fn said(remark: &Remark, done: Result<(), String>) {
    if let Err(words) = done {
        remark(&words);
    }
}

/// The watch starts again by itself, from a list where it has to; not at once.
async fn backed_off(remark: &Remark, what: &str, error: &kube::runtime::watcher::Error) {
    remark(&format!("{what} cannot be watched: {error}"));
    tokio::time::sleep(SETTLE).await;
}
