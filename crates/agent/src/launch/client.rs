//! A caller's side of the agent's socket, blocking: one request, one connection.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use divvy_model::{Code, Fault};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::compute::ComputeList;
use crate::api::events::EventRecord;
use crate::api::history::HistoryList;
use crate::api::{
    Attend, CreateSlice, CreatedSlice, Described, DeviceList, Document, ErrorDocument, Join, Kill, Killed,
    Resize, Share, ShareDevices, SliceList, Standing, Status, Wait, shorten,
};
use crate::life::container::{Parts, SharedDevices};
use crate::start::rundir::RunDir;
use crate::start::trust::check_run_dir;
use divvy_model::SliceRecord;

/// The time limit for an answer. An agent hands pages over within a second; a hung one must not hang its callers.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The largest answer that is read, in bytes.
const LARGEST: usize = 64 << 20;

/// How long a request is sent again to an agent that was too busy to take it.
const INSIST: Duration = Duration::from_secs(5);

/// An agent, by its run directory.
#[derive(Clone, Debug)]
pub struct Client {
    run: RunDir,
}

impl Client {
    /// The agent of a run directory; nothing is sent yet.
    #[must_use]
    pub fn new(run: RunDir) -> Self {
        Self { run }
    }

    /// The agent itself.
    ///
    /// # Errors
    /// Every method: [`Code::AgentUnreachable`], or what the agent refuses with.
    pub fn status(&self) -> Result<Status, Fault> {
        self.document::<(), _>(Method::GET, "/v1/status", None)
    }

    /// The devices with what is handed out of each.
    ///
    /// # Errors
    /// As [`Self::status`].
    pub fn devices(&self) -> Result<DeviceList, Fault> {
        self.get("/v1/devices")
    }

    /// The slices.
    ///
    /// # Errors
    /// As [`Self::status`].
    pub fn slices(&self) -> Result<SliceList, Fault> {
        self.get("/v1/slices")
    }

    /// The slices of jobs, by ledgers alone: quicker than [`Self::slices`], and without what the device's driver says.
    ///
    /// # Errors
    /// As [`Self::status`]. An agent of an earlier version knows no such request: [`Code::AgentVersion`].
    pub fn slices_of_jobs(&self) -> Result<SliceList, Fault> {
        self.get("/v1/jobs/slices")
    }

    /// Each slice's part of its devices' time.
    ///
    /// # Errors
    /// As [`Self::status`].
    pub fn compute(&self) -> Result<ComputeList, Fault> {
        self.get("/v1/compute")
    }

    /// What slices used that have ended, the newest ones, oldest first.
    ///
    /// # Errors
    /// As [`Self::status`].
    pub fn history(&self) -> Result<HistoryList, Fault> {
        self.get("/v1/history")
    }

    /// Calls `each` with the events after number `since`, oldest first; without a number, with all remembered events.
    /// With `follow`, also with later events, for as long as the agent runs and `each` returns true.
    ///
    /// # Errors
    /// As [`Self::status`]; an agent that ends meanwhile is no error.
    pub fn events(
        &self,
        since: Option<u64>,
        follow: bool,
        mut each: impl FnMut(EventRecord) -> bool,
    ) -> Result<(), Fault> {
        let path = format!("/v1/events?since={}&follow={follow}", since.unwrap_or(0));
        let request = self.request(Method::GET, &path, Vec::new())?;
        self.runtime()?.block_on(async {
            let (response, driver) = match tokio::time::timeout(TIMEOUT, self.begin(request)).await {
                Ok(answer) => answer?,
                Err(_) => return Err(self.silent("it did not answer in time")),
            };
            if !response.status().is_success() {
                return Err(old_agent("the agent has no events"));
            }
            let mut body = response.into_body();
            let mut read: Vec<u8> = Vec::new();
            'answer: while let Some(frame) = body.frame().await {
                // A killed agent sends nothing more.
                let Ok(frame) = frame else { break };
                read.extend(frame.into_data().unwrap_or_default());
                while let Some(end) = read.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = read.drain(..=end).collect();
                    // A kind of event that this version does not know is passed over.
                    if let Ok(event) = serde_json::from_slice(&line)
                        && !each(event)
                    {
                        break 'answer;
                    }
                }
                if read.len() > LARGEST {
                    break;
                }
            }
            driver.abort();
            Ok(())
        })
    }

    /// One slice, by name, id or a unique prefix of its id.
    ///
    /// # Errors
    /// As [`Self::status`]; [`Code::UnknownSlice`].
    pub fn slice(&self, slice: &str) -> Result<SliceRecord, Fault> {
        self.of_slice::<(), _>(Method::GET, slice, "", None)
    }

    /// Asks for a slice.
    ///
    /// # Errors
    /// As [`Self::status`]; the refusals of admission.
    pub fn create(&self, body: &CreateSlice) -> Result<CreatedSlice, Fault> {
        let mut body = body.clone();
        shorten(&mut body.command);
        self.document(Method::POST, "/v1/slices", Some(&body))
    }

    /// Queues for a slice.
    ///
    /// # Errors
    /// As [`Self::status`]; a refusal that waiting does not change.
    pub fn wait(&self, body: &Wait) -> Result<Standing, Fault> {
        let mut body = body.clone();
        shorten(&mut body.ask.command);
        self.document(Method::POST, "/v1/queue", Some(&body))
    }

    /// Joins a lasting slice.
    ///
    /// # Errors
    /// As [`Self::status`]; [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::NotLasting`].
    pub fn join(&self, slice: &str, body: &Join) -> Result<CreatedSlice, Fault> {
        let mut body = body.clone();
        shorten(&mut body.command);
        self.of_slice(Method::POST, slice, "/join", Some(&body))
    }

    /// Sets a lasting slice's lifetime anchor.
    ///
    /// # Errors
    /// As [`Self::status`]; [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::NotLasting`], [`Code::Usage`].
    pub fn attend(&self, slice: &str, body: &Attend) -> Result<SliceRecord, Fault> {
        self.of_slice(Method::POST, slice, "/attend", Some(body))
    }

    /// Has the agent prepare the files of a lasting slice for containers.
    ///
    /// # Errors
    /// As [`Self::status`]; [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::NotLasting`], [`Code::RunDir`],
    /// [`Code::DropIn`], [`Code::Driver`].
    pub fn share(&self, slice: &str, body: &Share) -> Result<Parts, Fault> {
        self.of_slice(Method::POST, slice, "/share", Some(body))
    }

    /// Tells the agent of a file that describes a slice to container engines, so that the file is removed with the
    /// slice.
    ///
    /// # Errors
    /// As [`Self::status`]; [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::RunDir`].
    pub fn described(&self, slice: &str, file: &Path) -> Result<SliceRecord, Fault> {
        let body = Described { file: file.into() };
        self.of_slice(Method::POST, slice, "/described", Some(&body))
    }

    /// Has the agent prepare the files of emulated devices for containers without a slice.
    ///
    /// # Errors
    /// As [`Self::status`]; [`Code::NotAllowed`], [`Code::RunDir`], [`Code::DropIn`].
    pub fn share_devices(&self, body: &ShareDevices) -> Result<SharedDevices, Fault> {
        self.document(Method::POST, "/v1/devices/share", Some(body))
    }

    /// Reports that a program of a slice's container was refused, and how.
    ///
    /// # Errors
    /// As [`Self::status`]; [`Code::UnknownSlice`], [`Code::NotAllowed`].
    pub fn refused(&self, slice: &str, refusal: &Fault) -> Result<SliceRecord, Fault> {
        self.of_slice(Method::POST, slice, "/refused", Some(refusal))
    }

    /// Reports that the caller, now the slice's page server, waits for its pages; returns when it has them.
    ///
    /// # Errors
    /// As [`Self::status`]; [`Code::Attach`].
    pub fn activate(&self, id: &str) -> Result<SliceRecord, Fault> {
        self.of_slice::<(), _>(Method::POST, id, "/activate", None)
    }

    /// Changes a live slice's memory.
    ///
    /// # Errors
    /// As [`Self::status`]; the refusals of admission.
    pub fn resize(&self, slice: &str, body: &Resize) -> Result<SliceRecord, Fault> {
        self.of_slice(Method::PATCH, slice, "", Some(body))
    }

    /// Signals a slice's processes.
    ///
    /// # Errors
    /// As [`Self::status`]; [`Code::UnknownSlice`], [`Code::NotAllowed`].
    pub fn kill(&self, slice: &str, body: &Kill) -> Result<Killed, Fault> {
        self.of_slice(Method::POST, slice, "/kill", Some(body))
    }

    /// Reports that a slice's program has ended, or deletes a lasting slice.
    ///
    /// # Errors
    /// As [`Self::status`]; [`Code::SliceBusy`].
    pub fn end(&self, id: &str) -> Result<(), Fault> {
        let path = format!("/v1/slices/{}", segment(id)?);
        self.send::<(), serde_json::Value>(Method::DELETE, &path, None)
            .map(drop)
    }

    /// Asks the agent to end. Slices keep their limits.
    ///
    /// # Errors
    /// As [`Self::status`]; [`Code::NotAllowed`].
    pub fn stop(&self) -> Result<(), Fault> {
        self.send::<(), serde_json::Value>(Method::POST, "/v1/stop", None)
            .map(drop)
    }

    /// The answer about a slice to a request on `/v1/slices/SLICE` and what follows that.
    fn of_slice<B: Serialize, R: DeserializeOwned>(
        &self,
        method: Method,
        slice: &str,
        rest: &str,
        body: Option<&B>,
    ) -> Result<R, Fault> {
        self.document(method, &format!("/v1/slices/{}{rest}", segment(slice)?), body)
    }

    /// The fields of the document with which the agent answers.
    fn document<B: Serialize, R: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<R, Fault> {
        self.send::<B, Document<R>>(method, path, body)
            .map(|document| document.body)
    }

    fn get<R: DeserializeOwned>(&self, path: &str) -> Result<R, Fault> {
        self.send::<(), R>(Method::GET, path, None)
    }

    /// Sends a request, repeatedly for a while if the agent is too busy to take it.
    fn send<B: Serialize, R: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<R, Fault> {
        const PAUSE: Duration = Duration::from_millis(100);
        let begin = std::time::Instant::now();
        loop {
            match self.send_once(method.clone(), path, body) {
                Err(fault) if fault.code == Code::Busy && begin.elapsed() < INSIST => {
                    std::thread::sleep(PAUSE);
                }
                outcome => return outcome,
            }
        }
    }

    fn send_once<B: Serialize, R: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<R, Fault> {
        let body = match body {
            Some(body) => serde_json::to_vec(body).map_err(|error| self.unreachable(&error))?,
            None => Vec::new(),
        };
        let request = self.request(method, path, body)?;
        let runtime = self.runtime()?;
        let (ok, bytes) = runtime.block_on(async {
            match tokio::time::timeout(TIMEOUT, self.exchange(request)).await {
                Ok(answer) => answer,
                Err(_) => Err(self.silent("it did not answer in time")),
            }
        })?;
        if ok {
            return serde_json::from_slice(&bytes)
                .map_err(|error| old_agent("the agent's answer was not understood").because(&error));
        }
        match serde_json::from_slice::<ErrorDocument>(&bytes) {
            Ok(document) => Err(document.body),
            Err(_) => Err(Fault::new(
                Code::AgentVersion,
                "the agent refused in a way this version does not know",
            )
            .cause(String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned())),
        }
    }

    fn request(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Request<Full<Bytes>>, Fault> {
        Request::builder()
            .method(method)
            .uri(path)
            .header("host", "divvy")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| self.unreachable(&error))
    }

    fn runtime(&self) -> Result<tokio::runtime::Runtime, Fault> {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| self.unreachable(&error))
    }

    /// Sends a request and waits for the head of the answer. The connection ends when the returned task is dropped.
    async fn begin(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(hyper::Response<hyper::body::Incoming>, tokio::task::AbortHandle), Fault> {
        let stream = self.connect().await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.unreachable(&error))?;
        let driver = tokio::spawn(connection).abort_handle();
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| self.unreachable(&error))?;
        Ok((response, driver))
    }

    /// Connects to the agent, and checks that it is the run directory's owner's or root's: in /tmp any process may have
    /// made the folder, and any process may listen in it.
    async fn connect(&self) -> Result<tokio::net::UnixStream, Fault> {
        let path = self.run.path();
        let owner = path.exists().then(|| check_run_dir(path)).transpose()?;
        let stream = connect_in_turn(&self.run.socket(), QUEUE)
            .and_then(tokio::net::UnixStream::from_std)
            .map_err(|error| self.unreachable(&error))?;
        let peer = stream
            .peer_cred()
            .map_err(|error| self.unreachable(&error))?
            .uid();
        if peer == 0 || Some(peer) == owner {
            return Ok(stream);
        }
        Err(Fault::new(
            Code::RunDir,
            format!(
                "what answers on `{}` is user {peer}'s, and the folder is not",
                self.run.socket().display()
            ),
        )
        .hint("remove the folder, or set DIVVY_RUN_DIR to a directory of your own"))
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<(bool, Bytes), Fault> {
        let (response, driver) = self.begin(request).await?;
        let ok = response.status().is_success();
        let body = http_body_util::Limited::new(response.into_body(), LARGEST);
        let bytes = body
            .collect()
            .await
            .map_err(|error| self.silent(&error.to_string()))?
            .to_bytes();
        driver.abort();
        Ok((ok, bytes))
    }

    fn unreachable(&self, error: &dyn std::error::Error) -> Fault {
        Fault::new(
            Code::AgentUnreachable,
            format!("no agent answers on `{}`", self.run.socket().display()),
        )
        .because(error)
        .hint("`divvy run` starts one; `divvy doctor` looks for the reason")
    }

    fn silent(&self, why: &str) -> Fault {
        Fault::new(
            Code::AgentUnreachable,
            format!("the agent on `{}` is silent", self.run.socket().display()),
        )
        .cause(why)
        .hint(format!("its log is {}", self.run.log().display()))
    }
}

fn old_agent(what: &str) -> Fault {
    Fault::new(Code::AgentVersion, what)
        .hint("`divvy agent stop` ends the old agent; its slices keep their limits")
}

/// A slice's name as one segment of a path; text that is no name cannot be a slice.
fn segment(slice: &str) -> Result<&str, Fault> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !slice.is_empty() && slice.bytes().all(plain) {
        Ok(slice)
    } else {
        Err(
            Fault::new(Code::UnknownSlice, format!("there is no slice `{slice}`"))
                .hint("`divvy ps` lists them"),
        )
    }
}
/// How long a caller waits in the queue of the agent's socket.
const QUEUE: Duration = Duration::from_secs(10);

/// Connects, and waits for a place where another user's connections fill the socket's queue. The kernel admits waiting
/// callers in turn, and refuses the others.
fn connect_in_turn(path: &Path, limit: Duration) -> std::io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Err(rustix::io::Errno::INTR) => {}
            outcome => break outcome?,
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(true)?;
    Ok(stream)
}

#[cfg(test)]
mod queue_tests {
    use std::os::unix::net::UnixListener;

    use rustix::net::{bind, listen};

    use super::*;

    #[test]
    fn a_caller_waits_for_its_turn_where_the_queue_is_full() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        );
        let socket = socket.expect("a socket");
        bind(&socket, &SocketAddrUnix::new(&path).expect("short")).expect("bound");
        listen(&socket, 0).expect("it listens");
        let listener = UnixListener::from(socket);
        let first = connect_in_turn(&path, QUEUE).expect("there is one place");
        let full = connect_in_turn(&path, Duration::from_millis(10)).expect_err("and no other");
        assert_eq!(full.kind(), std::io::ErrorKind::WouldBlock);
        let waiting = std::thread::spawn(move || connect_in_turn(&path, Duration::from_secs(60)).map(drop));
        listener.accept().expect("the first");
        listener.accept().expect("the one that waited");
        waiting.join().expect("no panic").expect("let in");
        drop(first);
    }
}
