//! The routes of the API, and the call of the daemon behind each.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use divvy_model::{Code, Fault};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Agent;
use super::answer::{Answer, Refusal, json, write, written};
use super::connection::Caller;
use crate::api::viewer::Viewer;
use crate::api::{CreateSlice, Document, Items, Join, SliceItems, Wait, shorten};
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
        .route("/v1/slices/{slice}/share", post(share))
        .route("/v1/slices/{slice}/described", post(described))
        .route("/v1/devices/share", post(share_devices))
        .route("/v1/slices/{slice}/refused", post(refused))
        .route("/v1/slices/{slice}/kill", post(kill))
        .route("/v1/stop", post(stop))
        .fallback(unknown)
        .layer(middleware::from_fn_with_state(agent.clone(), receive))
        .with_state(agent)
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

async fn unknown() -> Refusal {
    Fault::new(Code::AgentVersion, "the agent knows no such request").into()
}

async fn status(State(agent): State<Agent>, ConnectInfo(caller): ConnectInfo<Caller>) -> Answer {
    let peer = caller.known()?;
    agent
        .answer(peer, "AgentStatus", |daemon| Ok(daemon.status()))
        .await
}

async fn compute(State(agent): State<Agent>, ConnectInfo(caller): ConnectInfo<Caller>) -> Answer {
    let peer = caller.known()?;
    agent
        .answer(peer, "ComputeList", |daemon| {
            Ok(Items {
                items: daemon.leasing.views(),
            })
        })
        .await
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
        .work(peer, |daemon| {
            Ok(metrics::text(&daemon.status(), &daemon.leasing.views()))
        })
        .await?;
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    Ok((kind, text).into_response())
}

async fn devices(State(agent): State<Agent>, ConnectInfo(caller): ConnectInfo<Caller>) -> Answer {
    let peer = caller.known()?;
    let list = |daemon: &Daemon| {
        Ok(Items {
            items: daemon.lists.devices(),
        })
    };
    agent.answer(peer, "DeviceList", list).await
}

async fn slices(State(agent): State<Agent>, ConnectInfo(caller): ConnectInfo<Caller>) -> Answer {
    let peer = caller.known()?;
    let list = move |daemon: &Daemon| {
        let viewer = Viewer::of(peer, daemon.uid);
        Ok(SliceItems {
            items: viewer.slices(daemon.lists.slices()),
            unmanaged: viewer.unmanaged(daemon.audit.unmanaged(&daemon.state)),
        })
    };
    agent.answer(peer, "SliceList", list).await
}

async fn slice(
    State(agent): State<Agent>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    Path(which): Path<String>,
) -> Answer {
    let peer = caller.known()?;
    agent
        .answer(peer, "Slice", move |daemon| {
            Ok(Viewer::of(peer, daemon.uid).slice(daemon.lists.slice(peer, &which)?))
        })
        .await
}

async fn create(State(agent): State<Agent>, ConnectInfo(caller): ConnectInfo<Caller>, body: Bytes) -> Answer {
    let (peer, mut ask) = (caller.known()?, parse::<CreateSlice>(&body)?);
    shorten(&mut ask.command);
    agent
        .answer(peer, "CreatedSlice", move |daemon| {
            daemon.requests.create(peer, &ask)
        })
        .await
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

async fn activate(
    State(agent): State<Agent>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    Path(which): Path<String>,
) -> Answer {
    let peer = caller.known()?;
    agent
        .answer(peer, "Slice", move |daemon| {
            daemon.admission.activate(peer, &which)
        })
        .await
}

async fn join(
    State(agent): State<Agent>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    Path(which): Path<String>,
    body: Bytes,
) -> Answer {
    let (peer, mut ask) = (caller.known()?, parse::<Join>(&body)?);
    shorten(&mut ask.command);
    agent
        .answer(peer, "CreatedSlice", move |daemon| {
            daemon.requests.join(peer, &which, &ask)
        })
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
        .answer(peer, "Slice", move |daemon| {
            daemon.anchors.set(peer, &which, &ask)
        })
        .await
}

async fn share(
    State(agent): State<Agent>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    Path(which): Path<String>,
    body: Bytes,
) -> Answer {
    let (peer, ask) = (caller.known()?, parse(&body)?);
    agent
        .answer(peer, "Parts", move |daemon| {
            daemon.containers.share(peer, &which, &ask)
        })
        .await
}

async fn described(
    State(agent): State<Agent>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    Path(which): Path<String>,
    body: Bytes,
) -> Answer {
    let (peer, ask) = (caller.known()?, parse(&body)?);
    agent
        .answer(peer, "Slice", move |daemon| {
            daemon.containers.described(peer, &which, &ask)
        })
        .await
}

async fn share_devices(
    State(agent): State<Agent>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    body: Bytes,
) -> Answer {
    let (peer, ask) = (caller.known()?, parse(&body)?);
    agent
        .answer(peer, "SharedDevices", move |daemon| {
            daemon.containers.share_devices(peer, &ask)
        })
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
        .answer(peer, "Slice", move |daemon| {
            daemon.reports.refused(peer, &which, &refusal)
        })
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
        .answer(peer, "Slice", move |daemon| {
            daemon.resizing.resize(peer, &which, &ask)
        })
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
        .answer(peer, "Killed", move |daemon| {
            daemon.endings.kill(peer, &which, &ask)
        })
        .await
}

async fn end(
    State(agent): State<Agent>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    Path(which): Path<String>,
) -> Answer {
    let peer = caller.known()?;
    let ended = move |daemon: &Daemon| {
        daemon
            .endings
            .end(peer, &which)
            .map(|()| Items::<()> { items: vec![] })
    };
    agent.answer(peer, "Done", ended).await
}

async fn stop(State(agent): State<Agent>, ConnectInfo(caller): ConnectInfo<Caller>) -> Answer {
    let peer = caller.known()?;
    peer.may_change(agent.daemon.uid, agent.daemon.uid)?;
    agent.stop.notify_one();
    agent
        .answer(peer, "Done", |_| Ok(Items::<()> { items: vec![] }))
        .await
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
