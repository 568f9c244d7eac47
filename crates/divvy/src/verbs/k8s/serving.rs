//! What the webhook and the extender have in common: where they listen, and when they end.

use std::net::SocketAddr;
use std::path::PathBuf;

use divvy_kube::https::{Callers, TlsFiles};
use divvy_kube::names::Terms;
use divvy_model::{Code, Fault, MemoryAmount};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// Flags of servers.
#[derive(Debug, clap::Args)]
pub struct Serving {
    /// The server's certificate with those above it, as PEM; it is read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Clients need a certificate that one of these signed
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    client_ca: Option<PathBuf>,
    /// Only clients with this common name in their certificate; may be given several times
    #[arg(long, value_name = "NAME", requires = "client_ca")]
    client_name: Vec<String>,
    /// The memory of the cluster's GPUs, for pods that ask for a percentage
    #[arg(long, value_name = "SIZE")]
    device_memory: Option<MemoryAmount>,
    /// gpushare's memory is in MiB, as its device plugin may be told, and not in GiB
    #[arg(long)]
    gpushare_mib: bool,
    /// `nvidia.com/gpu` alone is a slice with all the memory, as HAMi has it, and not a whole device
    #[arg(long)]
    bare_gpu_is_slice: bool,
}

impl Serving {
    /// The files of TLS.
    pub fn tls(&self) -> Option<TlsFiles> {
        Some(TlsFiles {
            certificate: self.tls_cert.clone()?,
            key: self.tls_key.clone()?,
            client_ca: self.client_ca.clone(),
        })
    }

    /// Who may ask.
    pub fn callers(&self) -> Callers {
        match (&self.client_ca, self.client_name.is_empty()) {
            (None, _) => Callers::All,
            (Some(_), true) => Callers::Signed,
            (Some(_), false) => Callers::Named(self.client_name.clone()),
        }
    }

    /// What the administrator says of the cluster.
    ///
    /// # Errors
    /// [`Code::Usage`] for a memory that is no number of bytes.
    pub fn terms(&self) -> Result<Terms, Fault> {
        Ok(Terms {
            device_mib: self.device_memory.map(mib).transpose()?,
            replicas: None,
            gpushare_in_mib: self.gpushare_mib,
            bare_is_hami: self.bare_gpu_is_slice,
        })
    }
}

/// In MiB.
///
/// # Errors
/// [`Code::Usage`] for a percentage.
pub fn mib(amount: MemoryAmount) -> Result<u64, Fault> {
    match amount {
        MemoryAmount::Bytes(bytes) => Ok(bytes.0 >> 20),
        _ => Err(Fault::new(Code::Usage, "a device's memory is a number of bytes").hint("for example 80GiB")),
    }
}

/// A loop with threads.
///
/// # Errors
/// [`Code::Internal`] where none can be made.
pub fn runtime() -> Result<Runtime, Fault> {
    let made = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    made.map_err(|error| Fault::new(Code::Internal, "cannot make a loop").because(&error))
}

/// Listens.
///
/// # Errors
/// [`Code::Usage`] for an address that cannot be had.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, Fault> {
    TcpListener::bind(address).await.map_err(|error| {
        Fault::new(Code::Usage, format!("cannot listen at {address}"))
            .because(&error)
            .hint("`--listen ADDRESS:PORT` gives another")
    })
}
