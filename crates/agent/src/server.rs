//! The agent's face: HTTP and JSON on a unix socket. Who calls is what the kernel says, never what the caller says.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Path, Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use axum::{Router, serve};
use divvy_model::{Code, Fault};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixListener;
use tokio::sync::{Notify, watch};

use crate::RunDir;
use crate::api::{Document, Items, SliceItems, Wait};
use crate::bypass::audit::Auditor;
use crate::daemon::{Daemon, KeepCommand};
use crate::metrics;
use crate::peer::Peer;
use crate::settings::Settings;
use crate::start::hold_agent_lock;
use crate::stream::EventLines;

/// How often the dead are looked for. A limiter that runs short looks for itself, so this is for the lists.
const TICK: Duration = Duration::from_millis(100);
/// How often the processes of slices are looked at for ways past the limiter. Each look reads all of /proc; where a device
/// has a process that no ledger has, and had none of it before, one comes at once.
const ROUND: Duration = Duration::from_secs(2);
/// How soon what one look does not tell for sure is looked at again: longer than a process takes to become another program.
const AGAIN: Duration = Duration::from_millis(250);

/// How often pages that a keeper did not give back are asked for again.
const RECALL: Duration = Duration::from_secs(1);

/// The largest request that is read, in bytes.
const LARGEST: usize = 1 << 20;

/// Serves until it is told to stop, or has had no slice and no request for the idle time. `keep` is the command that
/// keeps a lasting slice.
///
/// # Errors
/// [`Code::AgentStart`] when another agent serves this run directory or the socket cannot be made.
pub fn serve_agent(run: &RunDir, settings: Settings, keep: KeepCommand) -> Result<(), Fault> {
    let _lock = hold_agent_lock(run)?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(16)
        .build()
        .map_err(|error| Fault::new(Code::AgentStart, "cannot start the agent's loop").because(&error))?
        .block_on(listen(run, settings, keep))
}

async fn listen(run: &RunDir, settings: Settings, keep: KeepCommand) -> Result<(), Fault> {
    let idle_timeout = settings.idle_timeout;
    tracing::info!(run_dir = %run.path().display(), version = env!("CARGO_PKG_VERSION"), "agent starts");
    let agent = Agent {
        daemon: Arc::new(Daemon::start(run.clone(), settings, keep)?),
        stop: Arc::new(Notify::new()),
        requests: Arc::new(AtomicU64::new(0)),
        closing: watch::Sender::new(false),
    };
    if let Err(error) = crate::looks::start(&agent.daemon) {
        // Who asks is refused by what the last look found.
        tracing::error!(%error, "cannot start the thread that looks for tenants");
    }
    let listener = bind(run)?;
    let told = std::fs::read_link("/proc/self/ns/pid")
        .and_then(|own| std::fs::write(run.namespace(), own.as_os_str().as_encoded_bytes()));
    if let Err(error) = told {
        tracing::warn!(%error, "processes in namespaces of their own will be shown with the ids they have there");
    }
    tokio::spawn(make_rounds(agent.daemon.clone()));
    tokio::spawn(look_past_the_limiter(agent.daemon.clone()));
    let until = ended(agent.clone(), run.clone(), idle_timeout);
    let app = router(agent).into_make_service_with_connect_info::<Caller>();
    serve(listener, app)
        .with_graceful_shutdown(until)
        .await
        .map_err(|error| Fault::new(Code::Internal, "the agent's loop failed").because(&error))
}

/// Nobody else serves here, says the lock: a socket that is there is a dead agent's.
fn bind(run: &RunDir) -> Result<UnixListener, Fault> {
    let path = run.socket();
    let cannot = |error: &std::io::Error| {
        Fault::new(Code::AgentStart, format!("cannot listen on `{}`", path.display())).because(error)
    };
    let _stale = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).map_err(|error| cannot(&error))?;
    // Anybody who can reach it may look; what a caller may change is decided by who it is.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))
        .map_err(|error| cannot(&error))?;
    Ok(listener)
}

/// Reads what drivers say of the devices' time, and now and then compares it with what slices were charged.
async fn make_rounds(daemon: Arc<Daemon>) {
    for round in 1_u64.. {
        tokio::time::sleep(ROUND / 2).await;
        let daemon = daemon.clone();
        let round = tokio::task::spawn_blocking(move || {
            daemon.meter_compute();
            if round % 2 == 0 {
                daemon.audit_compute();
            }
        })
        .await;
        if let Err(error) = round {
            tracing::error!(%error, "a round of the auditor of compute failed");
        }
    }
}

/// Looks for ways past the limiter, as long as the agent runs: now and then, and soon where there is reason to.
async fn look_past_the_limiter(daemon: Arc<Daemon>) {
    let auditor = Arc::new(Auditor::default());
    let mut pause = ROUND;
    loop {
        let stray = tokio::time::timeout(pause, daemon.strays.notified())
            .await
            .is_ok();
        let (auditor, round) = (auditor.clone(), daemon.clone());
        let round = tokio::task::spawn_blocking(move || auditor.look(&round));
        pause = match round.await {
            Ok(true) => AGAIN,
            Ok(false) => ROUND,
            Err(error) => {
                tracing::error!(%error, "a round of the auditor failed");
                ROUND
            }
        };
        if stray {
            // However many come: so often and no oftener.
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// Looks after the slices until the agent should end; the socket is gone when this returns.
async fn ended(agent: Agent, run: RunDir, idle_timeout: Duration) {
    let mut terminate = signal(tokio::signal::unix::SignalKind::terminate());
    let mut interrupt = signal(tokio::signal::unix::SignalKind::interrupt());
    let mut busy_at = Instant::now();
    let mut seen_requests = 0;
    let mut missing = false;
    let mut recalled_at = Instant::now();
    let mut recall: Option<tokio::task::JoinHandle<()>> = None;
    loop {
        tokio::select! {
            () = agent.stop.notified() => { tracing::info!("agent stops: asked to"); break; }
            () = terminate.recv_one() => { tracing::info!("agent stops: SIGTERM"); break; }
            () = interrupt.recv_one() => { tracing::info!("agent stops: SIGINT"); break; }
            () = tokio::time::sleep(TICK) => {}
        }
        let idle = recall.as_ref().is_none_or(tokio::task::JoinHandle::is_finished);
        if (missing || agent.daemon.is_untidy()) && idle && recalled_at.elapsed() >= RECALL {
            recalled_at = Instant::now();
            let daemon = agent.daemon.clone();
            // Beside the ticks: a keeper may keep us waiting.
            recall = Some(tokio::task::spawn_blocking(move || {
                daemon.recall_missing();
                if daemon.is_untidy() {
                    daemon.tidy();
                }
            }));
        }
        let daemon = agent.daemon.clone();
        let alive;
        (alive, missing) = tokio::task::spawn_blocking(move || (daemon.tick(), daemon.misses_pages()))
            .await
            .unwrap_or((true, false));
        let requests = agent.requests.load(Ordering::Relaxed);
        if alive || requests != seen_requests {
            seen_requests = requests;
            busy_at = Instant::now();
        } else if busy_at.elapsed() >= idle_timeout {
            tracing::info!("agent stops: nothing to look after");
            break;
        }
    }
    let _gone = std::fs::remove_file(run.socket());
    agent.closing.send_replace(true);
}

/// A stream of signals, or of none where the system gives no handler.
struct Signals(Option<tokio::signal::unix::Signal>);

fn signal(kind: tokio::signal::unix::SignalKind) -> Signals {
    Signals(tokio::signal::unix::signal(kind).ok())
}

impl Signals {
    async fn recv_one(&mut self) {
        match &mut self.0 {
            Some(signal) => {
                signal.recv().await;
            }
            None => std::future::pending().await,
        }
    }
}

#[derive(Clone)]
struct Agent {
    daemon: Arc<Daemon>,
    stop: Arc<Notify>,
    requests: Arc<AtomicU64>,
    /// Set when the agent ends: what would go on for ever ends then.
    closing: watch::Sender<bool>,
}

/// The caller of a connection; nobody where the kernel does not tell.
#[derive(Clone, Copy, Debug)]
struct Caller(Option<Peer>);

impl Connected<IncomingStream<'_, UnixListener>> for Caller {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        let socket = stream.io();
        let peer = socket.peer_cred().ok();
        Self(peer.map(|peer| {
            let pid = peer.pid().and_then(|pid| pid.try_into().ok()).unwrap_or(0);
            Peer::of_connection(socket, peer.uid(), pid)
        }))
    }
}

fn router(agent: Agent) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/compute", get(compute))
        .route("/v1/events", get(events))
        .route("/metrics", get(metrics))
        .route("/v1/devices", get(devices))
        .route("/v1/slices", get(slices).post(create))
        .route("/v1/queue", post(wait))
        .route("/v1/slices/{slice}", get(slice).patch(resize).delete(end))
        .route("/v1/slices/{slice}/activate", post(activate))
        .route("/v1/slices/{slice}/attend", post(attend))
        .route("/v1/slices/{slice}/join", post(join))
        .route("/v1/slices/{slice}/refused", post(refused))
        .route("/v1/slices/{slice}/kill", post(kill))
        .route("/v1/stop", post(stop))
        .fallback(unknown)
        .layer(middleware::from_fn_with_state(agent.clone(), count))
        .layer(DefaultBodyLimit::max(LARGEST))
        .with_state(agent)
}

async fn count(State(agent): State<Agent>, request: Request, next: Next) -> Response {
    agent.requests.fetch_add(1, Ordering::Relaxed);
    next.run(request).await
}

async fn unknown() -> Refusal {
    Refusal(Fault::new(Code::AgentVersion, "the agent knows no such request"))
}

async fn status(State(agent): State<Agent>) -> Answer {
    agent.answer("AgentStatus", |daemon| Ok(daemon.status())).await
}

async fn compute(State(agent): State<Agent>) -> Answer {
    agent.answer("ComputeList", |daemon| Ok(daemon.compute())).await
}

async fn events(State(agent): State<Agent>, uri: Uri) -> Result<Response, Refusal> {
    let (mut since, mut follow) = (0, true);
    for (name, value) in uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|ask| ask.split_once('='))
    {
        match (name, value.parse::<u64>(), value.parse::<bool>()) {
            ("since", Ok(number), _) => since = number,
            ("follow", _, Ok(answer)) => follow = answer,
            _ => {
                let message = format!("`{name}={value}` was not understood");
                return Err(Fault::new(Code::AgentVersion, message)
                    .hint("since=NUMBER and follow=true or false")
                    .into());
            }
        }
    }
    let journal = agent.daemon.journal.clone();
    let lines = EventLines::begin(journal, since, follow, agent.closing.subscribe());
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, Body::new(lines)).into_response())
}

/// Not JSON: what collects metrics reads this form.
async fn metrics(State(agent): State<Agent>) -> Answer {
    let daemon = agent.daemon;
    let text = tokio::task::spawn_blocking(move || metrics::text(&daemon.status(), &daemon.compute().items))
        .await
        .map_err(|error| Fault::new(Code::Internal, "the request failed inside the agent").because(&error))?;
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    Ok((kind, text).into_response())
}

async fn devices(State(agent): State<Agent>) -> Answer {
    let list = |daemon: &Daemon| {
        Ok(Items {
            items: daemon.devices(),
        })
    };
    agent.answer("DeviceList", list).await
}

async fn slices(State(agent): State<Agent>) -> Answer {
    let list = |daemon: &Daemon| {
        Ok(SliceItems {
            items: daemon.slices(),
            unmanaged: daemon.unmanaged(),
        })
    };
    agent.answer("SliceList", list).await
}

async fn slice(
    State(agent): State<Agent>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    Path(which): Path<String>,
) -> Answer {
    let peer = caller.known()?;
    agent
        .answer("Slice", move |daemon| daemon.slice(peer, &which))
        .await
}

async fn create(State(agent): State<Agent>, ConnectInfo(caller): ConnectInfo<Caller>, body: Bytes) -> Answer {
    let (peer, ask) = (caller.known()?, parse(&body)?);
    agent
        .answer("CreatedSlice", move |daemon| daemon.create(peer, &ask))
        .await
}

/// Looks at the caller's place again and again: the ticks serve the queue, so this costs next to nothing.
async fn wait(State(agent): State<Agent>, ConnectInfo(caller): ConnectInfo<Caller>, body: Bytes) -> Answer {
    const LOOK: Duration = Duration::from_millis(50);
    /// Callers give up on an agent that is silent for longer than this by far.
    const LONGEST: Duration = Duration::from_secs(5);
    let (peer, mut ask) = (caller.known()?, parse::<Wait>(&body)?);
    let patience = Duration::from_millis(ask.patience_ms).min(LONGEST);
    let begin = Instant::now();
    loop {
        let (daemon, asked) = (agent.daemon.clone(), ask.clone());
        let standing = tokio::task::spawn_blocking(move || daemon.wait(peer, &asked))
            .await
            .map_err(|error| {
                Fault::new(Code::Internal, "the request failed inside the agent").because(&error)
            })??;
        let told = standing.created.is_some() || ask.told != Some((standing.place, standing.count));
        if told || begin.elapsed() >= patience {
            return json(StatusCode::OK, &Document::new("Standing", standing));
        }
        ask.ticket = Some(standing.ticket);
        tokio::time::sleep(LOOK).await;
    }
}

async fn activate(
    State(agent): State<Agent>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    Path(which): Path<String>,
) -> Answer {
    let peer = caller.known()?;
    agent
        .answer("Slice", move |daemon| daemon.activate(peer, &which))
        .await
}

async fn join(
    State(agent): State<Agent>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    Path(which): Path<String>,
    body: Bytes,
) -> Answer {
    let (peer, ask) = (caller.known()?, parse(&body)?);
    agent
        .answer("CreatedSlice", move |daemon| daemon.join(peer, &which, &ask))
        .await
}

async fn attend(
    State(agent): State<Agent>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    Path(which): Path<String>,
    body: Bytes,
) -> Answer {
    let (peer, ask) = (caller.known()?, parse(&body)?);
    agent
        .answer("Slice", move |daemon| daemon.attend(peer, &which, &ask))
        .await
}

async fn refused(
    State(agent): State<Agent>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    Path(which): Path<String>,
    body: Bytes,
) -> Answer {
    let (peer, refusal) = (caller.known()?, parse(&body)?);
    agent
        .answer("Slice", move |daemon| daemon.refused(peer, &which, &refusal))
        .await
}

async fn resize(
    State(agent): State<Agent>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    Path(which): Path<String>,
    body: Bytes,
) -> Answer {
    let (peer, ask) = (caller.known()?, parse(&body)?);
    agent
        .answer("Slice", move |daemon| daemon.resize(peer, &which, &ask))
        .await
}

async fn kill(
    State(agent): State<Agent>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    Path(which): Path<String>,
    body: Bytes,
) -> Answer {
    let (peer, ask) = (caller.known()?, parse(&body)?);
    agent
        .answer("Killed", move |daemon| daemon.kill(peer, &which, &ask))
        .await
}

async fn end(
    State(agent): State<Agent>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    Path(which): Path<String>,
) -> Answer {
    let peer = caller.known()?;
    let ended = move |daemon: &Daemon| daemon.end(peer, &which).map(|()| Items::<()> { items: vec![] });
    agent.answer("Done", ended).await
}

async fn stop(State(agent): State<Agent>, ConnectInfo(caller): ConnectInfo<Caller>) -> Answer {
    let peer = caller.known()?;
    peer.may_change(agent.daemon.uid, agent.daemon.uid)?;
    agent.stop.notify_one();
    agent.answer("Done", |_| Ok(Items::<()> { items: vec![] })).await
}

impl Caller {
    fn known(self) -> Result<Peer, Fault> {
        self.0
            .ok_or_else(|| Fault::new(Code::NotAllowed, "the kernel does not tell who is calling"))
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(body)
        .map_err(|error| Fault::new(Code::AgentVersion, "the request was not understood").because(&error))
}

type Answer = Result<Response, Refusal>;

impl Agent {
    /// Runs `work` off the loop, because it may wait for a keeper or a driver.
    async fn answer<T: Serialize + Send + 'static>(
        self,
        kind: &'static str,
        work: impl FnOnce(&Daemon) -> Result<T, Fault> + Send + 'static,
    ) -> Answer {
        let daemon = self.daemon;
        let body = tokio::task::spawn_blocking(move || work(&daemon))
            .await
            .map_err(|error| {
                Fault::new(Code::Internal, "the request failed inside the agent").because(&error)
            })??;
        json(StatusCode::OK, &Document::new(kind, body))
    }
}

fn json<T: Serialize>(status: StatusCode, document: &T) -> Answer {
    let bytes = serde_json::to_vec(document)
        .map_err(|error| Fault::new(Code::Internal, "the answer cannot be written").because(&error))?;
    Ok((status, [(header::CONTENT_TYPE, "application/json")], bytes).into_response())
}

/// A fault as an HTTP answer.
struct Refusal(Fault);

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self(fault)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self.0.code {
            Code::UnknownSlice | Code::UnknownDevice => StatusCode::NOT_FOUND,
            Code::NotAllowed => StatusCode::FORBIDDEN,
            Code::DeviceFull
            | Code::ComputeFull
            | Code::OtherMode
            | Code::TooManySlices
            | Code::DeviceTaken
            | Code::NameTaken
            | Code::SliceBusy => StatusCode::CONFLICT,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        };
        tracing::debug!(code = %self.0.code, "{}", self.0);
        json(status, &Document::new("Error", self.0))
            .unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
    }
}
