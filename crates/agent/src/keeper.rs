//! The keeper: `divvy run` while its program runs, or a process of its own for a lasting slice. It holds the slice's
//! pages and hands them to every process of the slice that asks, whether an agent runs or not.

use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use divvy_ledger::attach;
use divvy_model::{Code, Fault};

use crate::RunDir;

mod door;

/// As many of a container's processes are served at once: they may connect as often as they like, and our threads are not
/// counted against their own bound on processes. Who speaks is answered within a millisecond, who is silent has two seconds.
const MOST_OF_CONTAINERS: usize = 64;

/// A keeper that listens. Dropping it lets nobody else attach; it does not end those who have.
#[derive(Debug)]
pub struct Keeper {
    socket: PathBuf,
    pages: Arc<attach::Keeper>,
}

impl Keeper {
    /// Listens in a slice's directory and serves from threads of its own. The agent comes here too: nobody is to hold it up,
    /// and so all who come are served at once. Pages are taken from the user of the agent
    /// that made the directory (`agent_uid`), and from root.
    ///
    /// # Errors
    /// [`Code::Attach`].
    pub fn listen(directory: &Path, agent_uid: u32) -> Result<Self, Fault> {
        let socket = directory.join("attach.sock");
        let cannot = |error: std::io::Error| {
            Fault::new(Code::Attach, format!("cannot listen on `{}`", socket.display())).because(&error)
        };
        let pages = Arc::new(attach::Keeper::new(agent_uid));
        start(UnixListener::bind(&socket), &pages, usize::MAX).map_err(cannot)?;
        Ok(Self { socket, pages })
    }

    /// Listens at a second place as well, [`RunDir::slice_box`], which containers have mounted: whatever user a
    /// container's programs run as, they find the folder and may connect. On the host nobody comes to it but the
    /// slice's user: it lies in a directory that only he may enter.
    ///
    /// # Errors
    /// [`Code::Attach`].
    pub fn listen_for_containers(&self, folder: &Path) -> Result<(), Fault> {
        let socket = folder.join("attach.sock");
        let listen = || {
            match DirBuilder::new().mode(0o755).create(folder) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            std::fs::set_permissions(folder, Permissions::from_mode(0o755))?;
            // Of a keeper that is dead, or that we replace. The folder stays: containers have it mounted.
            let _stale = std::fs::remove_file(&socket);
            let listener = UnixListener::bind(&socket)?;
            std::fs::set_permissions(&socket, Permissions::from_mode(0o666))?;
            start(Ok(listener), &self.pages, MOST_OF_CONTAINERS)
        };
        listen().map_err(|error: std::io::Error| {
            Fault::new(Code::Attach, format!("cannot listen on `{}`", socket.display())).because(&error)
        })
    }

    /// Where it listens: the value of `DIVVY_SLICE`.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.socket);
    }
}

/// Keeps a lasting slice, as a process of its own, until the slice is deleted or another keeper has taken over.
///
/// # Errors
/// [`Code::Attach`] when it cannot listen.
pub fn keep(run: &RunDir, id: &str) -> Result<(), Fault> {
    /// How often it looks whether it is still wanted. The agent tells it; this is for when no agent does.
    const LOOK: Duration = Duration::from_secs(1);
    let directory = run.slice(id);
    let cannot = |error: std::io::Error| {
        Fault::new(
            Code::Attach,
            format!("cannot keep the slice in `{}`", directory.display()),
        )
        .because(&error)
    };
    // Fails only for a leader of a group, which needs no new session to be safe from the terminal's signals.
    let _session = rustix::process::setsid();
    let uid = rustix::process::getuid().as_raw();
    let tenant = std::fs::metadata(&directory).map_err(cannot)?.uid();
    let keeper = Keeper::listen(&directory, uid)?;
    keeper.listen_for_containers(&run.slice_box(id))?;
    if tenant != uid {
        // The slice's user connects; whoever keeps the slice is none of its processes.
        chown(keeper.socket(), Some(tenant), None).map_err(cannot)?;
    }
    let place = |path: &Path| std::fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()));
    let own = place(keeper.socket()).map_err(cannot)?;
    while place(keeper.socket()).is_ok_and(|now| now == own) {
        std::thread::sleep(LOOK);
    }
    // What is there now is somebody else's.
    std::mem::forget(keeper);
    Ok(())
}

/// Serves what comes to a listener, from a thread of its own, so many at once.
fn start(
    listener: std::io::Result<UnixListener>,
    pages: &Arc<attach::Keeper>,
    most: usize,
) -> std::io::Result<()> {
    let listener = listener?;
    let pages = Arc::clone(pages);
    std::thread::Builder::new()
        .name("keeper".into())
        .spawn(move || door::serve(&listener, most, move |stream| answer(&pages, stream)))?;
    Ok(())
}

/// The program's standard streams are not the keeper's to write to: what goes wrong here shows on the other side,
/// which is told.
fn answer(pages: &attach::Keeper, stream: &UnixStream) {
    let _told = pages.serve(stream);
}
