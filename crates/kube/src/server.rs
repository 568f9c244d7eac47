//! The two sockets that the kubelet dials. Root and the user of this process are served, and no others: the kernel says
//! which user a peer is. The folders are root's, but another container may have them mounted.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use divvy_model::{Code, Fault};
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use crate::DRIVER;
use crate::authority::readable;
use crate::grpc::health::dra_resource_health_server::DraResourceHealthServer;
use crate::grpc::pluginregistration::registration_server::RegistrationServer;
use crate::grpc::{HealthWatch, Log, Plugin, Registration, v1, v1beta1};
use crate::health::Reports;
use crate::node::Node;

/// The most requests of one connection that are served at a time.
const AT_A_TIME: usize = 32;

/// Where kubelets of any root directory have the sockets of device plugins.
const DEVICE_PLUGINS: &str = "/var/lib/kubelet/device-plugins";

/// Where the kubelet looks for plugins.
#[derive(Clone, Debug)]
pub struct Folders {
    kubelet: PathBuf,
}

impl Folders {
    /// Of the kubelet with this root directory, `/var/lib/kubelet` on most nodes.
    ///
    /// # Errors
    /// [`Code::Kubelet`] where no kubelet has this directory: its own folders are not there.
    pub fn find(kubelet: &Path) -> Result<Self, Fault> {
        // The kubelet gets paths of it, and has a folder of its own to start from.
        let kubelet = std::path::absolute(kubelet).unwrap_or_else(|_| kubelet.to_owned());
        for own in ["plugins", "plugins_registry"] {
            let own = kubelet.join(own);
            if !own.is_dir() {
                let message = format!("`{}` is no directory of a kubelet's", kubelet.display());
                return Err(Fault::new(Code::Kubelet, message)
                    .cause(format!("there is no folder `{}`", own.display()))
                    .hint("name the kubelet's `--root-dir` with `--kubelet-dir`; a kubelet makes these folders when it starts"));
            }
        }
        Ok(Self { kubelet })
    }

    fn plugin(&self) -> PathBuf {
        self.kubelet.join("plugins").join(DRIVER)
    }

    /// The folder of the claims' records.
    #[must_use]
    pub fn claims(&self) -> PathBuf {
        self.plugin().join("claims")
    }

    /// The folder of the records of a device plugin's allocations.
    #[must_use]
    pub fn allocations(&self) -> PathBuf {
        self.plugin().join("allocations")
    }

    /// The folder of device plugins' sockets, with the kubelet's own. A kubelet has it at one fixed place, whatever its root
    /// directory is (seen on 1.36.2; the path is a constant of its API). Distributions may link the two.
    #[must_use]
    pub fn device_plugins(&self) -> PathBuf {
        let own = self.kubelet.join("device-plugins");
        match own.is_dir() {
            true => own,
            false => DEVICE_PLUGINS.into(),
        }
    }

    /// The socket on which the kubelet tells which pods have which devices.
    #[must_use]
    pub fn pod_resources(&self) -> PathBuf {
        self.kubelet.join("pod-resources/kubelet.sock")
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

/// How often it looks whether its sockets are still there.
const LOOK: Duration = Duration::from_secs(1);

/// Serves until `ended` is. The caller holds the lock of the claims' records, so no other driver has these sockets. Sockets that
/// are removed are made again.
///
/// # Errors
/// [`Code::Kubelet`]: a socket cannot be made, or is not served any more.
pub async fn serve(
    folders: &Folders,
    node: Arc<Node>,
    reports: Reports,
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
    let mut ended = std::pin::pin!(ended);
    let over = loop {
        let calls = Server::builder()
            .concurrency_limit_per_connection(AT_A_TIME)
            .add_service(v1::dra_plugin_server::DraPluginServer::new(plugin.clone()))
            .add_service(v1beta1::dra_plugin_server::DraPluginServer::new(plugin.clone()))
            .add_service(DraResourceHealthServer::new(HealthWatch {
                reports: reports.clone(),
            }))
            .serve_with_incoming(of_root(listen(&driver)?));
        let info = Registration {
            endpoint: driver.display().to_string(),
            log: log.clone(),
        };
        // Last: the kubelet dials as soon as it sees this file.
        let dialled = of_root(listen(&registration)?).map(|socket| socket.map(readable));
        let registered = Server::builder()
            .concurrency_limit_per_connection(AT_A_TIME)
            .add_service(RegistrationServer::new(info))
            .serve_with_incoming(dialled);
        let sockets = [driver.as_path(), registration.as_path()];
        let mut gone = std::pin::pin!(replaced(&sockets));
        tokio::select! {
            over = calls => break over,
            over = registered => break over,
            () = &mut ended => break Ok(()),
            path = &mut gone => {
                log(&format!("`{}` was removed and is made again", path.display()));
            }
        }
    };
    // The kubelet takes the driver off its list.
    let _gone = fs::remove_file(&registration);
    let _gone = fs::remove_file(&driver);
    over.map_err(|error| {
        Fault::new(Code::Kubelet, "the kubelet's sockets are not served any more").because(&error)
    })
}

/// Which file a path names now, by device and inode.
pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    let facts = fs::symlink_metadata(path).ok()?;
    Some((facts.dev(), facts.ino()))
}

/// Waits until one of these files is gone, or is another one.
pub(crate) async fn replaced(paths: &[&Path]) -> PathBuf {
    let before: Vec<_> = paths.iter().map(|path| identity(path)).collect();
    loop {
        tokio::time::sleep(LOOK).await;
        for (path, before) in paths.iter().zip(&before) {
            if identity(path) != *before {
                return path.to_path_buf();
            }
        }
    }
}

/// The connections of root, and of the user who runs this.
pub(crate) fn of_root(
    listener: UnixListener,
) -> impl tokio_stream::Stream<Item = Result<UnixStream, std::io::Error>> {
    let own = rustix::process::geteuid().as_raw();
    UnixListenerStream::new(listener).filter_map(move |socket| {
        let socket = socket.ok()?;
        let peer = socket.peer_cred().ok()?.uid();
        (peer == 0 || peer == own).then_some(Ok(socket))
    })
}

pub(crate) fn listen(path: &Path) -> Result<UnixListener, Fault> {
    let cannot = |error: &std::io::Error| {
        Fault::new(Code::Kubelet, format!("cannot listen at `{}`", path.display()))
            .because(error)
            .hint("run this as root on a node; `--kubelet-dir` names the kubelet's folder where it is not /var/lib/kubelet")
    };
    let bind = || -> std::io::Result<UnixListener> {
        let folder = path.parent().unwrap_or(path);
        // Its parent is the kubelet's and is there: a folder is not made where no kubelet looks.
        match fs::DirBuilder::new().mode(0o750).create(folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_no_kubelets_is_refused_and_left_alone() {
        let base = tempfile::tempdir().expect("a folder");
        let wrong = base.path().join("kubelt");
        let refused = Folders::find(&wrong).expect_err("a typo");
        assert!(
            refused.code == Code::Kubelet
                && refused
                    .hint
                    .as_ref()
                    .is_some_and(|hint| hint.contains("--kubelet-dir")),
            "{refused:?}"
        );
        assert!(!wrong.exists());
        for own in ["plugins", "plugins_registry"] {
            assert!(Folders::find(base.path()).is_err(), "before {own}");
            fs::create_dir(base.path().join(own)).expect("made");
        }
        let folders = Folders::find(base.path()).expect("a kubelet's");
        assert!(folders.driver().starts_with(base.path()));
        // A kubelet has device plugins at one place, whatever its root directory is.
        assert_eq!(
            folders.device_plugins(),
            Path::new("/var/lib/kubelet/device-plugins")
        );
        let own = base.path().join("device-plugins");
        fs::create_dir(&own).expect("made");
        assert_eq!(folders.device_plugins(), own);
    }
}
