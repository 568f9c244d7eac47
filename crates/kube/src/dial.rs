//! Calls to the kubelet's own sockets: its registry of device plugins, and its list of pods.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use divvy_model::{Code, Fault};
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint};

/// The time limit for a connection and for an answer; tests of a kubelet that never answers wait for less.
const TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });

/// Dials one socket, whatever the URI says.
#[derive(Clone)]
struct Dial(PathBuf);

impl Service<Uri> for Dial {
    type Response = TokioIo<UnixStream>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let path = self.0.clone();
        Box::pin(async move { UnixStream::connect(path).await.map(TokioIo::new) })
    }
}

/// A connection to a socket.
///
/// # Errors
/// [`Code::Kubelet`]: no server listens there.
pub(crate) async fn dial(path: &Path) -> Result<Channel, Fault> {
    let endpoint = Endpoint::from_static("http://localhost")
        .connect_timeout(TIMEOUT)
        .timeout(TIMEOUT);
    let connected = endpoint.connect_with_connector(Dial(path.to_owned())).await;
    connected.map_err(|error| {
        Fault::new(
            Code::Kubelet,
            format!("cannot reach the kubelet at `{}`", path.display()),
        )
        .because(&error)
    })
}
