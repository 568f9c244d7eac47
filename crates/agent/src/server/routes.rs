//! The routes of the API, and the call of the daemon behind each.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, get, on, post};
use divvy_model::{Code, Fault};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Agent;
use super::answer::{Answer, Refusal, json, write, written};
use super::connection::Caller;
use crate::api::viewer::Viewer;
use crate::api::{CreateSlice, CreatedSlice, Document, Items, Join, SliceItems, Wait, shorten};
use crate::daemon::Daemon;
use crate::server::metrics;
use crate::server::stream::EventLines;
use crate::system::peer::Peer;

/// The largest body that is read from root and from the agent's own user, in bytes.
const LARGEST: usize = 1 << 20;
/// The largest from others.
const LARGEST_OF_OTHERS: usize = 64 << 10;
/// The time limit for a body.
const BODY: Duration = Duration::from_secs(10);

/// The routes.
pub(super) fn router(agent: Agent) -> Router {
    use MethodFilter as M;
    let slice = shown(M::GET, "Slice", |call| {
        let slice = call.daemon.lists.slice(call.peer, call.slice)?;
        Ok(Viewer::of(call.peer, call.daemon.uid).slice(slice))
    });
    let end = shown(M::DELETE, "Done", |call| {
        call.daemon.endings.end(call.peer, call.slice)?;
        items(Vec::<()>::new())
    });
    let resize = asked(M::PATCH, "Slice", |call, ask| {
        let before = call
            .daemon
            .state
            .lock()
            .find(call.slice, call.peer)?
            .record
            .clone();
        call.daemon.supervisor.note_limits(&before);
        call.daemon.resizing.resize(call.peer, call.slice, &ask)
    });
    let activate = shown(M::POST, "Slice", |call| {
        call.daemon.admission.activate(call.peer, call.slice)
    });
    let attend = asked(M::POST, "Slice", |call, ask| {
        call.daemon.anchors.set(call.peer, call.slice, &ask)
    });
    let join = asked(M::POST, "CreatedSlice", |call, mut ask: Join| {
        shorten(&mut ask.command);
        call.daemon.requests.join(call.peer, call.slice, &ask)
    });
    let share = asked(M::POST, "Parts", |call, ask| {
        call.daemon.containers.share(call.peer, call.slice, &ask)
    });
    let described = asked(M::POST, "Slice", |call, ask| {
        call.daemon.containers.described(call.peer, call.slice, &ask)
    });
    let refused = asked(M::POST, "Slice", |call, refusal| {
        call.daemon.reports.refused(call.peer, call.slice, &refusal)
    });
    let kill = asked(M::POST, "Killed", |call, ask| {
        call.daemon.endings.kill(call.peer, call.slice, &ask)
    });
    let share_devices = asked(M::POST, "SharedDevices", |call, ask| {
        call.daemon.containers.share_devices(call.peer, &ask)
    });
    let status = shown(M::GET, "AgentStatus", |call| Ok(call.daemon.status()));
    let compute = shown(M::GET, "ComputeList", |call| items(call.daemon.leasing.views()));
    let history = shown(M::GET, "HistoryList", |call| {
        let viewer = Viewer::of(call.peer, call.daemon.uid);
        let account = call.daemon.accounts.one(call.peer.uid);
        items(viewer.history(call.daemon.endings.history.newest(account)))
    });
    let devices = shown(M::GET, "DeviceList", |call| items(call.daemon.lists.devices()));
    let slices = shown(M::GET, "SliceList", slices).merge(asked(M::POST, "CreatedSlice", create));
    let of_jobs = shown(M::GET, "SliceList", of_jobs);
    Router::new()
        .route("/v1/status", status)
        .route("/v1/jobs/slices", of_jobs)
        .route("/v1/compute", compute)
        .route("/v1/events", get(events))
        .route("/v1/history", history)
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthy))
        .route("/v1/devices", devices)
        .route("/v1/devices/share", share_devices)
        .route("/v1/slices", slices)
        .route("/v1/queue", post(wait))
        .route("/v1/slices/{slice}", slice.merge(resize).merge(end))
        .route("/v1/slices/{slice}/activate", activate)
        .route("/v1/slices/{slice}/attend", attend)
        .route("/v1/slices/{slice}/join", join)
        .route("/v1/slices/{slice}/share", share)
        .route("/v1/slices/{slice}/described", described)
        .route("/v1/slices/{slice}/refused", refused)
        .route("/v1/slices/{slice}/kill", kill)
        .route("/v1/stop", post(stop))
        .fallback(unknown)
        .layer(middleware::from_fn_with_state(agent.clone(), receive))
        .with_state(agent)
}

/// A request as the daemon's part of a route sees it.
struct Call<'a> {
    daemon: &'a Daemon,
    peer: Peer,
    /// The slice that the path names; empty on a path without one.
    slice: &'a str,
}

/// A route without a body: the answer is a document of this kind.
fn shown<T: Serialize + 'static>(
    method: MethodFilter,
    kind: &'static str,
    work: fn(Call<'_>) -> Result<T, Fault>,
) -> MethodRouter<Agent> {
    on(
        method,
        move |State(agent): State<Agent>, caller, slice| async move {
            agent.call(caller, slice, kind, work).await
        },
    )
}

/// A route that does what its body asks for: the answer is a document of this kind.
fn asked<B: DeserializeOwned + Send + 'static, T: Serialize + 'static>(
    method: MethodFilter,
    kind: &'static str,
    work: fn(Call<'_>, B) -> Result<T, Fault>,
) -> MethodRouter<Agent> {
    on(
        method,
        move |State(agent): State<Agent>, caller, slice, body: Bytes| async move {
            let ask = parse(&body)?;
            agent.call(caller, slice, kind, move |call| work(call, ask)).await
        },
    )
}

fn items<T>(items: Vec<T>) -> Result<Items<T>, Fault> {
    Ok(Items { items })
}

/// Counts a request, delays it where its user is over its rate, and reads its body.
async fn receive(
    State(agent): State<Agent>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    request: Request,
    next: Next,
) -> Response {
    agent.requests.fetch_add(1, Ordering::Relaxed);
    let peer = match caller.known() {
        Ok(peer) => peer,
        Err(fault) => return Refusal::from(fault).into_response(),
    };
    agent.turns.pace(peer.uid).await;
    match whole(request, caller.trusted, BODY).await {
        Ok(request) => next.run(request).await,
        Err(fault) => Refusal::from(fault).into_response(),
    }
}

/// The request with all of its body.
async fn whole(request: Request, trusted: bool, timeout: Duration) -> Result<Request, Fault> {
    let most = if trusted { LARGEST } else { LARGEST_OF_OTHERS };
    let (head, body) = request.into_parts();
    match tokio::time::timeout(timeout, to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(Request::from_parts(head, Body::from(bytes))),
        Ok(Err(error)) => Err(Fault::new(Code::TooLarge, "the request was not read")
            .because(&error)
            .hint(format!("a request has at most {most} bytes"))),
        Err(_) => Err(Fault::new(Code::TooLarge, "the request did not come in time")
            .hint(format!("it has {} s for it", timeout.as_secs()))),
    }
}

async fn unknown() -> Response {
    let fault = Fault::new(Code::AgentVersion, "the agent knows no such request");
    let mut answer = Refusal::from(fault).into_response();
    *answer.status_mut() = StatusCode::NOT_FOUND;
    answer
}

/// For those who only look whether it answers.
async fn healthy() -> &'static str {
    "ok\n"
}

async fn events(
    State(agent): State<Agent>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    uri: Uri,
) -> Result<Response, Refusal> {
    let peer = caller.known()?;
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
    caller.lasts.store(follow, Ordering::Relaxed);
    let journal = agent.daemon.journal.clone();
    let viewer = Viewer::of(peer, agent.daemon.uid);
    let lines = EventLines::begin(journal, viewer, since, follow, agent.closing.subscribe());
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, Body::new(lines)).into_response())
}

/// The answer is not JSON, because metrics collectors read this form.
async fn metrics(State(agent): State<Agent>, ConnectInfo(caller): ConnectInfo<Caller>) -> Answer {
    let peer = caller.known()?;
    let text = agent
        .work(peer, move |daemon| {
            let slices = Viewer::of(peer, daemon.uid).slices(daemon.lists.slices());
            let devices = daemon.lists.devices();
            Ok(metrics::text(
                &daemon.status(),
                &daemon.leasing.views(),
                &devices,
                &slices,
            ))
        })
        .await?;
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    Ok((kind, text).into_response())
}

fn slices(Call { daemon, peer, .. }: Call<'_>) -> Result<SliceItems, Fault> {
    let viewer = Viewer::of(peer, daemon.uid);
    Ok(SliceItems {
        items: viewer.slices(daemon.lists.slices()),
        unmanaged: viewer.unmanaged(daemon.audit.unmanaged(&daemon.state)),
    })
}

fn of_jobs(Call { daemon, peer, .. }: Call<'_>) -> Result<SliceItems, Fault> {
    let viewer = Viewer::of(peer, daemon.uid);
    Ok(SliceItems {
        items: viewer.slices(daemon.lists.of_jobs()),
        unmanaged: Vec::new(),
    })
}

fn create(call: Call<'_>, mut ask: CreateSlice) -> Result<CreatedSlice, Fault> {
    shorten(&mut ask.command);
    call.daemon.requests.create(call.peer, &ask)
}

/// Looks at the caller's place again and again: the ticks serve the queue, so this costs next to nothing.
async fn wait(State(agent): State<Agent>, ConnectInfo(caller): ConnectInfo<Caller>, body: Bytes) -> Answer {
    const LOOK: Duration = Duration::from_millis(50);
    /// Callers give up on a silent agent only much later than this.
    const LONGEST: Duration = Duration::from_secs(5);
    let (peer, mut ask) = (caller.known()?, parse::<Wait>(&body)?);
    shorten(&mut ask.ask.command);
    let timeout = Duration::from_millis(ask.timeout_ms).min(LONGEST);
    let begin = Instant::now();
    loop {
        let asked = ask.clone();
        let standing = agent
            .work(peer, move |daemon| daemon.requests.wait(peer, &asked))
            .await?;
        let told = standing.created.is_some() || ask.told != Some((standing.place, standing.count));
        if told || begin.elapsed() >= timeout {
            return json(StatusCode::OK, &Document::new("Standing", standing));
        }
        ask.ticket = Some(standing.ticket);
        tokio::time::sleep(LOOK).await;
    }
}

async fn stop(State(agent): State<Agent>, ConnectInfo(caller): ConnectInfo<Caller>) -> Answer {
    let peer = caller.known()?;
    peer.may_change(agent.daemon.uid, agent.daemon.uid)?;
    agent.stop.notify_one();
    agent.answer(peer, "Done", |_| items(Vec::<()>::new())).await
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(body)
        .map_err(|error| Fault::new(Code::AgentVersion, "the request was not understood").because(&error))
}

impl Caller {
    fn known(&self) -> Result<Peer, Fault> {
        self.peer
            .ok_or_else(|| Fault::new(Code::NotAllowed, "the kernel does not tell who is calling"))
    }
}

impl Agent {
    /// Answers a request with a document of what `work` finds.
    async fn call<T: Serialize + 'static>(
        self,
        ConnectInfo(caller): ConnectInfo<Caller>,
        slice: Option<Path<String>>,
        kind: &'static str,
        work: impl FnOnce(Call<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> Answer {
        let peer = caller.known()?;
        let slice = slice.map_or_else(String::new, |Path(slice)| slice);
        let work = move |daemon: &Daemon| {
            let slice = &slice;
            work(Call { daemon, peer, slice })
        };
        self.answer(peer, kind, work).await
    }

    /// Runs `work` off the loop in the caller's turn, because it may wait for a page server or a driver.
    async fn answer<T: Serialize>(
        self,
        peer: Peer,
        kind: &'static str,
        work: impl FnOnce(&Daemon) -> Result<T, Fault> + Send + 'static,
    ) -> Answer {
        let bytes = self.work(peer, move |daemon| write(&Document::new(kind, work(daemon)?)));
        Ok(written(StatusCode::OK, bytes.await?))
    }

    /// The same, without a document around it.
    async fn work<T: Send + 'static>(
        &self,
        peer: Peer,
        work: impl FnOnce(&Daemon) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let turn = self.turns.take(peer.uid).await?;
        let daemon = self.daemon.clone();
        // The turn goes with the work, which nothing ends early, not even a caller that disconnects.
        let done = tokio::task::spawn_blocking(move || {
            daemon.accounts.prepare(peer.uid);
            let done = work(&daemon);
            drop(turn);
            done
        });
        done.await.map_err(|error| {
            Fault::new(Code::Internal, "the request failed inside the agent").because(&error)
        })?
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use hyper::body::Frame;

    use super::*;

    /// A test body that never comes.
    struct Silent;

    impl hyper::body::Body for Silent {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Poll::Pending
        }
    }

    #[test]
    fn a_body_that_is_large_or_does_not_come_is_refused() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().expect("a loop").block_on(async {
            let soon = Duration::from_millis(20);
            let silent = Request::new(Body::new(Silent));
            let refusal = whole(silent, true, soon).await.expect_err("nothing comes");
            assert_eq!(refusal.code, Code::TooLarge);
            let of = |bytes: usize| Request::new(Body::from(vec![b' '; bytes]));
            for (trusted, most) in [(true, LARGEST), (false, LARGEST_OF_OTHERS)] {
                whole(of(most), trusted, BODY)
                    .await
                    .expect("as large as it may be");
                let refusal = whole(of(most + 1), trusted, BODY).await.expect_err("larger");
                assert_eq!(refusal.code, Code::TooLarge);
            }
        });
    }
}
