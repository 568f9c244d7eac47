//! A kubelet's part towards its DRA driver: the registration and the calls, over HTTP/2 of its own on Unix sockets, with the
//! authority that the real one sends.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use divvy_container::nri::wire::{Value, Writer, fields};
use rustix::process::Signal;

use crate::api_server::ApiServer;
use crate::host::Host;
use crate::processes;
use crate::wait::until;

/// A driver that a scenario has started, and the kubelet's folder.
pub struct Driver {
    process: Child,
    kubelet: PathBuf,
    log: PathBuf,
    /// That of the claims.
    namespace: String,
}

/// What the driver answers of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The request.
    pub request: String,
    /// The device's name.
    pub device: String,
    /// CDI devices.
    pub cdi: Vec<String>,
    /// The share.
    pub share_id: String,
}

impl Driver {
    /// `divvy k8s dra-plugin`, waited for until the kubelet can find it.
    pub fn start(host: &Host, server: &ApiServer) -> Self {
        Self::start_at(host, &server.kubeconfig(host.folder()), "node-a", "default")
    }

    /// The same in any cluster, as this node's driver. Claims are of this namespace.
    pub fn start_at(host: &Host, kubeconfig: &Path, node: &str, namespace: &str) -> Self {
        let kubelet = host.folder().join("kubelet");
        // What a kubelet makes when it starts.
        for own in ["plugins", "plugins_registry"] {
            std::fs::create_dir_all(kubelet.join(own)).expect("a folder");
        }
        let log = host.folder().join("driver.log");
        let _earlier = std::fs::remove_file(kubelet.join("plugins_registry/gpu.divvy.dev-reg.sock"));
        let mut command = host.divvy(["k8s", "dra-plugin", "--node", node, "--kubelet-dir"]);
        command
            .arg(&kubelet)
            .arg("--cdi-directory")
            .arg(host.folder().join("cdi"))
            .env("KUBECONFIG", kubeconfig)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).expect("a log"));
        for proxy in [
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "ALL_PROXY",
            "http_proxy",
            "https_proxy",
            "all_proxy",
        ] {
            command.env_remove(proxy);
        }
        let driver = Self {
            process: command.spawn().expect("divvy starts"),
            kubelet,
            log,
            namespace: namespace.to_owned(),
        };
        until("the driver listens", || {
            let said = driver.said();
            assert!(!said.contains("error["), "{said}");
            driver.registration().exists().then_some(())
        });
        driver
    }

    /// What it has logged.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The socket that the kubelet's plugin watcher finds.
    pub fn registration(&self) -> PathBuf {
        self.kubelet.join("plugins_registry/gpu.divvy.dev-reg.sock")
    }

    /// Kills it, as a node's memory running out does.
    pub fn kill(mut self) {
        processes::signal(self.process.id(), Signal::KILL);
        let _ended = self.process.wait();
    }

    /// Registers as the kubelet's plugin watcher does; the driver's socket and versions.
    pub fn register(&self) -> (PathBuf, Vec<String>) {
        let socket = self.registration();
        let authority = socket.display().to_string().replace('/', "%2F");
        let info = call(
            &socket,
            &authority,
            "/pluginregistration.Registration/GetInfo",
            Vec::new(),
        )
        .expect("told");
        assert_eq!(
            (texts(&info, 1), texts(&info, 2)),
            (vec!["DRAPlugin".into()], vec!["gpu.divvy.dev".into()])
        );
        let endpoint = PathBuf::from(texts(&info, 3).remove(0));
        let registered = Writer::default().number(1, 1).into_bytes();
        let method = "/pluginregistration.Registration/NotifyRegistrationStatus";
        call(&socket, &authority, method, registered).expect("noted");
        (endpoint, texts(&info, 4))
    }

    fn claims(&self, version: &str, method: &str, claims: &[(&str, &str)]) -> Result<Vec<u8>, String> {
        let request = claims.iter().fold(Writer::default(), |request, (name, uid)| {
            request.message(
                1,
                Writer::default()
                    .text(1, &self.namespace)
                    .text(2, uid)
                    .text(3, name),
            )
        });
        let socket = self.kubelet.join("plugins/gpu.divvy.dev/dra.sock");
        let path = format!("/k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin/{method}");
        call(&socket, "localhost", &path, request.into_bytes())
    }

    /// Has a claim prepared.
    ///
    /// # Errors
    /// The sentence that the pod's events show.
    pub fn prepare(&self, version: &str, name: &str, uid: &str) -> Result<Vec<Device>, String> {
        let answer = self.claims(version, "NodePrepareResources", &[(name, uid)])?;
        let body = of_claim(&answer, uid)?;
        if let Some(error) = texts(&body, 2).into_iter().find(|error| !error.is_empty()) {
            return Err(error);
        }
        let devices = messages(&body, 1).into_iter().map(|device| Device {
            request: texts(&device, 1).join(","),
            device: texts(&device, 3).join(","),
            cdi: texts(&device, 4),
            share_id: texts(&device, 5).join(","),
        });
        Ok(devices.collect())
    }

    /// Has a claim taken back.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub fn unprepare(&self, version: &str, name: &str, uid: &str) -> Result<(), String> {
        let answer = self.claims(version, "NodeUnprepareResources", &[(name, uid)])?;
        let body = of_claim(&answer, uid)?;
        let error = texts(&body, 1).into_iter().find(|error| !error.is_empty());
        error.map_or(Ok(()), Err)
    }

    /// Begins to have a claim prepared, and does not wait for the answer.
    pub fn begin_prepare(&self, name: &str, uid: &str) {
        let request = Writer::default().message(
            1,
            Writer::default()
                .text(1, &self.namespace)
                .text(2, uid)
                .text(3, name),
        );
        let socket = self.kubelet.join("plugins/gpu.divvy.dev/dra.sock");
        let path = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources";
        let _left = ask(&socket, "localhost", path, &request.into_bytes());
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _ended = self.process.wait();
    }
}

/// The part of an answer that is about this claim.
fn of_claim(answer: &[u8], uid: &str) -> Result<Vec<u8>, String> {
    let entries = messages(answer, 1);
    let found = entries.iter().find(|entry| texts(entry, 1) == [uid]);
    let entry = found.ok_or("the claim is not in the answer")?;
    Ok(messages(entry, 2).pop().unwrap_or_default())
}

pub(crate) fn messages(message: &[u8], field: u32) -> Vec<Vec<u8>> {
    let all = fields(message).map(|field| field.expect("protobuf"));
    let of =
        |(number, value): (u32, Value<'_>)| Some(value.bytes().ok()?.to_vec()).filter(|_| number == field);
    all.filter_map(of).collect()
}

pub(crate) fn texts(message: &[u8], field: u32) -> Vec<String> {
    let of = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    messages(message, field).into_iter().map(of).collect()
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u8, body: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = u32::try_from(body.len()).expect("small").to_be_bytes();
    [&[a, b, c, kind, flags, 0, 0, 0, stream], body].concat()
}

/// Sends a call; the connection.
fn ask(socket: &Path, authority: &str, path: &str, message: &[u8]) -> Result<UnixStream, String> {
    let words = |error: std::io::Error| error.to_string();
    let mut stream = UnixStream::connect(socket).map_err(words)?;
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .map_err(words)?;
    // As grpc-go does: with an index of headers.
    let headers: [(&[u8], &[u8]); 7] = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.as_bytes()),
        (b":authority", authority.as_bytes()),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"grpc-go/1.72.2"),
        (b"te", b"trailers"),
    ];
    let block = fluke_hpack::Encoder::new().encode(headers);
    let length = u32::try_from(message.len()).expect("small").to_be_bytes();
    let body = [&[0][..], &length, message].concat();
    let bytes = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, 4, 1, &block),
        frame(0, 1, 1, &body),
    ];
    stream.write_all(&bytes.concat()).map_err(words)?;
    Ok(stream)
}

/// A unary call; its answer's message.
pub(crate) fn call(socket: &Path, authority: &str, path: &str, message: Vec<u8>) -> Result<Vec<u8>, String> {
    answered(ask(socket, authority, path, &message)?, false)
}

/// The first message of a stream that goes on.
pub(crate) fn first(socket: &Path, path: &str) -> Result<Vec<u8>, String> {
    answered(ask(socket, "localhost", path, &[])?, true)
}

fn answered(mut stream: UnixStream, first_only: bool) -> Result<Vec<u8>, String> {
    let mut decoder = fluke_hpack::Decoder::new();
    let mut answer = Vec::new();
    loop {
        let mut head = [0; 9];
        stream
            .read_exact(&mut head)
            .map_err(|error| format!("the connection ended: {error}"))?;
        let mut body = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut body).map_err(|error| error.to_string())?;
        let ends = head[4] & 1 != 0;
        match head[3] {
            0 => {
                answer.extend(body);
                let announced = answer.get(1..5).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
                let whole = announced.map(|bytes| u32::from_be_bytes(bytes) as usize + 5);
                if first_only && whole.is_some_and(|whole| answer.len() >= whole) {
                    return Ok(answer.split_off(5));
                }
            }
            1 => {
                let headers = decoder.decode(&body).map_err(|error| format!("{error:?}"))?;
                let of = |name: &[u8]| {
                    let found = headers.iter().find(|(key, _)| key == name);
                    found.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
                };
                match of(b"grpc-status").as_deref() {
                    Some("0") => return Ok(answer.split_off(5)),
                    Some(status) => {
                        return Err(format!("{status}: {}", of(b"grpc-message").unwrap_or_default()));
                    }
                    None if ends => return Err(format!("no status: {:?}", of(b":status"))),
                    None => {}
                }
            }
            3 | 7 => return Err(format!("the stream was reset: {body:?}")),
            4 if !ends => stream
                .write_all(&frame(4, 1, 0, &[]))
                .map_err(|error| error.to_string())?,
            _ => {}
        }
    }
}
