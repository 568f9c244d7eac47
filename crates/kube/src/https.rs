//! An HTTP or HTTPS server for one kind of question: a path and a body in, a status and JSON out. Everything has a bound
//! (`connections`). Certificates are read again when their files change; `caller` reads the name in a client's.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use divvy_model::{Code, Fault};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpListener;

mod caller;
mod connections;

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
                // Clients without a certificate get no further than /healthz, which a kubelet asks.
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .allow_unauthenticated()
                    .build();
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

/// Who may ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Callers {
    /// Every client.
    #[default]
    All,
    /// Those whose certificate was signed by the authority for clients.
    Signed,
    /// Those of them whose certificate has one of these common names.
    Named(Vec<String>),
}

/// Serves until `ended`.
///
/// # Errors
/// [`Code::Usage`] for files of TLS that cannot be used.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsFiles>,
    callers: Callers,
    answer: Arc<dyn Answer>,
    remark: Remark,
    ended: impl Future<Output = ()>,
) -> Result<(), Fault> {
    let reloading = match tls {
        None => None,
        Some(files) => {
            let current = Mutex::new((files.stamp(), files.read()?));
            Some(Arc::new(Reloading {
                files,
                remark,
                current,
            }))
        }
    };
    connections::serve(listener, reloading, callers, answer, ended).await;
    Ok(())
}

#[cfg(test)]
mod tests;
