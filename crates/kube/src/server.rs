//! The two sockets that the kubelet dials. Root and the user of this process are served, and no others: the kernel says
//! which user a peer is. The folders are root's, but another container may have them mounted.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use divvy_model::{Code, Fault};
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use crate::DRIVER;
use crate::authority::readable;
use crate::grpc::pluginregistration::registration_server::RegistrationServer;
use crate::grpc::{Log, Plugin, Registration, v1, v1beta1};
use crate::node::Node;

/// The most requests of one connection that are served at a time.
const AT_A_TIME: usize = 32;

/// Where the kubelet looks for plugins.
#[derive(Clone, Debug)]
pub struct Folders {
    kubelet: PathBuf,
}

impl Folders {
    /// Of the kubelet with this root directory, `/var/lib/kubelet` on most nodes.
    #[must_use]
    pub fn of(kubelet: &Path) -> Self {
        Self {
            // The kubelet gets paths of it, and has a folder of its own to start from.
            kubelet: std::path::absolute(kubelet).unwrap_or_else(|_| kubelet.to_owned()),
        }
    }

    fn plugin(&self) -> PathBuf {
        self.kubelet.join("plugins").join(DRIVER)
    }

    /// The folder of the claims' records.
    #[must_use]
    pub fn claims(&self) -> PathBuf {
        self.plugin().join("claims")
    }

    /// The driver's socket.
    #[must_use]
    pub fn driver(&self) -> PathBuf {
        self.plugin().join("dra.sock")
    }

    /// The socket that the kubelet's plugin watcher finds.
    #[must_use]
    pub fn registration(&self) -> PathBuf {
        self.kubelet
            .join("plugins_registry")
            .join(format!("{DRIVER}-reg.sock"))
    }
}

/// Serves until `ended` is. The caller holds the lock of the claims' records, so no other driver has these sockets.
///
/// # Errors
/// [`Code::Kubelet`]: a socket cannot be made, or is not served any more.
pub async fn serve(
    folders: &Folders,
    node: Arc<Node>,
    line: fn(&Fault) -> String,
    log: Log,
    ended: impl Future<Output = ()>,
) -> Result<(), Fault> {
    let (driver, registration) = (folders.driver(), folders.registration());
    let plugin = Plugin {
        node,
        log: log.clone(),
        line,
    };
    let calls = Server::builder()
        .concurrency_limit_per_connection(AT_A_TIME)
        .add_service(v1::dra_plugin_server::DraPluginServer::new(plugin.clone()))
        .add_service(v1beta1::dra_plugin_server::DraPluginServer::new(plugin))
        .serve_with_incoming(of_root(listen(&driver)?));
    let info = Registration {
        endpoint: driver.display().to_string(),
        log,
    };
    // Last: the kubelet dials as soon as it sees this file.
    let dialled = of_root(listen(&registration)?).map(|socket| socket.map(readable));
    let registered = Server::builder()
        .concurrency_limit_per_connection(AT_A_TIME)
        .add_service(RegistrationServer::new(info))
        .serve_with_incoming(dialled);
    let over = tokio::select! {
        over = calls => over,
        over = registered => over,
        () = ended => Ok(()),
    };
    // The kubelet takes the driver off its list.
    let _gone = fs::remove_file(&registration);
    let _gone = fs::remove_file(&driver);
    over.map_err(|error| {
        Fault::new(Code::Kubelet, "the kubelet's sockets are not served any more").because(&error)
    })
}

/// The connections of root, and of the user who runs this.
fn of_root(listener: UnixListener) -> impl tokio_stream::Stream<Item = Result<UnixStream, std::io::Error>> {
    let own = rustix::process::geteuid().as_raw();
    UnixListenerStream::new(listener).filter_map(move |socket| {
        let socket = socket.ok()?;
        let peer = socket.peer_cred().ok()?.uid();
        (peer == 0 || peer == own).then_some(Ok(socket))
    })
}

fn listen(path: &Path) -> Result<UnixListener, Fault> {
    let cannot = |error: &std::io::Error| {
        Fault::new(Code::Kubelet, format!("cannot listen at `{}`", path.display()))
            .because(error)
            .hint("run this as root on a node; `--kubelet-dir` names the kubelet's folder where it is not /var/lib/kubelet")
    };
    let bind = || -> std::io::Result<UnixListener> {
        let folder = path.parent().unwrap_or(path);
        fs::DirBuilder::new().recursive(true).mode(0o750).create(folder)?;
        match fs::symlink_metadata(path) {
            Ok(facts) if facts.file_type().is_socket() => fs::remove_file(path)?,
            Ok(_) => {
                return Err(std::io::Error::new(
                    ErrorKind::AlreadyExists,
                    "it is there and no socket",
                ));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    bind().map_err(|error| cannot(&error))
}
