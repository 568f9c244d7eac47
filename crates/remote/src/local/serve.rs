//! The worker's side of one connection. The process that calls [`serve`] serves this program, and ends with it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use divvy_ring::doorbell::Futex;
use divvy_ring::{Peer, Region, RingError, Shape};
use rustix::io::Errno;

use super::CHANNELS;
use super::handshake::{self, is_open};
use crate::server::Server;

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The program has ended, or closed it.
    Closed,
    /// The program sent what is no message, or wrote over the shared memory.
    Hostile,
    /// The system refused something.
    System(Errno),
}

/// Serves the program at the other end of `socket`, until it is gone. The caller ends the process then: threads of
/// calls that still run are not waited for.
pub fn serve(socket: BorrowedFd<'static>, server: &Arc<Server>, ended: fn(End) -> !) -> ! {
    ended(match listen(socket, server, ended) {
        Ok(()) => End::Closed,
        Err(Errno::PROTO) => End::Hostile,
        Err(errno) => End::System(errno),
    })
}

fn listen(socket: BorrowedFd<'static>, server: &Arc<Server>, ended: fn(End) -> !) -> Result<(), Errno> {
    let shape = Shape {
        channels: CHANNELS,
        message_bytes: server.quota().message as u32,
        data_bytes: server.quota().area,
        ..Shape::default()
    };
    let (region, fd) = Region::create(&shape).map_err(|_| Errno::NOMEM)?;
    server.share(&region);
    handshake::greet(socket, fd.as_fd())?;
    drop(fd);
    while let Some(channel) = handshake::announced(socket)? {
        // A channel that is served already has a new thread of the program: its own thread here sees that.
        let Some(ring) = region.server(channel, Peer::new(Futex, move || is_open(socket))) else {
            if channel < CHANNELS {
                continue;
            }
            return Err(Errno::PROTO);
        };
        let server = Arc::clone(server);
        let name = std::thread::Builder::new().name(format!("channel {channel}"));
        let serving = name.spawn(move || serve_channel(ring, &server, socket, ended));
        serving.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
    }
    Ok(())
}

/// Serves the threads that have a channel, one after the other.
fn serve_channel(
    mut ring: divvy_ring::Server<Futex>,
    server: &Arc<Server>,
    socket: BorrowedFd<'static>,
    ended: fn(End) -> !,
) {
    loop {
        let mut session = server.session();
        let end = ring.serve(|message, reply| match session.receive(message) {
            Ok(Some(answer)) => reply.extend_from_slice(answer),
            Ok(None) => {}
            Err(_) => ended(End::Hostile),
        });
        match end {
            // The thread has ended, and the program goes on.
            RingError::Gone if is_open(socket) => ring.reset(),
            RingError::Gone => return,
            // A program that does not read its answers has no use for more.
            _ => ended(End::Hostile),
        }
    }
}
