//! One connection: HTTP/1 with a limit on the time of each part of a request, and on the bytes that are kept of it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixStream;
use tokio::sync::watch;

use super::gate::Place;
use crate::peer::Peer;

/// How long a connection may take for its parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// The head of a request; and how long a connection may say nothing between two requests.
    pub head: Duration,
    /// A foreign user's connection, unless it follows events. One that has not ended by then is ended after its
    /// request; after as long again, whatever it does.
    pub life: Duration,
}

impl Times {
    pub const USUAL: Self = Self {
        head: Duration::from_secs(5),
        life: Duration::from_secs(60),
    };
}

/// The most that is kept of a request's head, in bytes.
const HEAD: usize = 16 << 10;

/// The caller of a connection; none where the kernel does not tell.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub peer: Option<Peer>,
    /// The agent's own user, or root.
    pub trusted: bool,
    /// Set where the connection follows events: then it lasts.
    pub lasts: Arc<AtomicBool>,
}

/// Serves a connection to its end, or until the agent ends and the request at hand is answered.
pub(super) async fn serve(
    stream: UnixStream,
    router: Router,
    caller: Caller,
    place: Place,
    times: Times,
    mut closing: watch::Receiver<bool>,
) {
    let (lasts, trusted) = (caller.lasts.clone(), caller.trusted);
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(caller.clone()));
        TowerToHyperService::new(router.clone()).call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(times.head)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let mut deadline = pin!(tokio::time::sleep(times.life));
    let (mut told, mut late) = (false, false);
    loop {
        tokio::select! {
            // Ended by either side, or for a time that ran out: who is at the other end sees it.
            _ = connection.as_mut() => break,
            _ = closing.wait_for(|closing| *closing), if !told => {
                told = true;
                connection.as_mut().graceful_shutdown();
            }
            () = deadline.as_mut(), if !trusted => {
                match lasts.load(Ordering::Relaxed) {
                    true => {}
                    false if late => break,
                    false => {
                        late = true;
                        connection.as_mut().graceful_shutdown();
                    }
                }
                deadline.as_mut().reset(tokio::time::Instant::now() + times.life);
            }
        }
    }
    drop(place);
}

/// Answers a connection that there is no room for, and ends it. What it asks is not read, but waited for, because an
/// answer that comes before the question is not understood.
pub(super) async fn refuse(stream: UnixStream, answer: Arc<[u8]>) {
    const PATIENCE: Duration = Duration::from_millis(200);
    let said = tokio::time::timeout(PATIENCE, async {
        stream.readable().await?;
        let mut question = [0; 4096];
        while stream.try_read(&mut question).is_ok_and(|bytes| bytes > 0) {}
        // It fits: nothing was written before.
        stream.try_write(&answer)
    });
    // It is refused either way.
    let _told = said.await;
}
