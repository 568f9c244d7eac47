//! The program's side: it connects at the first CUDA call, and each thread that makes calls has a ring.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use divvy_ring::{Backing, Client, Peer, Region, RingError};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::process::{Pid, test_kill_process};

use super::wake::Wake;
use super::{handshake, peer};
use crate::fork::OfProcess;
use crate::{Connector, Lost, NotOpened, Transport};

/// A worker that does not greet within this time is none.
const GREETING_TIME: Duration = Duration::from_secs(10);

/// How often a channel is asked for where none is free, a millisecond apart.
const CHANNEL_TRIES: u32 = 30;

/// Connects to the worker behind a socket, when the first thread makes its first call.
#[derive(Debug)]
pub struct LocalConnector {
    socket: PathBuf,
    /// The connection of this process: a forked child has none.
    connection: OfProcess<Mutex<Option<Arc<Connection>>>>,
}

/// A connection of this process.
#[derive(Debug)]
struct Connection {
    region: Region,
    wake: Wake,
    socket: Socket,
}

/// The socket that says whether the worker lives. The program may close it, as programs do that close all descriptors
/// they do not know; its number may then be another file's.
#[derive(Debug)]
struct Socket {
    fd: OwnedFd,
    identity: (u64, u64),
    /// The process that listens, where this pid namespace shows it: that of a container does not.
    worker: Option<Pid>,
}

impl Socket {
    fn new(fd: OwnedFd) -> Result<Self, Errno> {
        Ok(Self {
            identity: identity(fd.as_fd())?,
            worker: peer::pid_of(fd.as_fd()),
            fd,
        })
    }

    /// The descriptor, as long as it is still the socket.
    fn get(&self) -> Option<BorrowedFd<'_>> {
        let same = identity(self.fd.as_fd()).is_ok_and(|identity| identity == self.identity);
        same.then(|| self.fd.as_fd())
    }

    /// Whether the worker lives.
    fn is_open(&self) -> bool {
        let Some(fd) = self.get() else {
            // The program has closed it. The process that listened is the one to ask then.
            // Where that cannot be asked, a program does not wait for ever.
            return self
                .worker
                .is_some_and(|worker| test_kill_process(worker) != Err(Errno::SRCH));
        };
        handshake::is_open(fd)
    }
}

fn identity(fd: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    let facts = rustix::fs::fstat(fd)?;
    Ok((facts.st_dev, facts.st_ino))
}

impl LocalConnector {
    /// For the worker behind this socket. Nothing is connected yet.
    #[must_use]
    pub fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            connection: OfProcess::new(),
        }
    }

    /// For the worker at the other end of this socket, which was connected by another process. A forked child has none.
    ///
    /// # Errors
    /// The worker does not greet.
    pub fn over(socket: OwnedFd) -> Result<Self, Errno> {
        Ok(Self {
            socket: PathBuf::new(),
            connection: OfProcess::with(Mutex::new(Some(Arc::new(Self::greeted(socket)?)))),
        })
    }

    fn connection(&self) -> Result<Arc<Connection>, Errno> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = &*connection {
            return Ok(Arc::clone(connection));
        }
        let made = Arc::new(self.connect()?);
        *connection = Some(Arc::clone(&made));
        Ok(made)
    }

    fn connect(&self) -> Result<Connection, Errno> {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        // A worker that does not take the connection is none either.
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(GREETING_TIME))?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(&self.socket)?)?;
        Self::greeted(socket)
    }

    fn greeted(socket: OwnedFd) -> Result<Connection, Errno> {
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(GREETING_TIME))?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(GREETING_TIME))?;
        handshake::begin(socket.as_fd())?;
        let (region, at) = handshake::greeted(socket.as_fd())?;
        let backing = at.map_or(Backing::Sealed, Backing::File);
        let region = Region::attach(region.as_fd(), backing).map_err(|_| Errno::PROTO)?;
        Ok(Connection {
            region,
            wake: Wake::of(at.is_some()),
            socket: Socket::new(socket)?,
        })
    }
}

impl Connector for LocalConnector {
    fn open(&self, _thread: u32) -> Result<Box<dyn Transport>, NotOpened> {
        let connection = self.connection().map_err(|errno| match errno {
            Errno::BUSY => NotOpened::Busy,
            _ => NotOpened::Lost,
        })?;
        let mut tries = 0;
        let client = loop {
            let look = Arc::clone(&connection);
            let wake = connection.wake;
            let peer = Peer::new(wake, move || look.socket.is_open()).with(wake.limits());
            match connection.region.client(peer) {
                // Those of threads that ended without a word were just given back, and the worker frees them.
                Err(RingError::NoChannel) if tries < CHANNEL_TRIES => tries += 1,
                Err(RingError::NoChannel) if connection.socket.is_open() => return Err(NotOpened::Full),
                client => break client.map_err(|_| Lost)?,
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let socket = connection.socket.get().ok_or(Lost)?;
        handshake::announce(socket, client.channel()).map_err(|_| Lost)?;
        let capacity = connection.region.shape().message_bytes as usize;
        Ok(Box::new(Ring { client, capacity }))
    }

    fn region(&self) -> Option<Region> {
        Some(self.connection().ok()?.region.clone())
    }
}

/// A thread's ring.
struct Ring {
    client: Client<Wake>,
    capacity: usize,
}

impl Transport for Ring {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn submit(&mut self, message: &[u8]) -> Result<(), Lost> {
        self.client.submit(message).map_err(|_| Lost)
    }

    fn post(&mut self, message: &[u8]) -> Result<(), Lost> {
        self.client.post(message).map_err(|_| Lost)
    }

    fn take(&mut self, answer: &mut Vec<u8>) -> Result<(), Lost> {
        self.client.take(answer).map_err(|_| Lost)
    }
}
