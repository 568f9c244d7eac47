//! A cluster as a client sees it, by a kubeconfig. `DIVVY_TEST_KUBECONFIG` names that of a real one, with the stock scheduler and
//! controller manager; without it a stand-in is started, and its own kubeconfig leads to it in the same way.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::api_server::ApiServer;
use crate::wait::until;

/// The variable with the path of a kubeconfig.
pub const SWITCH: &str = "DIVVY_TEST_KUBECONFIG";

/// See the module. It has a namespace and a node of its own, which go with it.
pub struct Cluster {
    runtime: Runtime,
    client: Client,
    kubeconfig: PathBuf,
    /// The stand-in and the folder of its kubeconfig.
    _stand_in: Option<(ApiServer, tempfile::TempDir)>,
    /// Paths of what was made outside of the namespace.
    made: Mutex<Vec<String>>,
    /// Its namespace.
    pub namespace: String,
    /// A node that is in no kubelet's hands.
    pub node: String,
}

impl Cluster {
    /// The one that the variable names, or a stand-in.
    pub fn start() -> Self {
        match std::env::var_os(SWITCH) {
            Some(path) => Self::of(Path::new(&path), None),
            None => {
                let (server, folder) = (ApiServer::start(false), tempfile::tempdir().expect("a folder"));
                let kubeconfig = server.kubeconfig(folder.path());
                Self::of(&kubeconfig, Some((server, folder)))
            }
        }
    }

    fn of(kubeconfig: &Path, stand_in: Option<(ApiServer, tempfile::TempDir)>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a loop");
        let client = runtime.block_on(async {
            let read = Kubeconfig::read_from(kubeconfig)
                .unwrap_or_else(|error| panic!("{SWITCH}={}: {error}", kubeconfig.display()));
            let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
            Client::try_from(config.expect("a kubeconfig")).expect("a client")
        });
        let own = format!(
            "divvy-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let cluster = Self {
            runtime,
            client,
            kubeconfig: kubeconfig.to_owned(),
            _stand_in: stand_in,
            made: Mutex::default(),
            namespace: own.clone(),
            node: own,
        };
        let own = &cluster.namespace;
        cluster.make(
            "/api/v1/namespaces",
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": own}}),
        );
        // A controller makes it a moment later; until then pods are refused.
        until("the namespace has its service account", || {
            let path = format!("/api/v1/namespaces/{own}/serviceaccounts/default");
            cluster.ask("GET", &path, None).ok()
        });
        cluster.make(
            "/api/v1/nodes",
            &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": own, "labels": {"divvy-test": own}}}),
        );
        let room = json!({"cpu": "64", "memory": "256Gi", "pods": "1000"});
        let status = json!({"status": {"allocatable": room, "capacity": room}});
        cluster
            .ask("PATCH", &format!("/api/v1/nodes/{own}/status"), Some(&status))
            .expect("a node's room");
        cluster
    }

    /// Its kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Asks the API server.
    ///
    /// # Errors
    /// The status and the sentence that it refuses with.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, (u16, String)> {
        let kind = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let bytes = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", kind)
            .body(bytes)
            .expect("a request");
        let answered = self.runtime.block_on(self.client.request::<Value>(request));
        answered.map_err(|error| match error {
            kube::Error::Api(status) => (status.code, status.message.clone()),
            other => panic!("{method} {path}: {other}"),
        })
    }

    /// Makes an object that goes with this cluster.
    pub fn make(&self, path: &str, body: &Value) -> Value {
        let made = self.ask("POST", path, Some(body));
        let made = made.unwrap_or_else(|(_, why)| panic!("{path}: {why}\n{body:#}"));
        let name = body["metadata"]["name"].as_str().expect("a name");
        self.made.lock().expect("a lock").push(format!("{path}/{name}"));
        made
    }

    fn of_namespace(&self, group: &str, kind: &str) -> String {
        format!("/{group}/namespaces/{}/{kind}", self.namespace)
    }

    /// A DeviceClass with this selector, by a name of its own.
    pub fn class(&self, name: &str, expression: &str, extended: Option<&str>) -> String {
        let name = format!("{name}-{}", self.namespace);
        let mut class = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": expression}}]}});
        if let Some(resource) = extended {
            class["spec"]["extendedResourceName"] = resource.into();
        }
        self.make("/apis/resource.k8s.io/v1/deviceclasses", &class);
        name
    }

    /// Makes a claim.
    ///
    /// # Errors
    /// The sentence that it is refused with.
    pub fn claim(&self, name: &str, devices: &Value) -> Result<Value, String> {
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": {"devices": devices}});
        let path = self.of_namespace("apis/resource.k8s.io/v1", "resourceclaims");
        self.ask("POST", &path, Some(&claim)).map_err(|(_, why)| why)
    }

    /// A pod with these claims, which may go to this cluster's node alone. `more` is merged into its spec.
    pub fn pod(&self, name: &str, claims: &[&str], more: &Value) {
        let named: Vec<Value> = claims
            .iter()
            .map(|claim| json!({"name": claim, "resourceClaimName": claim}))
            .collect();
        let used: Vec<Value> = claims.iter().map(|claim| json!({"name": claim})).collect();
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "nodeSelector": {"divvy-test": self.node}, "tolerations": [{"operator": "Exists"}], "resourceClaims": named,
            "containers": [{"name": "main", "image": "none.invalid/none", "resources": {"claims": used}}]}});
        for (field, value) in more.as_object().into_iter().flatten() {
            pod["spec"][field] = value.clone();
        }
        let made = self.ask("POST", &self.of_namespace("api/v1", "pods"), Some(&pod));
        made.unwrap_or_else(|(_, why)| panic!("{why}\n{pod:#}"));
    }

    /// Deletes a pod at once: no kubelet has it.
    pub fn delete_pod(&self, name: &str) {
        let path = format!(
            "{}/{name}?gracePeriodSeconds=0",
            self.of_namespace("api/v1", "pods")
        );
        self.ask("DELETE", &path, None).expect("deleted");
    }

    /// A pod, where there is one.
    pub fn find_pod(&self, name: &str) -> Option<Value> {
        self.ask(
            "GET",
            &format!("{}/{name}", self.of_namespace("api/v1", "pods")),
            None,
        )
        .ok()
    }

    /// A claim.
    pub fn find_claim(&self, name: &str) -> Value {
        let path = self.of_namespace("apis/resource.k8s.io/v1", "resourceclaims");
        self.ask("GET", &format!("{path}/{name}"), None).expect("a claim")
    }

    /// What a claim was allocated, waited for.
    pub fn allocated(&self, name: &str) -> Vec<Value> {
        until(&format!("claim {name} is allocated"), || {
            self.find_claim(name)["status"]["allocation"]["devices"]["results"]
                .as_array()
                .cloned()
        })
    }

    /// Waits until the scheduler has said that it finds no place for a pod, and no claim of it is allocated.
    pub fn pending(&self, pod: &str, claim: &str) {
        until(&format!("pod {pod} has no place"), || {
            let found = self.find_pod(pod)?;
            let mut conditions = found["status"]["conditions"].as_array()?.iter();
            conditions.find(|one| one["reason"] == "Unschedulable").map(drop)
        });
        assert!(self.find_claim(claim)["status"]["allocation"].is_null(), "{pod}");
    }

    /// Counts devices of a class in this namespace, and waits until the quota holds.
    pub fn quota(&self, class: &str, devices: u32) {
        let name = format!("{class}.deviceclass.resource.k8s.io/devices");
        let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "devices"},
            "spec": {"hard": {name: devices.to_string()}}});
        let path = self.of_namespace("api/v1", "resourcequotas");
        self.ask("POST", &path, Some(&quota)).expect("a quota");
        until("the quota holds", || {
            let found = self.ask("GET", &format!("{path}/devices"), None).ok()?;
            found["status"]["hard"].is_object().then_some(())
        });
    }

    /// The devices that this driver has published for the node, in the order of the pool's ResourceSlices.
    pub fn published(&self, driver: &str) -> Vec<Value> {
        let list = self
            .ask("GET", "/apis/resource.k8s.io/v1/resourceslices", None)
            .expect("a list");
        let slices = list["items"].as_array().cloned().unwrap_or_default().into_iter();
        let mine =
            slices.filter(|one| one["spec"]["driver"] == driver && one["spec"]["nodeName"] == self.node);
        mine.flat_map(|one| one["spec"]["devices"].as_array().cloned().unwrap_or_default())
            .collect()
    }

    /// Publishes devices of a driver that is the test's own, as a whole pool of one ResourceSlice.
    pub fn publish(&self, driver: &str, generation: u64, devices: &Value) {
        let path = "/apis/resource.k8s.io/v1/resourceslices";
        let name = format!("{}-{driver}", self.node);
        let mut slice = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": {
            "driver": driver, "nodeName": self.node, "devices": devices,
            "pool": {"name": self.node, "generation": generation, "resourceSliceCount": 1}}});
        if generation == 1 {
            self.make(path, &slice);
            return;
        }
        let list = self.ask("GET", path, None).expect("a list");
        let mut items = list["items"].as_array().into_iter().flatten();
        let old = items
            .find(|one| one["metadata"]["name"] == name.as_str())
            .expect("it is there");
        slice["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
        self.ask("PUT", &format!("{path}/{name}"), Some(&slice))
            .expect("replaced");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A stand-in goes by itself. A namespace takes its pods and claims along.
        for path in self.made.lock().expect("a lock").iter().rev() {
            let _gone = self.ask("DELETE", path, None);
        }
    }
}
