//! A stand-in for the API server of a cluster before DRA: nodes, pods, bindings and watches over HTTP. Versions, conflicts, watches
//! that expire, and what a Binding's annotations do are as Kubernetes has them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api_server;

/// See the module.
pub struct OldCluster {
    address: String,
    held: Arc<Mutex<Held>>,
}

#[derive(Default)]
struct Held {
    version: u64,
    /// `nodes/NAME` and `pods/NAMESPACE/NAME`.
    objects: BTreeMap<String, Value>,
    /// What watches tell: the version, `nodes` or `pods`, and the event.
    log: Vec<(u64, &'static str, Value)>,
    /// The version up to which the log was thrown away, as etcd does after some minutes. A watch from before has expired.
    expired: u64,
    calls: Vec<String>,
}

/// How long a watch without news stays open.
const WATCH: Duration = Duration::from_secs(5);

impl OldCluster {
    /// Serves until the test ends, with this node.
    pub fn start(node: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let held: Arc<Mutex<Held>> = Arc::default();
        let shared = held.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let held = shared.clone();
                std::thread::spawn(move || serve(socket, &held));
            }
        });
        let cluster = Self { address, held };
        let object =
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "uid": "node-uid"}});
        cluster
            .held()
            .keep("nodes", &format!("nodes/{node}"), "ADDED", object);
        cluster
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().expect("a lock")
    }

    /// A kubeconfig of it, in this folder.
    pub fn kubeconfig(&self, folder: &std::path::Path) -> std::path::PathBuf {
        api_server::kubeconfig(&self.address, folder)
    }

    /// Creates a pod, as the API server does when admission is over; it.
    pub fn create(&self, mut pod: Value, uid: &str) -> Value {
        pod["apiVersion"] = "v1".into();
        pod["kind"] = "Pod".into();
        pod["metadata"]["namespace"] = "default".into();
        pod["metadata"]["uid"] = uid.into();
        let key = key(&pod);
        self.held().keep("pods", &key, "ADDED", pod)
    }

    /// A pod as it is now.
    pub fn pod(&self, name: &str) -> Value {
        self.held().objects[&format!("pods/default/{name}")].clone()
    }

    /// Writes over a pod, as its author may.
    pub fn write(&self, pod: Value) {
        let key = key(&pod);
        self.held().keep("pods", &key, "MODIFIED", pod);
    }

    /// Removes a pod.
    pub fn delete(&self, name: &str) {
        self.held().remove(name);
    }

    /// Removes a pod, and throws away the history before any watch can tell of that: what follows by watches has to list again.
    pub fn delete_untold(&self, name: &str) {
        let mut held = self.held();
        held.remove(name);
        held.expired = held.version;
        held.log.clear();
    }

    /// An annotation of the node.
    pub fn annotation(&self, node: &str, name: &str) -> Option<String> {
        let held = self.held();
        let found = &held.objects[&format!("nodes/{node}")]["metadata"]["annotations"][name];
        found.as_str().map(str::to_owned)
    }

    /// What was asked of it, as verbs and resources.
    pub fn calls(&self) -> Vec<String> {
        let mut calls = self.held().calls.clone();
        calls.sort();
        calls.dedup();
        calls
    }
}

fn key(pod: &Value) -> String {
    let of = |name: &str| pod["metadata"][name].as_str().unwrap_or_default().to_owned();
    format!("pods/{}/{}", of("namespace"), of("name"))
}

fn serve(socket: TcpStream, held: &Mutex<Held>) -> Option<()> {
    let mut writer = socket.try_clone().ok()?;
    let mut reader = BufReader::new(socket);
    loop {
        let (method, path, body) = request(&mut reader)?;
        let (plain, query) = path.split_once('?').unwrap_or((&path, ""));
        let (status, text) = if query.contains("watch=true") {
            (200, watched(held, plain, query)?)
        } else {
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let (status, answer) = held.lock().ok()?.answer(&method, plain, query, &body);
            (status, answer.to_string())
        };
        write!(
            writer,
            "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{text}",
            text.len()
        )
        .ok()?;
    }
}

fn request(reader: &mut BufReader<TcpStream>) -> Option<(String, String, Vec<u8>)> {
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
    Some((method, path, body))
}

/// What has changed since the watch's version, as lines; waits for the first. A watch from a version that is no longer known ends
/// with the error of the API server's watch cache.
fn watched(held: &Mutex<Held>, path: &str, query: &str) -> Option<String> {
    let kind = path.rsplit('/').next()?.to_owned();
    let from = query
        .split('&')
        .find_map(|part| part.strip_prefix("resourceVersion="));
    let from: u64 = from.and_then(|text| text.parse().ok()).unwrap_or(0);
    held.lock().ok()?.calls.push(format!("watch {kind}"));
    let begin = Instant::now();
    loop {
        let now = held.lock().ok()?;
        if from < now.expired {
            let message = format!("too old resource version: {from} ({})", now.expired);
            let (_, status) = api_server::refusal(410, "Expired", &message);
            return Some(format!("{}\n", json!({"type": "ERROR", "object": status})));
        }
        let lines: String = now
            .log
            .iter()
            .filter(|(version, of, _)| *version > from && *of == kind)
            .map(|(_, _, event)| format!("{event}\n"))
            .collect();
        drop(now);
        if !lines.is_empty() || begin.elapsed() > WATCH {
            return Some(lines);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Held {
    fn remove(&mut self, name: &str) {
        self.version += 1;
        let gone = self
            .objects
            .remove(&format!("pods/default/{name}"))
            .expect("it is there");
        self.log
            .push((self.version, "pods", json!({"type": "DELETED", "object": gone})));
    }

    fn keep(&mut self, kind: &'static str, key: &str, how: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.objects.insert(key.to_owned(), object.clone());
        self.log
            .push((self.version, kind, json!({"type": how, "object": object})));
        object
    }

    fn answer(&mut self, method: &str, path: &str, query: &str, body: &Value) -> (u16, Value) {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let note = |held: &mut Self, call: &str| held.calls.push(call.to_owned());
        match (method, parts.as_slice()) {
            ("GET", ["api", "v1", kind @ ("nodes" | "pods")]) => {
                note(self, &format!("list {kind}"));
                let is_meant = |object: &&Value| {
                    !query.contains("spec.nodeName%3D") || object["spec"].get("nodeName").is_none()
                };
                let start = format!("{kind}/");
                let all = self.objects.iter().filter(|(key, _)| key.starts_with(&start));
                let items: Vec<Value> = all.map(|(_, object)| object).filter(is_meant).cloned().collect();
                let version = self.version.to_string();
                (
                    200,
                    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": version}, "items": items}),
                )
            }
            ("PATCH", ["api", "v1", "nodes", name, "status"]) => {
                note(self, "patch nodes/status");
                self.patch("nodes", &format!("nodes/{name}"), body)
            }
            ("GET", ["api", "v1", "namespaces", namespace, "pods", name]) => {
                note(self, "get pods");
                match self.objects.get(&format!("pods/{namespace}/{name}")) {
                    Some(pod) => (200, pod.clone()),
                    None => api_server::refusal(404, "NotFound", &format!("pods \"{name}\" not found")),
                }
            }
            ("PATCH", ["api", "v1", "namespaces", namespace, "pods", name, "status"]) => {
                note(self, "patch pods/status");
                self.patch("pods", &format!("pods/{namespace}/{name}"), body)
            }
            ("POST", ["api", "v1", "namespaces", namespace, "pods", name, "binding"]) => {
                note(self, "create pods/binding");
                self.bind(&format!("pods/{namespace}/{name}"), body)
            }
            _ => api_server::refusal(404, "NotFound", &format!("no {method} of {path}")),
        }
    }

    /// A merge patch of the metadata's annotations.
    fn patch(&mut self, kind: &'static str, key: &str, body: &Value) -> (u16, Value) {
        let Some(mut object) = self.objects.get(key).cloned() else {
            return api_server::refusal(404, "NotFound", "it is not there");
        };
        if !same(body, &object, "resourceVersion") || !same(body, &object, "uid") {
            return api_server::refusal(409, "Conflict", "the object has been modified");
        }
        for (name, text) in body["metadata"]["annotations"].as_object().into_iter().flatten() {
            object["metadata"]["annotations"][name] = text.clone();
        }
        (200, self.keep(kind, key, "MODIFIED", object))
    }

    fn bind(&mut self, key: &str, body: &Value) -> (u16, Value) {
        let Some(mut pod) = self.objects.get(key).cloned() else {
            return api_server::refusal(404, "NotFound", "it is not there");
        };
        let is_placed = pod["spec"].get("nodeName").is_some();
        if is_placed || !same(body, &pod, "resourceVersion") || !same(body, &pod, "uid") {
            return api_server::refusal(409, "Conflict", "the pod has changed");
        }
        pod["spec"]["nodeName"] = body["target"]["name"].clone();
        for (name, text) in body["metadata"]["annotations"].as_object().into_iter().flatten() {
            pod["metadata"]["annotations"][name] = text.clone();
        }
        self.keep("pods", key, "MODIFIED", pod);
        (
            201,
            json!({"apiVersion": "v1", "kind": "Status", "status": "Success"}),
        )
    }
}

/// Whether a request's precondition holds, where it has one.
fn same(body: &Value, object: &Value, name: &str) -> bool {
    body["metadata"]
        .get(name)
        .is_none_or(|asked| *asked == object["metadata"][name])
}
