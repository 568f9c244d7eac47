//! The agent's socket at which a `divvy run` fetches the sockets of the slice that it serves.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use divvy_ledger::attach::wire::Status;
use divvy_ledger::attach::{self, Sockets};
use divvy_model::{Code, Fault, SliceState};

use super::{door, make_sockets, number_of};
use crate::start::rundir::KEEP_SOCKET;
use crate::start::rundir::RunDir;
use crate::state::Shared;
use crate::system::peer::Peer;

/// The number of connections that are served at once. A silent one is closed after two seconds.
const MOST: usize = 64;

/// Serves from a thread of its own for as long as the agent lives.
///
/// # Errors
/// [`Code::AgentStart`].
pub(crate) fn start(run: &RunDir, state: &Shared) -> Result<(), Fault> {
    let this = Arc::new(HandOut {
        run: run.clone(),
        state: state.clone(),
    });
    let cannot = |error: &std::io::Error| {
        Fault::new(
            Code::AgentStart,
            format!("cannot listen on `{}`", run.keep_socket().display()),
        )
        .because(error)
    };
    let listener = run
        .folder()
        .and_then(|folder| folder.listen(KEEP_SOCKET, 0o666))
        .map_err(|error| cannot(&error))?;
    std::thread::Builder::new()
        .name("keep.sock".into())
        .spawn(move || {
            let known = Arc::clone(&this);
            let admits = move |stream: &UnixStream| known.knows_page_server(stream);
            door::serve(&listener, MOST, admits, move |stream| {
                // A run that went away needs no answer.
                let _gone = attach::answer(stream, |id| this.sockets_for(stream, id));
            });
        })
        .map_err(|error| cannot(&error))?;
    Ok(())
}

struct HandOut {
    run: RunDir,
    state: Shared,
}

impl HandOut {
    /// Whether the peer is a `divvy run` that serves a slice. Any other process has no business here, and would take
    /// places from those runs.
    fn knows_page_server(&self, stream: &UnixStream) -> bool {
        let Ok(peer) = rustix::net::sockopt::socket_peercred(stream) else {
            return false;
        };
        let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
        let state = self.state.lock();
        let mut slices = state.slices.values().map(|slice| &slice.record);
        slices.any(|record| {
            !record.lasting && record.uid == peer.uid.as_raw() && record.page_server_pid == Some(pid)
        })
    }

    /// The sockets of a slice, for its page server and for no other process.
    fn sockets_for(&self, stream: &UnixStream, number: u32) -> Result<Sockets, Status> {
        let peer = rustix::net::sockopt::socket_peercred(stream.as_fd()).map_err(|_| Status::Failed)?;
        let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
        let peer = Peer::of_connection(stream, peer.uid.as_raw(), pid);
        if !peer.lives() {
            return Err(Status::NotAllowed);
        }
        let (id, uid) = {
            let state = self.state.lock();
            let mut slices = state.slices.values().map(|slice| &slice.record);
            let record = slices
                .find(|record| number_of(&record.id) == Some(number))
                .ok_or(Status::NoPages)?;
            let is_page_server = !record.lasting
                && record.uid == peer.uid
                && record.page_server_pid == Some(peer.pid)
                && record.page_server_start_ticks == peer.since;
            if !is_page_server || record.state == SliceState::Orphaned {
                return Err(Status::NotAllowed);
            }
            (record.id.clone(), record.uid)
        };
        make_sockets(&self.run, &id, uid, false).map_err(|fault| {
            tracing::error!(slice = id, code = %fault.code, "{fault}: {}", fault.causes.join(": "));
            Status::Failed
        })
    }
}
