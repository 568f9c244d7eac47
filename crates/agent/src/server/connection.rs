//! One connection: HTTP/1 with a limit on the time of each part of a request, and on the bytes that are kept of it.

use std::io::ErrorKind;
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
use crate::system::peer::Peer;

/// The time limits of a connection's parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// The head of a request; also the longest silence between two requests.
    pub head: Duration,
    /// A foreign user's connection, unless it follows events. After this time it is ended once its request is done;
    /// after as long again, in any case.
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
    /// This is set where the connection follows events: then it lasts.
    pub lasts: Arc<AtomicBool>,
}

/// Serves a connection to its end, or until the agent ends and the present request is answered.
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
            // Either side ended it, or a time limit did: the other end sees that.
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

/// Answers a connection over the limit, and ends it. Its request is not read, but waited for, because clients do not
/// understand an answer that comes before the request.
pub(super) async fn refuse(stream: UnixStream, answer: Arc<[u8]>) {
    const TIMEOUT: Duration = Duration::from_millis(200);
    let said = tokio::time::timeout(TIMEOUT, async {
        let mut question = [0; 4096];
        loop {
            stream.readable().await?;
            match stream.try_read(&mut question) {
                // It has not been read yet, although it was reported ready.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
                Ok(_) => break,
            }
        }
        while stream.try_read(&mut question).is_ok_and(|bytes| bytes > 0) {}
        // It fits: nothing was written before.
        stream.try_write(&answer)
    });
    // The connection is refused either way.
    let _told = said.await;
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use axum::routing::get;

    use super::super::gate::{Gate, Limits};
    use super::*;

    const SHORT: Times = Times {
        head: Duration::from_millis(400),
        life: Duration::from_millis(800),
    };
    /// A failing test ends all the same.
    const LONG: Duration = Duration::from_secs(60);

    /// A client's end of a connection that is being served, and how the serving ends.
    fn connect(trusted: bool) -> (UnixStream, tokio::task::JoinHandle<()>) {
        let router = Router::new()
            .route("/quick", get(|| async { "quick" }))
            .route("/never", get(std::future::pending::<()>))
            .route("/lasts", get(last));
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let caller = Caller {
            peer: None,
            trusted,
            lasts: Arc::default(),
        };
        let place = Gate::new(0, Limits::within(1024), Arc::default())
            .enter(1000)
            .expect("it is empty");
        let (open, closing) = watch::channel(false);
        let serving = async move {
            serve(theirs, router, caller, place, SHORT, closing).await;
            drop(open);
        };
        (ours, tokio::spawn(serving))
    }

    async fn last(ConnectInfo(caller): ConnectInfo<Caller>) {
        caller.lasts.store(true, Ordering::Relaxed);
        std::future::pending::<()>().await;
    }

    async fn say(stream: &UnixStream, text: &str) {
        stream.writable().await.expect("open");
        assert_eq!(stream.try_write(text.as_bytes()).expect("written"), text.len());
    }

    async fn hear(stream: &UnixStream) -> String {
        let mut heard = [0; 4096];
        loop {
            stream.readable().await.expect("open");
            match stream.try_read(&mut heard) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                bytes => return String::from_utf8_lossy(&heard[..bytes.expect("open")]).into_owned(),
            }
        }
    }

    fn block_on(work: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a loop");
        runtime.block_on(async { tokio::time::timeout(LONG, work).await.expect("in time") });
    }

    #[test]
    fn a_connection_that_says_nothing_or_half_a_head_ends_soon() {
        block_on(async {
            for said in ["", "GET /quick HT", "GET /quick HTTP/1.1\r\nhost: x\r\n"] {
                let begin = Instant::now();
                let (stream, serving) = connect(true);
                if !said.is_empty() {
                    say(&stream, said).await;
                }
                serving.await.expect("it ends");
                assert!(begin.elapsed() >= SHORT.head, "{said:?}");
            }
            // A head that comes byte by byte has no more time.
            let (stream, serving) = connect(true);
            for byte in "GET /quick HTTP/1.1\r\n".chars() {
                tokio::time::sleep(Duration::from_millis(40)).await;
                if stream.try_write(byte.to_string().as_bytes()).is_err() {
                    break;
                }
            }
            serving.await.expect("it ends");
        });
    }

    #[test]
    fn a_connection_that_asks_and_then_idles_ends_soon() {
        block_on(async {
            let (stream, serving) = connect(false);
            for _ in 0..2 {
                say(&stream, "GET /quick HTTP/1.1\r\nhost: x\r\n\r\n").await;
                assert!(hear(&stream).await.ends_with("quick"));
            }
            serving.await.expect("it ends");
        });
    }

    #[test]
    fn a_foreign_connection_has_its_time_unless_it_follows_events() {
        block_on(async {
            let (stream, serving) = connect(false);
            say(&stream, "GET /never HTTP/1.1\r\nhost: x\r\n\r\n").await;
            let begin = Instant::now();
            serving.await.expect("it ends");
            assert!(begin.elapsed() >= SHORT.life, "not before its time");
            for (trusted, path) in [(false, "lasts"), (true, "never")] {
                let (stream, serving) = connect(trusted);
                say(&stream, &format!("GET /{path} HTTP/1.1\r\nhost: x\r\n\r\n")).await;
                tokio::time::sleep(SHORT.life * 5 / 2).await;
                assert!(!serving.is_finished(), "{path}");
                drop(stream);
                serving.await.expect("it ends with its caller");
            }
        });
    }

    #[test]
    fn a_connection_without_room_is_told_so() {
        block_on(async {
            let (ours, theirs) = UnixStream::pair().expect("a pair");
            say(&ours, "GET /v1/slices HTTP/1.1\r\nhost: x\r\n\r\n").await;
            refuse(theirs, super::super::answer::no_room()).await;
            let heard = hear(&ours).await;
            let (head, body) = heard.split_once("\r\n\r\n").expect("an answer");
            assert!(head.starts_with("HTTP/1.1 429 "), "{head}");
            assert!(
                head.contains(&format!("content-length: {}\r\n", body.len())),
                "{head}"
            );
            let told: crate::api::ErrorDocument = serde_json::from_str(body).expect("a document");
            assert_eq!(told.body.code, divvy_model::Code::Busy);
            // A silent connection is closed as well.
            let (ours, theirs) = UnixStream::pair().expect("a pair");
            refuse(theirs, super::super::answer::no_room()).await;
            assert_eq!(hear(&ours).await, "", "its end");
        });
    }
}
