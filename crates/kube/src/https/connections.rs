//! Connections, with an end to everything: how many there are, from one address and in all, how long one waits and lives, and how
//! much is read of bodies before it is answered.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{Method, Response, header};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_stream::StreamExt;

use super::caller::common_name;
use super::{Answer, Callers, Reloading};

/// How long a handshake may take, and a body.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may wait for the next question.
const IDLE: Duration = Duration::from_secs(60);
/// How long a connection may be used.
const LIFE: Duration = Duration::from_secs(600);
/// How long a question that is under way gets when the connection is to end.
const GRACE: Duration = Duration::from_secs(15);
/// The most connections.
const MOST: usize = 256;
/// The most of them from one address.
const MOST_OF_ONE: usize = 64;
/// How many questions are answered at once. What is read of a body is many times larger than the body.
const MOST_ANSWERS: usize = 8;
/// The largest head of a question, in bytes.
const LARGEST_HEAD: usize = 32 << 10;
/// What is counted of bodies, in bytes.
const UNIT: usize = 4096;

/// The limits of one server.
struct Limits {
    connections: Arc<Semaphore>,
    by_address: Mutex<HashMap<IpAddr, usize>>,
    answers: Semaphore,
    /// In [`UNIT`]s.
    bodies: Arc<Semaphore>,
}

/// A connection's place.
struct Place {
    limits: Arc<Limits>,
    address: IpAddr,
    _one: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self
            .limits
            .by_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.address);
            }
        }
    }
}

impl Limits {
    /// Room for eight of the largest bodies.
    fn new(answer: &dyn Answer) -> Arc<Self> {
        let bodies = answer.largest().div_ceil(UNIT) * MOST_ANSWERS;
        Arc::new(Self {
            connections: Arc::new(Semaphore::new(MOST)),
            by_address: Mutex::default(),
            answers: Semaphore::new(MOST_ANSWERS),
            bodies: Arc::new(Semaphore::new(bodies.max(MOST_ANSWERS))),
        })
    }

    /// A place for this address; none where it has as many as one may have.
    fn place(self: &Arc<Self>, address: IpAddr, one: OwnedSemaphorePermit) -> Option<Place> {
        let mut all = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(address).or_default();
        if *count >= MOST_OF_ONE {
            return None;
        }
        *count += 1;
        Some(Place {
            limits: self.clone(),
            address,
            _one: one,
        })
    }
}

/// Serves until `ended`, and then answers what is under way.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Reloading>>,
    callers: Callers,
    answer: Arc<dyn Answer>,
    ended: impl Future<Output = ()>,
) {
    let limits = Limits::new(&*answer);
    let (stop, stopped) = watch::channel(false);
    let callers = Arc::new(callers);
    let accepting = async {
        loop {
            // Those beyond it wait in the kernel's queue.
            let Ok(one) = limits.connections.clone().acquire_owned().await else {
                return;
            };
            let Ok((stream, peer)) = listener.accept().await else {
                // No descriptors are left, for example.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let Some(place) = limits.place(peer.ip(), one) else {
                continue;
            };
            let (answer, callers, stopped) = (answer.clone(), callers.clone(), stopped.clone());
            let acceptor = tls.as_ref().map(|files| TlsAcceptor::from(files.config()));
            tokio::spawn(
                async move { connection(stream, peer, acceptor, callers, place, answer, stopped).await },
            );
        }
    };
    tokio::select! {
        () = accepting => {}
        () = ended => {}
    }
    drop(listener);
    let _none_left = stop.send(true);
    // All places are free when the last connection has ended.
    let all = u32::try_from(MOST).unwrap_or(u32::MAX);
    let _late = tokio::time::timeout(GRACE, limits.connections.acquire_many(all)).await;
}

async fn connection(
    stream: TcpStream,
    _peer: SocketAddr,
    acceptor: Option<TlsAcceptor>,
    callers: Arc<Callers>,
    place: Place,
    answer: Arc<dyn Answer>,
    stopped: watch::Receiver<bool>,
) {
    let Some(acceptor) = acceptor else {
        return questions(stream, true, place, answer, stopped).await;
    };
    // A handshake that fails, fails at its client too, where it is reported.
    if let Ok(Ok(stream)) = tokio::time::timeout(TIMEOUT, acceptor.accept(stream)).await {
        let certificates = stream.get_ref().1.peer_certificates();
        let certificate = certificates.and_then(|all| all.first());
        let is_known = match &*callers {
            Callers::All => true,
            Callers::Signed => certificate.is_some(),
            Callers::Named(names) => certificate
                .and_then(|certificate| common_name(certificate))
                .is_some_and(|name| names.contains(&name)),
        };
        questions(stream, is_known, place, answer, stopped).await;
    }
}

/// Answers the questions of one connection.
async fn questions(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    is_known: bool,
    place: Place,
    answer: Arc<dyn Answer>,
    mut stopped: watch::Receiver<bool>,
) {
    let limits = place.limits.clone();
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let (answer, limits) = (answer.clone(), limits.clone());
        async move {
            let answered = respond(answer, &limits, is_known, request.map(Body::new)).await;
            Ok::<_, std::convert::Infallible>(answered)
        }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(LARGEST_HEAD);
    let mut served = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        _ended = &mut served => return,
        _told = stopped.wait_for(|stopped| *stopped) => {}
        () = tokio::time::sleep(LIFE) => {}
    }
    served.as_mut().graceful_shutdown();
    let _late = tokio::time::timeout(GRACE, served).await;
    drop(place);
}

async fn respond(
    answer: Arc<dyn Answer>,
    limits: &Limits,
    is_known: bool,
    request: Request,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let words = |words: &str| format!("{{\"error\":\"{words}\"}}").into_bytes();
    let (status, text) = match parts.method {
        Method::GET if path == "/healthz" => (200, b"{\"ok\":true}".to_vec()),
        _ if !is_known => (
            403,
            words("this needs a client certificate, of a name that --client-name allows"),
        ),
        Method::POST => {
            let read = tokio::time::timeout(TIMEOUT, whole(body, answer.largest(), limits));
            match read.await {
                Err(_) => (408, words("the body did not come in time")),
                Ok(None) => (413, words("the body is too large or was cut off")),
                Ok(Some((body, held))) => {
                    let _turn = limits.answers.acquire().await;
                    let done = tokio::task::spawn_blocking(move || answer.answer(&path, &body)).await;
                    drop(held);
                    done.unwrap_or_else(|_| (500, words("no answer could be made")))
                }
            }
        }
        _ => (405, words("only POST is answered")),
    };
    let made = Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(text));
    made.unwrap_or_default()
}

/// A whole body, with what it holds of the room for bodies. It takes room as it comes, so that one who announces much and sends
/// nothing takes none.
async fn whole(body: Body, largest: usize, limits: &Limits) -> Option<(Vec<u8>, Vec<OwnedSemaphorePermit>)> {
    let (mut all, mut held, mut paid) = (Vec::new(), Vec::new(), 0);
    let mut parts = std::pin::pin!(body.into_data_stream());
    while let Some(part) = parts.next().await {
        let part = part.ok()?;
        if all.len() + part.len() > largest {
            return None;
        }
        let due = (all.len() + part.len()).div_ceil(UNIT);
        if due > paid {
            let more = u32::try_from(due - paid).ok()?;
            held.push(limits.bodies.clone().acquire_many_owned(more).await.ok()?);
            paid = due;
        }
        all.extend_from_slice(&part);
    }
    Some((all, held))
}
