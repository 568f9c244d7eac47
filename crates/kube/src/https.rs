//! An HTTP or HTTPS server for one kind of question: a path and a body in, a status and JSON out. Bodies are bounded in size and
//! time. Certificates are read again when their files change.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{Method, Response, header};
use axum::serve::Listener;
use divvy_model::{Code, Fault};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How long a handshake may take, and a body.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How many handshakes are made at once.
const MOST_HANDSHAKES: usize = 256;
/// How many questions are read and answered at once. What is read of a body is many times larger than the body.
const MOST_ANSWERS: usize = 8;
/// The largest file of certificates or keys.
const LARGEST_FILE: u64 = 1 << 20;

/// What answers. It may block.
pub trait Answer: Send + Sync + 'static {
    /// The largest body, in bytes.
    fn largest(&self) -> usize;
    /// The status and the JSON for a `POST` to this path; `GET /healthz` is answered before.
    fn answer(&self, path: &str, body: &[u8]) -> (u16, Vec<u8>);
}

/// Files of a server's TLS.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate and those above it, as PEM.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// With it, clients need a certificate that one of these signed.
    pub client_ca: Option<PathBuf>,
}

/// Where remarks go: one line each.
pub type Remark = Arc<dyn Fn(&str) + Send + Sync>;

impl TlsFiles {
    /// Reads them.
    ///
    /// # Errors
    /// [`Code::Usage`] with the file and what is wrong with it.
    pub fn read(&self) -> Result<Arc<ServerConfig>, Fault> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| Fault::new(Code::Internal, "TLS cannot be set up").because(&error))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots
                        .add(certificate)
                        .map_err(|error| wrong(path, &error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| wrong(path, &error.to_string()))?)
            }
        };
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&contents(&self.key)?)
            .map_err(|error| wrong(&self.key, &error.to_string()))?;
        let mut config = builder.with_single_cert(chain, key).map_err(|error| {
            wrong(
                &self.certificate,
                &format!("the certificate and the key: {error}"),
            )
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// What tells that a file has changed.
    fn stamp(&self) -> Vec<Option<(SystemTime, u64)>> {
        let files = [Some(&self.certificate), Some(&self.key), self.client_ca.as_ref()];
        let of = |path: &PathBuf| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        };
        files.into_iter().flatten().map(of).collect()
    }
}

fn wrong(path: &Path, why: &str) -> Fault {
    Fault::new(
        Code::Usage,
        format!("`{}` cannot be used for TLS", path.display()),
    )
    .cause(why)
    .hint("give PEM files: the certificate with those above it, and its key")
}

fn contents(path: &Path) -> Result<Vec<u8>, Fault> {
    let length = std::fs::metadata(path)
        .map_err(|error| wrong(path, &error.to_string()))?
        .len();
    if length > LARGEST_FILE {
        return Err(wrong(path, "it is too large"));
    }
    std::fs::read(path).map_err(|error| wrong(path, &error.to_string()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let text = contents(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| wrong(path, &error.to_string()))?;
    match found.is_empty() {
        true => Err(wrong(path, "it has no certificate")),
        false => Ok(found),
    }
}

/// Keeps the newest files that could be read.
struct Reloading {
    files: TlsFiles,
    remark: Remark,
    #[expect(
        clippy::type_complexity,
        reason = "the stamp of the files, and what was read of them"
    )]
    current: Mutex<(Vec<Option<(SystemTime, u64)>>, Arc<ServerConfig>)>,
}

impl Reloading {
    fn config(&self) -> Arc<ServerConfig> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = self.files.stamp();
        if stamp != current.0 {
            // Said once for each change: a half-written file has another stamp when it is whole.
            current.0 = stamp;
            match self.files.read() {
                Ok(config) => {
                    current.1 = config;
                    (self.remark)("certificates were read again");
                }
                Err(fault) => {
                    let cause = fault.causes.first().cloned().unwrap_or_default();
                    (self.remark)(&format!("certificates were not read again: {fault}: {cause}"));
                }
            }
        }
        current.1.clone()
    }
}

/// Connections whose handshakes are done.
struct TlsListener {
    made: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    address: SocketAddr,
}

impl TlsListener {
    fn start(listener: TcpListener, reloading: Arc<Reloading>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (done, made) = mpsc::channel(16);
        let handshakes = Arc::new(Semaphore::new(MOST_HANDSHAKES));
        tokio::spawn(async move {
            loop {
                let Ok(permit) = handshakes.clone().acquire_owned().await else {
                    return;
                };
                let Ok((stream, peer)) = listener.accept().await else {
                    // No descriptors are left, for example.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                };
                let (acceptor, done) = (TlsAcceptor::from(reloading.config()), done.clone());
                tokio::spawn(async move {
                    let _permit = permit;
                    let shaken = tokio::time::timeout(TIMEOUT, acceptor.accept(stream)).await;
                    // One that fails, fails at its client too, where it is reported.
                    if let Ok(Ok(stream)) = shaken {
                        drop(done.send((stream, peer)).await);
                    }
                });
            }
        });
        Ok(Self { made, address })
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.made.recv().await {
            Some(connection) => connection,
            // The task that accepts never ends before this.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

/// Serves until `ended`.
///
/// # Errors
/// [`Code::Usage`] for files of TLS that cannot be used; [`Code::Internal`] where the socket fails.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsFiles>,
    answer: Arc<dyn Answer>,
    remark: Remark,
    ended: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Fault> {
    let turns = Arc::new(Semaphore::new(MOST_ANSWERS));
    let router = Router::new().fallback(move |request: Request| {
        let (answer, turns) = (answer.clone(), turns.clone());
        async move { respond(answer, &turns, request).await }
    });
    let failed = |error: io::Error| Fault::new(Code::Internal, "the server's socket failed").because(&error);
    match tls {
        None => axum::serve(listener, router).with_graceful_shutdown(ended).await,
        Some(files) => {
            let current = Mutex::new((files.stamp(), files.read()?));
            let reloading = Arc::new(Reloading {
                files,
                remark,
                current,
            });
            let listener = TlsListener::start(listener, reloading).map_err(failed)?;
            axum::serve(listener, router).with_graceful_shutdown(ended).await
        }
    }
    .map_err(failed)
}

async fn respond(answer: Arc<dyn Answer>, turns: &Semaphore, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let (status, text) = match parts.method {
        Method::GET if path == "/healthz" => (200, b"{\"ok\":true}".to_vec()),
        Method::POST => match tokio::time::timeout(TIMEOUT, to_bytes(body, answer.largest())).await {
            Err(_) => (408, b"{\"error\":\"the body did not come in time\"}".to_vec()),
            Ok(Err(_)) => (
                413,
                b"{\"error\":\"the body is too large or was cut off\"}".to_vec(),
            ),
            Ok(Ok(body)) => {
                let _turn = turns.acquire().await;
                let done = tokio::task::spawn_blocking(move || answer.answer(&path, &body)).await;
                done.unwrap_or_else(|_| (500, b"{\"error\":\"no answer could be made\"}".to_vec()))
            }
        },
        _ => (405, b"{\"error\":\"only POST is answered\"}".to_vec()),
    };
    let made = Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(text));
    made.unwrap_or_default()
}

#[cfg(test)]
mod tests;
