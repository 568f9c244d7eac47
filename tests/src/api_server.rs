//! A stand-in for the Kubernetes API server, as far as the DRA driver asks one: a node, ResourceSlices and ResourceClaims over
//! HTTP. ResourceSlices are held to the published types and to the rules that Kubernetes 1.36 checks; feature gates that are off
//! drop their fields without a word, as on 1.34. Other objects are kept as they come, and a scheduler is played: [`crate::scheduler`].
//!
//! Checked against: the types of k8s-openapi 0.29 (feature v1_36), made from Kubernetes' published OpenAPI, and what a 1.36.2
//! cluster did; docs/testing.md has the list.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use serde_json::{Value, json};

use crate::scheduler::Objects;

/// See the module.
pub struct ApiServer {
    address: String,
    held: Arc<Mutex<Held>>,
}

#[derive(Default)]
struct Held {
    slices: BTreeMap<String, Value>,
    claims: BTreeMap<String, Value>,
    pods: Vec<Value>,
    events: Vec<Value>,
    /// All else, and what a scheduler does with it.
    objects: Objects,
    version: u64,
    /// Whether DRAConsumableCapacity and DRAPartitionableDevices are off.
    old: bool,
    /// Each request, as its method and path.
    calls: Vec<String>,
}

pub(crate) type Answer = (u16, Value);

impl ApiServer {
    /// Serves until the test ends. An `old` one has its feature gates off.
    pub fn start(old: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let held = Arc::new(Mutex::new(Held {
            old,
            ..Held::default()
        }));
        let shared = held.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let held = shared.clone();
                std::thread::spawn(move || serve(socket, &held));
            }
        });
        Self { address, held }
    }

    /// A kubeconfig of it, in this folder.
    pub fn kubeconfig(&self, folder: &Path) -> PathBuf {
        kubeconfig(&self.address, folder)
    }

    /// The ResourceSlices that it holds.
    pub fn resource_slices(&self) -> Vec<Value> {
        self.held
            .lock()
            .expect("a lock")
            .slices
            .values()
            .cloned()
            .collect()
    }

    /// The devices of all ResourceSlices.
    pub fn devices(&self) -> Vec<Value> {
        let slices = self.resource_slices().into_iter();
        let of = |slice: Value| slice["spec"]["devices"].as_array().cloned().unwrap_or_default();
        slices.flat_map(of).collect()
    }

    /// Writes a claim with what it was allocated, as the scheduler does.
    pub fn allocate(&self, name: &str, uid: &str, results: &Value, config: &Value) {
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": uid},
            "spec": {}, "status": {"allocation": {"devices": {"results": results, "config": config}},
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "p-1"}]},
        });
        self.held
            .lock()
            .expect("a lock")
            .claims
            .insert(name.to_owned(), claim);
    }

    /// Runs a pod: what the driver reads of its containers.
    pub fn pod(&self, pod: Value) {
        self.held.lock().expect("a lock").pods.push(pod);
    }

    /// The events that were written.
    pub fn events(&self) -> Vec<Value> {
        self.held.lock().expect("a lock").events.clone()
    }

    /// What was asked of it, as methods and kinds.
    pub fn calls(&self) -> Vec<String> {
        let mut calls = self.held.lock().expect("a lock").calls.clone();
        calls.sort();
        calls.dedup();
        calls
    }
}

/// A kubeconfig of the server at this address, in this folder.
pub(crate) fn kubeconfig(address: &str, folder: &Path) -> PathBuf {
    let path = folder.join("kubeconfig");
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", address)}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    std::fs::write(&path, text.to_string()).expect("written");
    path
}

fn serve(socket: TcpStream, held: &Mutex<Held>) -> Option<()> {
    let mut writer = socket.try_clone().ok()?;
    let mut reader = BufReader::new(socket);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let mut words = line.split_whitespace();
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            let header = header.trim().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(number) = header.strip_prefix("content-length:") {
                length = number.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let (status, answer) = held.lock().ok()?.answer(&method, &path, &body);
        let text = answer.to_string();
        write!(
            writer,
            "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{text}",
            text.len()
        )
        .ok()?;
    }
}

pub(crate) fn refusal(code: u16, reason: &str, message: &str) -> Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
        "reason": reason, "message": message});
    (code, status)
}

impl Held {
    fn answer(&mut self, method: &str, path: &str, body: &[u8]) -> Answer {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        match (method, parts.as_slice()) {
            ("GET", ["api", "v1", "nodes", name]) if self.objects.get(&parts.join("/")).is_none() => {
                self.calls.push("get nodes".into());
                (
                    200,
                    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": "node-uid"}}),
                )
            }
            (
                "GET",
                [
                    "apis",
                    "resource.k8s.io",
                    "v1",
                    "namespaces",
                    _,
                    "resourceclaims",
                    name,
                ],
            ) => {
                self.calls.push("get resourceclaims".into());
                match self
                    .claims
                    .get(*name)
                    .or_else(|| self.objects.get(&parts.join("/")))
                {
                    Some(claim) => (200, claim.clone()),
                    None => refusal(404, "NotFound", &format!("resourceclaims \"{name}\" not found")),
                }
            }
            ("GET", ["api", "v1", "namespaces", namespace, "pods", name]) => {
                self.calls.push("get pods".into());
                let is_it = |pod: &&Value| {
                    pod["metadata"]["namespace"] == *namespace && pod["metadata"]["name"] == *name
                };
                match self
                    .pods
                    .iter()
                    .find(is_it)
                    .or_else(|| self.objects.get(&parts.join("/")))
                {
                    Some(pod) => (200, pod.clone()),
                    None => refusal(404, "NotFound", &format!("pods \"{name}\" not found")),
                }
            }
            ("POST", ["api", "v1", "namespaces", _, "events"]) => {
                self.calls.push("create events".into());
                self.events.push(body.clone());
                (201, body)
            }
            (method, ["apis", "resource.k8s.io", "v1", "resourceslices", rest @ ..]) => {
                let verb = match (method, rest) {
                    ("GET", []) => "list",
                    ("GET", _) => "get",
                    ("POST", _) => "create",
                    ("PUT", _) => "update",
                    _ => "delete",
                };
                self.calls.push(format!("{verb} resourceslices"));
                // A dry run is answered as a real one, and nothing is kept.
                let before = query
                    .contains("dryRun=All")
                    .then(|| (self.slices.clone(), self.version));
                let answer = self.slice(method, rest, body);
                match before {
                    Some(before) => (self.slices, self.version) = before,
                    None if method != "GET" => self.objects.settle(&self.slices),
                    None => {}
                }
                answer
            }
            (method, parts) => self.objects.answer(method, parts, body, &self.slices),
        }
    }

    fn slice(&mut self, method: &str, rest: &[&str], body: Value) -> Answer {
        match (method, rest) {
            ("GET", []) => {
                let items: Vec<&Value> = self.slices.values().collect();
                let list = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSliceList",
                    "metadata": {"resourceVersion": self.version.to_string()}, "items": items});
                (200, list)
            }
            ("POST", []) => self.keep(body, None),
            ("PUT", [name]) => match self.slices.get(*name).cloned() {
                None => refusal(404, "NotFound", "no such ResourceSlice"),
                Some(old) => self.keep(body, Some(&old)),
            },
            ("DELETE", [name]) => match self.slices.remove(*name) {
                None => refusal(404, "NotFound", "no such ResourceSlice"),
                Some(old) => (200, old),
            },
            _ => refusal(405, "MethodNotAllowed", method),
        }
    }

    fn keep(&mut self, mut slice: Value, old: Option<&Value>) -> Answer {
        let name = slice["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        match old {
            None if self.slices.contains_key(&name) => {
                return refusal(409, "AlreadyExists", &format!("{name} already exists"));
            }
            Some(old) if old["metadata"]["resourceVersion"] != slice["metadata"]["resourceVersion"] => {
                return refusal(409, "Conflict", "the object has been modified");
            }
            _ => {}
        }
        for field in ["/pool/name", "/driver", "/nodeName"] {
            let of = |slice: &Value| slice["spec"].pointer(field).cloned();
            if old.is_some_and(|old| of(old) != of(&slice)) {
                return refusal(422, "Invalid", &format!("spec{field}: field is immutable"));
            }
        }
        if let Err(why) = check(&slice) {
            return refusal(422, "Invalid", &why);
        }
        // What an object has already is kept: a gate that is switched off loses nothing.
        let has = |slice: &Value| {
            let spec = &slice["spec"];
            let of = |device: &Value| {
                !device["allowMultipleAllocations"].is_null() || !device["consumesCounters"].is_null()
            };
            !spec["sharedCounters"].is_null() || spec["devices"].as_array().into_iter().flatten().any(of)
        };
        if self.old && !old.is_some_and(has) {
            let spec = slice["spec"].as_object_mut().expect("checked");
            spec.remove("sharedCounters");
            for device in spec
                .get_mut("devices")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                let device = device.as_object_mut().expect("checked");
                device.remove("allowMultipleAllocations");
                device.remove("consumesCounters");
                let capacities = device.get_mut("capacity").and_then(Value::as_object_mut);
                for (_, capacity) in capacities.into_iter().flatten() {
                    capacity.as_object_mut().expect("checked").remove("requestPolicy");
                }
            }
        }
        self.version += 1;
        slice["metadata"]["resourceVersion"] = self.version.to_string().into();
        slice["metadata"]["uid"] = format!("slice-{name}").into();
        self.slices.insert(name, slice.clone());
        (if old.is_some() { 200 } else { 201 }, slice)
    }
}

/// Kubernetes' rules, as far as the driver could break them.
fn check(slice: &Value) -> Result<(), String> {
    let typed: ResourceSlice = serde_json::from_value(slice.clone()).map_err(|error| error.to_string())?;
    let again = serde_json::to_value(&typed).map_err(|error| error.to_string())?;
    if again != *slice {
        return Err("strict decoding error: unknown field".into());
    }
    let label = |text: &str| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (1..=63).contains(&text.len())
            && text.bytes().all(plain)
            && !text.starts_with('-')
            && !text.ends_with('-')
    };
    let (sets, devices) = (
        typed.spec.shared_counters.unwrap_or_default(),
        typed.spec.devices.unwrap_or_default(),
    );
    if !sets.is_empty() && !devices.is_empty() {
        return Err("spec: sharedCounters and devices are in separate ResourceSlices".into());
    }
    if sets.len() > 8 || devices.len() > 128 {
        return Err("spec: too many".into());
    }
    let is_more = |device: &Device| device.consumes_counters.is_some() || device.taints.is_some();
    if devices.len() > 64 && devices.iter().any(is_more) {
        return Err("spec.devices: 64 at most with counters or taints".into());
    }
    if sets.iter().any(|set| set.counters.len() > 32) {
        return Err("spec.sharedCounters: 32 counters at most".into());
    }
    let names: std::collections::BTreeSet<_> = devices.iter().map(|device| &device.name).collect();
    if names.len() != devices.len() {
        return Err("spec.devices: a name twice".into());
    }
    for device in &devices {
        let (attributes, capacities) = (
            device.attributes.iter().flatten(),
            device.capacity.iter().flatten(),
        );
        if !label(&device.name) || attributes.count() + capacities.clone().count() > 32 {
            return Err(format!("spec.devices: `{}`", device.name));
        }
        for (name, capacity) in capacities {
            let Some(policy) = &capacity.request_policy else {
                continue;
            };
            if device.allow_multiple_allocations != Some(true) {
                return Err(format!("{name}: a policy of a device that is not shared"));
            }
            let number = |quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity| {
                let text = quantity.0.as_str();
                let units = [("Gi", 1_u64 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10), ("", 1)];
                let (number, unit) = units
                    .iter()
                    .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)))
                    .expect("a quantity");
                number.parse::<u64>().expect("a whole number") * unit
            };
            if let Some(range) = &policy.valid_range {
                let (min, max) = (number(&range.min), range.max.as_ref().map_or(u64::MAX, number));
                let step = range.step.as_ref().map_or(1, number);
                let Some(default) = policy.default.as_ref().map(number) else {
                    return Err(format!("{name}: requestPolicy.default is required"));
                };
                let steps = |amount: u64| (amount - min).is_multiple_of(step);
                let first = range.step.as_ref().map_or(min, |step| min + number(step));
                if max > number(&capacity.value)
                    || first > number(&capacity.value)
                    || !(min..=max).contains(&default)
                    || !steps(default)
                    || !steps(max)
                {
                    return Err(format!("{name}: requestPolicy"));
                }
            }
        }
    }
    Ok(())
}
