//! The page server: `divvy run` while its program runs, or a process of its own for a lasting slice. It holds the
//! slice's pages and hands them to every process of the slice that asks, whether an agent runs or not.
//!
//! The agent makes the page server's listening sockets, in folders that only the agent writes, and hands them over. A
//! page server needs no privilege, and gives up those it has.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use divvy_ledger::attach::wire::Status;
use divvy_ledger::attach::{self, AttachError, Door, Sockets};
use divvy_model::{Code, Fault};

use crate::life::records::{ATTACH, CONTROL, make_box, make_folder};
use crate::start::rundir::RunDir;

pub(crate) mod confine;
pub(crate) mod door;
pub(crate) mod hand_out;

/// The number of a container's processes that are served at once. They may connect as often as they like, and the page
/// server's threads are not counted against their own limit on processes. A peer that speaks is answered within a
/// millisecond; a silent one has two seconds.
const MOST_OF_CONTAINERS: usize = 64;
/// The same for processes of the host, which may belong to another user than the page server.
const MOST_OF_HOST: usize = 256;

/// Makes the sockets of a slice's page server, in the place of an earlier one's. A slice for containers gets one more
/// for them.
///
/// # Errors
/// [`Code::RunDir`].
pub(crate) fn make_sockets(run: &RunDir, id: &str, uid: u32, boxed: bool) -> Result<Sockets, Fault> {
    let make = || -> std::io::Result<Sockets> {
        let folder = make_folder(run, id)?;
        Ok(Sockets {
            // The page server looks at the user of each peer.
            attach: folder.listen(ATTACH, 0o666)?,
            control: folder.listen(CONTROL, 0o600)?,
            container: match boxed {
                true => Some(make_box(run, id)?.listen(ATTACH, 0o666)?),
                false => None,
            },
            uid,
        })
    };
    make().map_err(|error| {
        Fault::new(
            Code::RunDir,
            format!(
                "cannot make the sockets of slice {id} in `{}`",
                run.path().display()
            ),
        )
        .because(&error)
        .hint("`divvy doctor` checks the run directory")
    })
}

/// A page server on threads of its own, until the process ends.
#[derive(Debug)]
pub struct PageServer {
    _pages: Arc<attach::PageServer>,
}

impl PageServer {
    /// Serves on these sockets.
    ///
    /// # Errors
    /// [`Code::Attach`].
    pub fn serve(sockets: Sockets, pages: attach::PageServer) -> Result<Self, Fault> {
        let pages = Arc::new(pages);
        let host = Door::Host { uid: sockets.uid };
        let start = || -> std::io::Result<()> {
            // The agent has a socket of its own, so that no tenant delays it.
            start(sockets.control, &pages, Door::Agent, usize::MAX)?;
            start(sockets.attach, &pages, host, MOST_OF_HOST)?;
            match sockets.container {
                Some(container) => start(container, &pages, Door::Container, MOST_OF_CONTAINERS),
                None => Ok(()),
            }
        };
        start()
            .map_err(|error| Fault::new(Code::Attach, "cannot serve the slice's pages").because(&error))?;
        Ok(Self { _pages: pages })
    }

    /// Fetches the sockets of a slice from the agent, and serves on them: for the `divvy run` that is its page server.
    ///
    /// # Errors
    /// [`Code::AgentUnreachable`] where no agent listens; [`Code::Attach`].
    pub fn fetch(run: &RunDir, id: &str) -> Result<Self, Fault> {
        let cannot = |error: AttachError| {
            let code = match error {
                AttachError::System { .. } => Code::AgentUnreachable,
                _ => Code::Attach,
            };
            Fault::new(code, "cannot have the slice's sockets from the agent").because(&error)
        };
        let number = number_of(id).ok_or_else(|| cannot(AttachError::Declined(Status::Unfit)))?;
        let sockets = attach::fetch(&run.keep_socket(), number).map_err(cannot)?;
        Self::serve(sockets, attach::PageServer::new())
    }
}

/// A slice's id as messages of fixed length have it.
pub(crate) fn number_of(id: &str) -> Option<u32> {
    (id.len() == 8).then(|| u32::from_str_radix(id, 16).ok())?
}

/// Serves a lasting slice's pages, as a process of its own, until the slice is deleted or another page server has taken
/// over. The agent that starts it hands it the sockets by its standard input.
///
/// # Errors
/// [`Code::Attach`] when it gets no sockets, or cannot give up its privileges.
pub(crate) fn keep(run: &RunDir, id: &str) -> Result<(), Fault> {
    /// How often it checks whether it is still needed. Usually the agent says so; this is for a time without an agent.
    const LOOK: Duration = Duration::from_secs(1);
    let cannot = |error: &dyn std::error::Error| {
        Fault::new(Code::Attach, format!("cannot keep slice {id}")).because(error)
    };
    // This fails only for a leader of a group, which needs no new session to be safe from the terminal's signals.
    let _session = rustix::process::setsid();
    let stdin = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| cannot(&error))?;
    let sockets = attach::take(&UnixStream::from(stdin)).map_err(|error| cannot(&error))?;
    // The folder is held while this process may still open it.
    let folder = make_folder(run, id).map_err(|error| cannot(&error))?;
    confine::give_up_privileges()?;
    let _page_server = PageServer::serve(sockets, attach::PageServer::that_notes_members())?;
    let own = folder.identity(CONTROL).map_err(|error| cannot(&error))?;
    // A different socket there belongs to another page server. An unknown state is no reason to end.
    while folder.identity(CONTROL).is_ok_and(|now| now == own) {
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Serves the connections to a listener, from a thread of its own, so many at once.
fn start(
    listener: UnixListener,
    pages: &Arc<attach::PageServer>,
    door: Door,
    most: usize,
) -> std::io::Result<()> {
    let pages = Arc::clone(pages);
    std::thread::Builder::new()
        .name("page-server".into())
        .spawn(move || {
            let admits = move |stream: &UnixStream| {
                rustix::net::sockopt::socket_peercred(stream)
                    .is_ok_and(|peer| door.admits_user(peer.uid.as_raw()))
            };
            door::serve(&listener, most, admits, move |stream| {
                // The page server may not write to the program's standard streams: a failure here shows on the other
                // side, which is told.
                let _told = pages.serve(stream, door);
            });
        })?;
    Ok(())
}
