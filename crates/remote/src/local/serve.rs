//! The worker's side of one connection. The process that calls [`serve`] serves this program, and ends with it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use divvy_ring::{Peer, Region, RingError, Shape};
use rustix::io::Errno;

use super::CHANNELS;
use super::handshake::{self, Heard, is_open};
use super::wake::Wake;
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
    let message = server.quota().message as u32;
    let shape = Shape {
        channels: CHANNELS,
        message_bytes: message,
        data_bytes: server.quota().area,
        ..Shape::default()
    };
    let (mut region, fd) = Region::create(&shape).map_err(|_| Errno::NOMEM)?;
    handshake::greet(socket, fd.as_fd(), None)?;
    drop(fd);
    // The region is chosen once: by memory that is brought, or by the first channel.
    let mut wake = None;
    while let Some(heard) = handshake::heard(socket)? {
        let channel = match heard {
            Heard::Ask => {
                handshake::report(socket, server.traffic())?;
                continue;
            }
            Heard::Memory(memory, part) if wake.is_none() => {
                let mut shape = Shape::within(part.bytes, message).ok_or(Errno::PROTO)?;
                // What is mapped and pinned here is bounded as for a region of the worker's own.
                shape.data_bytes = shape.data_bytes.min(server.quota().area);
                region =
                    Region::create_in_sealed(memory.as_fd(), part.at, &shape).map_err(|_| Errno::PROTO)?;
                server.share_within(&region, part.pinned);
                wake = Some(Wake::of(true));
                handshake::agree(socket)?;
                continue;
            }
            Heard::Memory(..) => return Err(Errno::PROTO),
            Heard::Channel(channel) => channel,
        };
        let wake = *wake.get_or_insert_with(|| {
            server.share(&region);
            Wake::of(false)
        });
        let peer = Peer::new(wake, move || is_open(socket)).with(wake.limits());
        // A channel that is served already has a new thread of the program: its own thread here sees that.
        let Some(ring) = region.server(channel, peer) else {
            if channel < region.shape().channels {
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
    mut ring: divvy_ring::Server<Wake>,
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
