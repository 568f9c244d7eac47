//! A kubelet's part towards device plugins: its registry and its list of pods, served over HTTP/2 of its own, and its calls.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use divvy_container::nri::wire::Writer;

use crate::dra::{call, frame, messages, texts};
use crate::kubelet::decoded;

/// See the module.
pub struct PluginHost {
    folder: PathBuf,
    held: Arc<Mutex<Held>>,
}

#[derive(Default)]
struct Held {
    /// Resources that were registered, each with its socket.
    registered: Vec<(String, String)>,
    /// Which ids a container has: its pod, its name, the resource, the ids.
    containers: Vec<(String, String, String, Vec<String>)>,
}

impl PluginHost {
    /// A kubelet with this root directory, which has started.
    pub fn start(folder: &Path) -> Self {
        let held: Arc<Mutex<Held>> = Arc::default();
        for own in ["plugins", "plugins_registry", "device-plugins", "pod-resources"] {
            std::fs::create_dir_all(folder.join(own)).expect("a folder");
        }
        for own in ["device-plugins", "pod-resources"] {
            let listener = UnixListener::bind(folder.join(own).join("kubelet.sock")).expect("bound");
            let held = held.clone();
            std::thread::spawn(move || {
                for socket in listener.incoming().map_while(Result::ok) {
                    let held = held.clone();
                    std::thread::spawn(move || serve(socket, &held));
                }
            });
        }
        Self {
            folder: folder.to_owned(),
            held,
        }
    }

    /// The socket of a resource's plugin, once it has registered.
    pub fn socket(&self, resource: &str) -> Option<PathBuf> {
        let held = self.held.lock().expect("a lock");
        let found = held.registered.iter().find(|(name, _)| name == resource)?;
        Some(self.folder.join("device-plugins").join(&found.1))
    }

    /// The ids of the first list.
    pub fn ids(&self, resource: &str) -> Vec<String> {
        let socket = self.socket(resource).expect("registered");
        let list = crate::dra::first(&socket, "/v1beta1.DevicePlugin/ListAndWatch").expect("a list");
        let of = |device: Vec<u8>| texts(&device, 1).remove(0);
        messages(&list, 1).into_iter().map(of).collect()
    }

    /// Admits a container, as a kubelet does: it asks for the ids, and lists the container with them; its CDI devices.
    ///
    /// # Errors
    /// What the pod's events show.
    pub fn allocate(
        &self,
        pod: &str,
        container: &str,
        resource: &str,
        ids: &[String],
    ) -> Result<Vec<String>, String> {
        let asked = ids.iter().fold(Writer::default(), |asked, id| asked.text(1, id));
        let answer = self.call(resource, "Allocate", Writer::default().message(1, asked))?;
        let of = (pod.into(), container.into(), resource.into(), ids.to_vec());
        self.held.lock().expect("a lock").containers.push(of);
        let container = messages(&answer, 1).remove(0);
        let names = messages(&container, 5)
            .into_iter()
            .map(|device| texts(&device, 1).remove(0));
        let names: Vec<String> = names.collect();
        // Where slices are granted: kubelets before 1.28 pass on annotations, and know no CDI fields.
        let annotated = messages(&container, 4)
            .into_iter()
            .map(|entry| texts(&entry, 2).remove(0));
        if resource.starts_with("divvy.dev/") {
            assert_eq!(names, annotated.collect::<Vec<_>>());
        }
        Ok(names)
    }

    /// What a kubelet asks before it makes a container.
    ///
    /// # Errors
    /// What the pod's events show.
    pub fn pre_start(&self, resource: &str, ids: &[String]) -> Result<(), String> {
        let asked = ids.iter().fold(Writer::default(), |asked, id| asked.text(1, id));
        self.call(resource, "PreStartContainer", asked).map(drop)
    }

    /// Forgets a pod, as a kubelet does when it has ended.
    pub fn forget(&self, pod: &str) {
        self.held
            .lock()
            .expect("a lock")
            .containers
            .retain(|container| container.0 != pod);
    }

    fn call(&self, resource: &str, method: &str, message: Writer) -> Result<Vec<u8>, String> {
        let socket = self.socket(resource).expect("registered");
        let path = format!("/v1beta1.DevicePlugin/{method}");
        // As a kubelet 1.20.2 does.
        let authority = socket.display().to_string();
        call(&socket, &authority, &path, message.into_bytes()).map_err(|said| decoded(&said))
    }
}

/// Answers calls of one connection, each of which has one message.
fn serve(mut socket: UnixStream, held: &Mutex<Held>) -> Option<()> {
    let mut preface = [0; 24];
    socket.read_exact(&mut preface).ok()?;
    socket.write_all(&frame(4, 0, 0, &[])).ok()?;
    let mut decoder = fluke_hpack::Decoder::new();
    let (mut path, mut body) = (String::new(), Vec::new());
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).ok()?;
        let mut content = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        socket.read_exact(&mut content).ok()?;
        let (kind, flags, stream) = (head[3], head[4], head[8]);
        match kind {
            4 if flags & 1 == 0 => socket.write_all(&frame(4, 1, 0, &[])).ok()?,
            6 if flags & 1 == 0 => socket.write_all(&frame(6, 1, 0, &content)).ok()?,
            1 => {
                let headers = decoder.decode(&content).ok()?;
                let found = headers.iter().find(|(name, _)| name == b":path")?;
                path = String::from_utf8_lossy(&found.1).into_owned();
                body.clear();
            }
            0 => body.extend(content),
            _ => {}
        }
        if matches!(kind, 0 | 1) && flags & 1 != 0 {
            let message = held.lock().ok()?.answer(&path, body.get(5..).unwrap_or_default());
            let length = u32::try_from(message.len()).ok()?.to_be_bytes();
            let mut encoder = fluke_hpack::Encoder::new();
            let first: [(&[u8], &[u8]); 2] = [(b":status", b"200"), (b"content-type", b"application/grpc")];
            let last: [(&[u8], &[u8]); 1] = [(b"grpc-status", b"0")];
            let answer = [
                frame(1, 4, stream, &encoder.encode(first)),
                frame(0, 0, stream, &[&[0][..], &length, &message].concat()),
                frame(1, 5, stream, &encoder.encode(last)),
            ];
            socket.write_all(&answer.concat()).ok()?;
        }
    }
}

impl Held {
    fn answer(&mut self, path: &str, message: &[u8]) -> Vec<u8> {
        if path.ends_with("/Register") {
            let of = |field| texts(message, field).into_iter().next().unwrap_or_default();
            self.registered.push((of(3), of(2)));
            return Vec::new();
        }
        let list = self
            .containers
            .iter()
            .fold(Writer::default(), |list, (pod, container, resource, ids)| {
                let devices = ids
                    .iter()
                    .fold(Writer::default().text(1, resource), |devices, id| {
                        devices.text(2, id)
                    });
                let container = Writer::default().text(1, container).message(2, devices);
                let pod = Writer::default()
                    .text(1, pod)
                    .text(2, "default")
                    .message(3, container);
                list.message(1, pod)
            });
        list.into_bytes()
    }
}
