//! The stand-in API server's other objects, and the parts that a scheduler and a controller manager play in them: pods get nodes and
//! their claims devices, by the allocator's rules as `divvy-placement` has them. Claims of pods that are gone are free again, pods of
//! devices with a NoExecute taint are deleted, and a ResourceQuota counts devices by class.

use std::collections::BTreeMap;

use divvy_placement::read::read;
use divvy_placement::schedule::{Terms, schedule};
use divvy_placement::selections::Selections;
use serde_json::{Value, json};

use crate::api_server::{Answer, refusal};

/// Objects by their paths, `api/v1/namespaces/n/pods/p`.
#[derive(Default)]
pub(crate) struct Objects {
    all: BTreeMap<String, Value>,
    version: u64,
}

const CLAIMS: &str = "apis/resource.k8s.io/v1/namespaces";

fn claim_path(namespace: &str, name: &str) -> String {
    format!("{CLAIMS}/{namespace}/resourceclaims/{name}")
}

/// JSON's merge patch, without its deletions.
fn merge(into: &mut Value, over: &Value) {
    match (into, over) {
        (Value::Object(into), Value::Object(over)) => {
            for (name, one) in over {
                merge(into.entry(name.clone()).or_insert(Value::Null), one);
            }
        }
        (into, over) => *into = over.clone(),
    }
}

impl Objects {
    pub(crate) fn get(&self, path: &str) -> Option<&Value> {
        self.all.get(path)
    }

    fn of_kind(&self, kind: &str) -> impl Iterator<Item = (&String, &Value)> {
        self.all.iter().filter(move |(_, one)| one["kind"] == kind)
    }

    fn stamp(&mut self, object: &mut Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = format!("uid-{}", self.version).into();
            object["metadata"]["order"] = self.version.into();
        }
    }

    /// Answers, and lets scheduler and controllers see what has changed.
    pub(crate) fn answer(
        &mut self,
        method: &str,
        parts: &[&str],
        body: Value,
        slices: &BTreeMap<String, Value>,
    ) -> Answer {
        let known = [
            "namespaces",
            "nodes",
            "pods",
            "resourcequotas",
            "deviceclasses",
            "resourceclaims",
            "status",
        ];
        let parts = match parts {
            [rest @ .., "status"] if method == "PATCH" => rest,
            parts => parts,
        };
        let path = parts.join("/");
        let answer = match method {
            "GET" => {
                let answer = self.look(&path);
                self.accounts(parts);
                return answer;
            }
            "POST" if parts.last().is_some_and(|kind| known.contains(kind)) => {
                self.create(&path, parts, body)
            }
            "PATCH" => match self.all.get(&path).cloned() {
                None => refusal(404, "NotFound", &path),
                Some(mut object) => {
                    merge(&mut object, &body);
                    self.stamp(&mut object);
                    self.all.insert(path, object.clone());
                    (200, object)
                }
            },
            "DELETE" => match self.all.remove(&path) {
                None => refusal(404, "NotFound", &path),
                Some(object) => {
                    let below = format!("{path}/");
                    self.all
                        .retain(|path, _| !path.starts_with(&below) && !in_namespace(path, parts));
                    (200, object)
                }
            },
            _ => refusal(404, "NotFound", &format!("no {method} of {path}")),
        };
        self.settle(slices);
        answer
    }

    /// A namespace gets its service account behind the first look at it: a controller makes it, and takes a moment.
    fn accounts(&mut self, parts: &[&str]) {
        if let ["api", "v1", "namespaces", namespace, "serviceaccounts", "default"] = parts
            && self.all.contains_key(&format!("api/v1/namespaces/{namespace}"))
        {
            let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": "default", "namespace": namespace}});
            self.all.entry(parts.join("/")).or_insert(account);
        }
    }

    fn look(&self, path: &str) -> Answer {
        if let Some(found) = self.all.get(path) {
            return (200, found.clone());
        }
        let below = format!("{path}/");
        let items: Vec<&Value> = self
            .all
            .iter()
            .filter(|(path, _)| path.strip_prefix(&below).is_some_and(|name| !name.contains('/')))
            .map(|(_, one)| one)
            .collect();
        match items.is_empty() {
            true => refusal(404, "NotFound", path),
            false => (200, json!({"kind": "List", "apiVersion": "v1", "items": items})),
        }
    }

    fn create(&mut self, path: &str, parts: &[&str], mut body: Value) -> Answer {
        let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let path = format!("{path}/{name}");
        if self.all.contains_key(&path) {
            return refusal(409, "AlreadyExists", &path);
        }
        if let [.., "namespaces", namespace, kind] = parts {
            body["metadata"]["namespace"] = (*namespace).into();
            let account = format!("api/v1/namespaces/{namespace}/serviceaccounts/default");
            if *kind == "pods" && !self.all.contains_key(&account) {
                let why = format!("error looking up service account {namespace}/default");
                return refusal(403, "Forbidden", &why);
            }
            if *kind == "resourceclaims"
                && let Err(over) = self.quota(namespace, &body)
            {
                return refusal(403, "Forbidden", &over);
            }
        }
        // As the server does: a status is written by itself.
        body["status"] = match body["kind"] == "ResourceQuota" {
            true => json!({"hard": body["spec"]["hard"]}),
            false => json!({}),
        };
        self.stamp(&mut body);
        self.all.insert(path, body.clone());
        (201, body)
    }

    /// Whether a claim fits into the quotas of its namespace.
    fn quota(&self, namespace: &str, claim: &Value) -> Result<(), String> {
        let devices = |claim: &Value, class: &str| -> u64 {
            let requests = claim["spec"]["devices"]["requests"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let of_class = requests
                .iter()
                .map(|one| &one["exactly"])
                .filter(|one| one["deviceClassName"] == class);
            of_class.map(|one| one["count"].as_u64().unwrap_or(1)).sum()
        };
        let mine = |one: &&Value| one["metadata"]["namespace"] == namespace;
        for quota in self.of_kind("ResourceQuota").map(|(_, one)| one).filter(mine) {
            for (name, hard) in quota["spec"]["hard"].as_object().into_iter().flatten() {
                let Some(class) = name.strip_suffix(".deviceclass.resource.k8s.io/devices") else {
                    continue;
                };
                let others = self.of_kind("ResourceClaim").map(|(_, one)| one).filter(mine);
                let used: u64 = others.map(|one| devices(one, class)).sum::<u64>() + devices(claim, class);
                let hard: u64 = hard.as_str().and_then(|text| text.parse().ok()).unwrap_or(0);
                if used > hard {
                    return Err(format!("exceeded quota: {name}={used}, limited: {hard}"));
                }
            }
        }
        Ok(())
    }

    /// Whatever follows from what is there now.
    pub(crate) fn settle(&mut self, slices: &BTreeMap<String, Value>) {
        self.evict(slices);
        self.release();
        let mut pods: Vec<(u64, String)> = self
            .of_kind("Pod")
            .filter(|(_, pod)| pod["spec"]["nodeName"].is_null())
            .map(|(path, pod)| (pod["metadata"]["order"].as_u64().unwrap_or(0), path.clone()))
            .collect();
        pods.sort();
        for (_, path) in pods {
            self.place(&path, slices);
        }
    }

    /// Deletes pods of devices that have a taint which evicts.
    fn evict(&mut self, slices: &BTreeMap<String, Value>) {
        let mut tainted = Vec::new();
        for slice in slices.values() {
            for device in slice["spec"]["devices"].as_array().into_iter().flatten() {
                let mut taints = device["taints"].as_array().into_iter().flatten();
                if taints.any(|taint| taint["effect"] == "NoExecute") {
                    tainted.push((slice["spec"]["pool"]["name"].clone(), device["name"].clone()));
                }
            }
        }
        let has = |claim: &Value| {
            let results = claim["status"]["allocation"]["devices"]["results"]
                .as_array()
                .cloned();
            let mut results = results.unwrap_or_default().into_iter();
            results.any(|one| tainted.contains(&(one["pool"].clone(), one["device"].clone())))
        };
        let mut gone = Vec::new();
        for (_, claim) in self.of_kind("ResourceClaim").filter(|(_, claim)| has(claim)) {
            for pod in claim["status"]["reservedFor"].as_array().into_iter().flatten() {
                let namespace = claim["metadata"]["namespace"].as_str().unwrap_or_default();
                let name = pod["name"].as_str().unwrap_or_default();
                gone.push(format!("api/v1/namespaces/{namespace}/pods/{name}"));
            }
        }
        self.all.retain(|path, _| !gone.contains(path));
    }

    /// Takes back what pods had that are gone.
    fn release(&mut self) {
        let pods: Vec<Value> = self
            .of_kind("Pod")
            .map(|(_, pod)| pod["metadata"]["uid"].clone())
            .collect();
        let lives = |claim: &Value| {
            let mut users = claim["status"]["reservedFor"].as_array().into_iter().flatten();
            users.any(|user| pods.contains(&user["uid"]))
        };
        let is_left = |claim: &Value| claim["status"]["allocation"].is_object() && !lives(claim);
        for claim in self.all.values_mut().filter(|one| one["kind"] == "ResourceClaim") {
            if is_left(claim) {
                claim["status"] = json!({});
            }
        }
        // What a scheduler made for a pod is the pod's own.
        self.all.retain(|_, one| {
            let owner = &one["metadata"]["ownerReferences"][0]["uid"];
            owner.is_null() || pods.contains(owner)
        });
    }

    /// One pod, as the scheduler takes it.
    fn place(&mut self, path: &str, slices: &BTreeMap<String, Value>) {
        let mut pod = self.all[path].clone();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (
            text(&pod["metadata"]["namespace"]),
            text(&pod["metadata"]["name"]),
        );
        let mut items: Vec<Value> = slices.values().cloned().collect();
        for kind in ["Node", "DeviceClass", "ResourceClaim"] {
            items.extend(self.of_kind(kind).map(|(_, one)| one.clone()));
        }
        items.push(pod.clone());
        let list = json!({"kind": "List", "apiVersion": "v1", "items": items}).to_string();
        let cluster = read(&[("cluster".into(), list)]);
        let unschedulable = |why: &str| {
            json!({"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}]})
        };
        let cluster = match cluster {
            Ok(cluster) => cluster,
            Err(why) => {
                pod["status"] = unschedulable(&why);
                self.all.insert(path.to_owned(), pod);
                return;
            }
        };
        let full = format!("{namespace}/{name}");
        let index = cluster
            .pods
            .iter()
            .position(|one| one.name == full)
            .expect("the pod is in the list");
        let selections = Selections::of(&cluster);
        let outcome = schedule(&selections, &[index], &Terms::default());
        let Some(placed) = outcome.placed.first() else {
            pod["status"] = unschedulable("0/1 nodes are available: cannot allocate all claims");
            self.all.insert(path.to_owned(), pod);
            return;
        };
        let node = &cluster.nodes[placed.node];
        let claims: Vec<_> = cluster.pods[index]
            .claims
            .iter()
            .map(|claim| &cluster.claims[*claim as usize])
            .filter(|claim| claim.held.is_none())
            .collect();
        pod["spec"]["nodeName"] = node.name.clone().into();
        pod["status"] =
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]});
        for (place, claim) in claims.iter().enumerate() {
            let mut results = Vec::new();
            for pick in placed.picks.iter().filter(|pick| pick.claim == place) {
                let request = &claim.spec.requests[pick.request];
                let sub = &request.alternatives[pick.alternative].name;
                let device = &node.devices[pick.device];
                let mut result = json!({"driver": *device.driver, "pool": *device.pool, "device": device.name,
                    "request": if sub.is_empty() { request.name.clone() } else { format!("{}/{sub}", request.name) }});
                if device.shared {
                    self.version += 1;
                    result["shareID"] = format!("00000000-0000-4000-8000-{:012x}", self.version).into();
                    let consumed = device.capacities.iter().zip(&pick.consumed);
                    // Names without the driver's domain, as they were published.
                    let plain = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
                    result["consumedCapacity"] = consumed
                        .map(|(one, number)| (plain(&one.name), json!(number.to_string())))
                        .collect();
                }
                results.push(result);
            }
            let name = claim.name.rsplit('/').next().unwrap_or_default().to_owned();
            let at = claim_path(&namespace, &name);
            let mut object = self.all.get(&at).cloned().unwrap_or_else(|| {
                // The claim of an extended resource: the scheduler writes it.
                let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}]);
                json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {},
                    "metadata": {"name": name, "namespace": namespace, "ownerReferences": owner}})
            });
            if !self.all.contains_key(&at) {
                pod["status"]["extendedResourceClaimStatus"] = json!({"resourceClaimName": name});
            }
            object["status"] = json!({"allocation": {"devices": {"results": results, "config": object["spec"]["devices"]["config"]}},
                "reservedFor": [{"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}]});
            if object["status"]["allocation"]["devices"]["config"].is_null() {
                object["status"]["allocation"]["devices"]["config"] = json!([]);
            }
            self.stamp(&mut object);
            self.all.insert(at, object);
        }
        self.stamp(&mut pod);
        self.all.insert(path.to_owned(), pod);
    }
}

/// Whether an object goes with its namespace.
fn in_namespace(path: &str, deleted: &[&str]) -> bool {
    match deleted {
        ["api", "v1", "namespaces", name] => path.contains(&format!("/namespaces/{name}/")),
        _ => false,
    }
}
