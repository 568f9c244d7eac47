//! The worker's side of one connection. The process that calls [`serve`] serves this program, and ends with it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use divvy_ring::{Peer, Region, RingError, Shape};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
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
    /// The program made no call within a minute.
    Silent,
    /// The system refused something.
    System(Errno),
}

/// A program makes its first call at once, since it connects for that. One that makes none in this time has no use for a worker.
const FIRST_CALL: Duration = Duration::from_secs(60);

/// Serves the program at the other end of `socket`, until it is gone. The caller ends the process then: threads of
/// calls that still run are not waited for.
pub fn serve(socket: BorrowedFd<'static>, server: &Arc<Server>, ended: fn(End) -> !) -> ! {
    ended(match listen(socket, server, ended, FIRST_CALL) {
        Ok(()) => End::Closed,
        Err(Errno::PROTO) => End::Hostile,
        Err(Errno::TIMEDOUT) => End::Silent,
        Err(errno) => End::System(errno),
    })
}

/// Whether the program has made a call, and until when it may make none.
struct FirstCall {
    is_made: Arc<AtomicBool>,
    until: Instant,
}

impl FirstCall {
    /// Waits for a word of the program, or for its first call.
    ///
    /// # Errors
    /// `ETIMEDOUT` where the time is over. Words do not make it longer.
    fn wait(&self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        while !self.is_made.load(Ordering::Acquire) {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Errno::TIMEDOUT);
            }
            let left = Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&left)) {
                Ok(0) | Err(Errno::INTR) => {}
                came => return came.map(drop),
            }
        }
        Ok(())
    }
}

fn listen(
    socket: BorrowedFd<'static>,
    server: &Arc<Server>,
    ended: fn(End) -> !,
    time: Duration,
) -> Result<(), Errno> {
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
    let first_call = FirstCall {
        is_made: Arc::default(),
        until: Instant::now() + time,
    };
    // The region is chosen once: by memory that is brought, or by the first channel.
    let mut wake = None;
    loop {
        first_call.wait(socket)?;
        let Some(heard) = handshake::heard(socket)? else {
            return Ok(());
        };
        let channel = match heard {
            Heard::Begin => continue,
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
                // A virtual machine may be stopped at any moment. Its relay says when the program is gone.
                first_call.is_made.store(true, Ordering::Release);
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
        let (server, is_made) = (Arc::clone(server), Arc::clone(&first_call.is_made));
        let name = std::thread::Builder::new().name(format!("channel {channel}"));
        let serving = name.spawn(move || serve_channel(ring, &server, socket, &is_made, ended));
        serving.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
    }
}

/// Serves the threads that have a channel, one after the other.
fn serve_channel(
    mut ring: divvy_ring::Server<Wake>,
    server: &Arc<Server>,
    socket: BorrowedFd<'static>,
    is_made: &AtomicBool,
    ended: fn(End) -> !,
) {
    loop {
        let mut session = server.session();
        let mut messages = 0_u64;
        let end = ring.serve(|message, reply| {
            match session.receive(message) {
                Ok(Some(answer)) => reply.extend_from_slice(answer),
                Ok(None) => {}
                Err(_) => ended(End::Hostile),
            }
            // The first message greets, the second is a call.
            messages += 1;
            if messages == 2 {
                is_made.store(true, Ordering::Release);
            }
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

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use divvy_abi::Table;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::server::Quota;
    use crate::wire::by_hand::START;
    use crate::wire::{HEADER_BYTES, Header, Hello, Sort, Writer};
    use crate::{Connector, LocalConnector};

    static NOTHING: Table = Table::UNSUPPORTED;

    fn dies(end: End) -> ! {
        panic!("it ended: {end:?}")
    }

    /// The program's end, and what becomes of its worker.
    fn started(time: Duration) -> (OwnedFd, std::thread::JoinHandle<Result<(), Errno>>) {
        let kind = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (program, worker) = socketpair(AddressFamily::UNIX, kind.0, kind.1, None).expect("a pair");
        let worker: &'static OwnedFd = Box::leak(Box::new(worker));
        let serves = std::thread::spawn(move || {
            let server = Server::new(&NOTHING, Quota::default());
            let outcome = listen(worker.as_fd(), &server, dies, time);
            let _closed = rustix::net::shutdown(worker, rustix::net::Shutdown::Both);
            outcome
        });
        (program, serves)
    }

    /// How it ended, which takes no minutes.
    fn outcome(of: std::thread::JoinHandle<Result<(), Errno>>) -> Result<(), Errno> {
        for _ in 0..3000 {
            if of.is_finished() {
                return of.join().expect("no panic");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("its worker is still there")
    }

    fn call() -> [u8; HEADER_BYTES] {
        let mut message = [0; HEADER_BYTES];
        let header = Header {
            length: HEADER_BYTES as u32,
            id: START,
            sequence: 1,
            order: 0,
            sort: Sort::Call,
        };
        header.write(&mut Writer::new(&mut message));
        message
    }

    /// A program that takes the greeting and does less than a call ends its worker, whatever it says over the socket.
    #[test]
    fn a_program_that_makes_no_call_keeps_no_worker() {
        let (silent, its_end) = started(Duration::from_millis(30));
        handshake::greeted(silent.as_fd()).expect("greeted");
        assert_eq!(outcome(its_end), Err(Errno::TIMEDOUT));

        // It asks again and again, as a byte a second would.
        let (asks, its_end) = started(Duration::from_millis(30));
        handshake::greeted(asks.as_fd()).expect("greeted");
        let began = Instant::now();
        while handshake::ask(asks.as_fd()).is_ok() && began.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
            let _answers = rustix::net::recv(&asks, &mut [0_u8; 64][..], rustix::net::RecvFlags::DONTWAIT);
        }
        assert_eq!(outcome(its_end), Err(Errno::TIMEDOUT));

        // It takes a channel and greets there.
        let (hello, its_end) = started(Duration::from_secs(2));
        let connector = LocalConnector::over(hello).expect("greeted");
        let mut ring = connector.open(0).expect("a channel");
        let mut answer = Vec::new();
        let greeted = ring.call(&Hello::ours(0, 1 << 16).encode(), &mut answer);
        assert_eq!(outcome(its_end), Err(Errno::TIMEDOUT), "{greeted:?}");
    }

    /// One that has made a call may be idle for as long as it wants.
    #[test]
    fn a_program_that_has_made_a_call_may_be_idle() {
        const TIME: Duration = Duration::from_secs(3);
        let began = Instant::now();
        let (program, its_end) = started(TIME);
        let look = program.try_clone().expect("a descriptor");
        let connector = LocalConnector::over(program).expect("greeted");
        let mut ring = connector.open(0).expect("a channel");
        let mut answer = Vec::new();
        ring.call(&Hello::ours(0, 1 << 16).encode(), &mut answer)
            .expect("greeted");
        ring.call(&call(), &mut answer).expect("called");
        while began.elapsed() < TIME + Duration::from_millis(200) {
            std::thread::sleep(Duration::from_millis(50));
        }
        handshake::ask(look.as_fd()).expect("it is there");
        assert!(matches!(
            handshake::said(look.as_fd()),
            Ok(Some(handshake::Said::Traffic(_)))
        ));
        assert!(!its_end.is_finished());
        drop((ring, connector, look));
        assert_eq!(outcome(its_end), Ok(()));
    }
}
