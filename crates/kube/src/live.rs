//! A real API server: that of the pod's service account, or of KUBECONFIG.

use std::time::Duration;

use divvy_model::{Code, Fault};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Config};
use tokio::runtime::Handle;

use crate::DRIVER;
use crate::cluster::{Cluster, Refusal};

/// The time limit for each answer.
pub const TIMEOUT: Duration = Duration::from_secs(15);

/// A client of the API server of the pod's service account, or of KUBECONFIG. Nothing is sent yet. A watch needs one whose reads have
/// no time limit.
///
/// # Errors
/// [`Code::Cluster`] where there is no service account and no kubeconfig, or one that is not understood.
pub async fn client(reads: Option<Duration>) -> Result<Client, Fault> {
    let cannot = |error: &dyn std::error::Error| {
        Fault::new(Code::Cluster, "no way to a Kubernetes API server was found")
            .because(error)
            .hint("run this in a pod with a service account, or set KUBECONFIG")
    };
    let mut config = Config::infer().await.map_err(|error| cannot(&error))?;
    config.connect_timeout = Some(TIMEOUT);
    config.write_timeout = Some(TIMEOUT);
    if reads.is_some() {
        config.read_timeout = reads;
    }
    Client::try_from(config).map_err(|error| cannot(&error))
}

/// See the module.
pub struct Live {
    client: Client,
    runtime: Handle,
}

impl Live {
    /// Finds it; nothing is sent yet. Calls have to come from threads that are not the runtime's own.
    ///
    /// # Errors
    /// [`Code::Cluster`] where there is no service account and no kubeconfig, or one that is not understood.
    pub async fn find() -> Result<Self, Fault> {
        Ok(Self::new(client(Some(TIMEOUT)).await?))
    }

    /// By this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            client,
            runtime: Handle::current(),
        }
    }

    fn slices(&self) -> Api<ResourceSlice> {
        Api::all(self.client.clone())
    }

    fn ask<T>(&self, answer: impl Future<Output = kube::Result<T>>) -> Result<T, Refusal> {
        self.runtime
            .block_on(async { tokio::time::timeout(TIMEOUT, answer).await })
            .map_err(|_| {
                Refusal::Other(format!(
                    "the API server did not answer within {} s",
                    TIMEOUT.as_secs()
                ))
            })?
            .map_err(|error| refusal(&error))
    }
}

pub(crate) fn refusal(error: &kube::Error) -> Refusal {
    match error {
        kube::Error::Api(status) => {
            let text = status.message.clone();
            match status.code {
                404 => Refusal::NotFound(text),
                409 => Refusal::Conflict(text),
                400 | 422 => Refusal::Invalid(text),
                _ => Refusal::Other(text),
            }
        }
        error => {
            let mut text = error.to_string();
            let mut source = std::error::Error::source(error);
            while let Some(cause) = source {
                text = format!("{text}: {cause}");
                source = cause.source();
            }
            Refusal::Other(text)
        }
    }
}

impl Live {
    /// The loop that answers come by.
    #[must_use]
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Writes one annotation of a node. The node's status alone may be written, and its metadata with it: no right to change its
    /// taints is needed.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn annotate_node(&self, node: &str, name: &str, text: &str) -> Result<(), Refusal> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patch = serde_json::json!({"metadata": {"annotations": {name: text}}});
        let parameters = PatchParams::default();
        self.ask(nodes.patch_status(node, &parameters, &Patch::Merge(&patch)))
            .map(drop)
    }
}

impl Cluster for Live {
    fn node_uid(&self, node: &str) -> Result<String, Refusal> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let found = self.ask(nodes.get(node))?;
        Ok(found.metadata.uid.unwrap_or_default())
    }

    fn resource_slices(&self, node: &str) -> Result<Vec<ResourceSlice>, Refusal> {
        let ours = ListParams::default().fields(&format!("spec.driver={DRIVER},spec.nodeName={node}"));
        Ok(self.ask(self.slices().list(&ours))?.items)
    }

    fn slices_of_all(&self, node: &str) -> Result<Vec<ResourceSlice>, Refusal> {
        let there = ListParams::default().fields(&format!("spec.nodeName={node}"));
        Ok(self.ask(self.slices().list(&there))?.items)
    }

    fn create(&self, slice: &ResourceSlice) -> Result<ResourceSlice, Refusal> {
        self.ask(self.slices().create(&PostParams::default(), slice))
    }

    fn replace(&self, slice: &ResourceSlice) -> Result<ResourceSlice, Refusal> {
        let name = slice.metadata.name.as_deref().unwrap_or_default();
        self.ask(self.slices().replace(name, &PostParams::default(), slice))
    }

    fn delete(&self, name: &str) -> Result<(), Refusal> {
        match self.ask(self.slices().delete(name, &DeleteParams::default())) {
            Ok(_) | Err(Refusal::NotFound(_)) => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    fn probe(&self, slice: &ResourceSlice) -> Result<ResourceSlice, Refusal> {
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        self.ask(self.slices().create(&dry, slice))
    }

    fn pod(&self, namespace: &str, name: &str) -> Result<Pod, Refusal> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        self.ask(pods.get(name))
    }

    fn tell(&self, event: &Event) -> Result<(), Refusal> {
        let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        self.ask(events.create(&PostParams::default(), event)).map(drop)
    }

    fn claim(&self, namespace: &str, name: &str) -> Result<ResourceClaim, Refusal> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), namespace);
        self.ask(claims.get(name))
    }
}

#[cfg(test)]
mod tests {
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// A status's code, reason and message, and what it is here.
    type Case = (u16, &'static str, &'static str, fn(String) -> Refusal);

    /// As an API server passes on what etcd says: each is what a caller has to tell apart.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_server_refuses_with_is_kept_in_its_words() {
        let full = "etcdserver: mvcc: database space exceeded";
        let cases: [Case; 6] = [
            (500, "", full, Refusal::Other),
            (507, "InsufficientStorage", full, Refusal::Other),
            (403, "Forbidden", "nodes is forbidden", Refusal::Other),
            (404, "NotFound", "not found", Refusal::NotFound),
            (409, "Conflict", "modified", Refusal::Conflict),
            (422, "Invalid", "spec: too many", Refusal::Invalid),
        ];
        for (code, reason, message, expected) in cases {
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "code": code, "reason": reason, "message": message});
            let service = tower::service_fn(move |_: http::Request<Body>| {
                let answer = http::Response::builder()
                    .status(code)
                    .body(Body::from(status.to_string().into_bytes()));
                async move { answer }
            });
            let live = Live::new(Client::new(service, "default"));
            let told = tokio::task::spawn_blocking(move || live.create(&ResourceSlice::default()));
            let refusal = told.await.expect("asked").expect_err(message);
            assert_eq!(refusal, expected(message.to_owned()), "{code}");
        }
    }
}
