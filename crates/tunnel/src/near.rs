//! The client's relay: it takes the rings of programs on this host, and carries their messages to the server.
//!
//! Programs connect as to a worker of this host. Each of their threads has a connection of its own to the server, and so
//! a thread that waits holds up no other one. One more connection holds the slice: it has a heartbeat, and its end is
//! the end of all.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use divvy_model::{Code, Fault};
use divvy_remote::local::handshake::{self, Heard};
use divvy_remote::local::{CHANNELS, limits};
use divvy_remote::stream::{Frames, StreamTransport};
use divvy_remote::{Lost, Transport};
use divvy_ring::doorbell::Futex;
use divvy_ring::{Peer, Region, RingError, Server, Shape};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustls::{ClientConfig, ClientConnection};

use crate::certificate::Identity;
use crate::talk::{Answer, Ask, Wanted, Word, hear, say};
use crate::tls::{self, GONE, TIME_LIMIT, Tls};
use crate::{MESSAGE, talk};

/// How often the client says that it lives.
const BEAT: Duration = Duration::from_secs(5);
/// While a thread waits for an answer, its ring is looked at no less often than this.
const LOOK: Duration = Duration::from_millis(20);
/// A connection that failed is tried again after this.
const RETRY: Duration = Duration::from_millis(500);
/// The first such look comes after this.
const FIRST_LOOK: Duration = Duration::from_micros(50);

type Network = Tls<ClientConnection>;

/// Asks a server for its devices: a list of records, as `divvy devices -o json` gives them.
///
/// # Errors
/// [`Code::RemoteUnreachable`], [`Code::RemoteIdentity`], [`Code::RemoteVersion`], or the server's own.
pub fn devices(address: &str, identity: &Identity) -> Result<serde_json::Value, Fault> {
    let mut frames = tls::connect(address, &tls::client(identity)?)?;
    match ask(address, &mut frames, &Ask::Devices)? {
        Answer::Devices { devices } => Ok(devices),
        other => Err(unexpected(address, &other)),
    }
}

fn cut(address: &str, error: &io::Error) -> Fault {
    Fault::new(
        Code::RemoteUnreachable,
        format!("the connection to {address} was cut"),
    )
    .because(error)
    .hint("the log of `divvy remote serve` there may say why")
}

fn unexpected(address: &str, answer: &Answer) -> Fault {
    match answer {
        Answer::Refused { fault } => fault.clone(),
        _ => Fault::new(
            Code::RemoteVersion,
            format!("{address} gave another answer than was asked for"),
        )
        .hint("install the same version of Divvy on both hosts"),
    }
}

fn ask(address: &str, frames: &mut Frames<Network>, ask: &Ask) -> Result<Answer, Fault> {
    say(frames, ask)
        .and_then(|()| hear(frames))
        .map_err(|error| cut(address, &error))
}

/// A slice on another host. It goes when this is dropped.
#[derive(Debug)]
pub struct Session {
    control: Frames<Network>,
    link: Link,
}

/// How threads reach the server.
#[derive(Clone, Debug)]
struct Link {
    address: String,
    config: Arc<ClientConfig>,
    session: String,
}

impl Session {
    /// Asks for a slice, and waits for it. `waiting` is called again and again meanwhile.
    ///
    /// # Errors
    /// [`Code::RemoteUnreachable`], [`Code::RemoteIdentity`], [`Code::RemoteVersion`], or what the server refuses.
    pub fn open(
        address: &str,
        identity: &Identity,
        wanted: &Wanted,
        waiting: impl Fn(),
    ) -> Result<Self, Fault> {
        let config = tls::client(identity)?;
        let mut control = tls::connect(address, &config)?;
        let timeout = control.stream().socket().set_read_timeout(Some(GONE));
        timeout.map_err(|error| cut(address, &error))?;
        let mut answer = ask(address, &mut control, &Ask::Open(wanted.clone()))?;
        loop {
            match answer {
                Answer::Ready { session } => {
                    let link = Link {
                        address: address.to_owned(),
                        config,
                        session,
                    };
                    return Ok(Self { control, link });
                }
                Answer::Waiting => waiting(),
                other => return Err(unexpected(address, &other)),
            }
            answer = hear(&mut control).map_err(|error| cut(address, &error))?;
        }
    }

    /// Serves programs at a new socket in this folder, which others cannot enter, until the relay is dropped.
    ///
    /// # Errors
    /// [`Code::Internal`]: the socket or a thread cannot be made.
    pub fn relay(self, folder: &Path) -> Result<Relay, Fault> {
        let path = folder.join("worker.sock");
        let failed = |error: io::Error| {
            Fault::new(Code::Internal, "cannot make a socket for programs").because(&error)
        };
        let listener = listen(&path).map_err(|errno| failed(errno.into()))?;
        let (words, told) = channel();
        let relay = Arc::new(Shared {
            link: self.link,
            ended: AtomicBool::new(false),
            programs: Mutex::default(),
            next: AtomicU64::new(1),
            control: self.control.stream().socket().try_clone().map_err(failed)?,
            words: Mutex::new(words),
        });
        let (shared, control) = (Arc::clone(&relay), self.control);
        start("control", move || {
            keep(control, &told);
            shared.end();
        })
        .map_err(failed)?;
        let shared = Arc::clone(&relay);
        start("programs", move || shared.accept(&listener)).map_err(failed)?;
        Ok(Relay { shared: relay, path })
    }
}

fn listen(path: &Path) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 64)?;
    Ok(socket)
}

fn start(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    Builder::new().name(name.to_owned()).spawn(body).map(drop)
}

/// Says that the client lives, and which programs have ended. Returns when the server does not answer.
fn keep(mut control: Frames<Network>, told: &Receiver<Word>) {
    loop {
        let word = match told.recv_timeout(BEAT) {
            Ok(word) => word,
            Err(RecvTimeoutError::Timeout) => Word::Beat,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let answered = say(&mut control, &word).and_then(|()| hear::<_, Word>(&mut control));
        if answered.is_err() {
            return;
        }
    }
}

/// The client's relay. Its end is the end of the slice.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    path: PathBuf,
}

impl Relay {
    /// The socket that programs connect to, as to a worker's.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.path
    }

    /// Whether the server has gone.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.end();
        let _gone = std::fs::remove_file(&self.path);
    }
}

#[derive(Debug)]
struct Shared {
    link: Link,
    ended: AtomicBool,
    programs: Mutex<HashMap<u64, Arc<Program>>>,
    next: AtomicU64,
    control: TcpStream,
    words: Mutex<Sender<Word>>,
}

/// A program that has connected.
#[derive(Debug)]
struct Program {
    number: u64,
    socket: OwnedFd,
    /// Of its threads, to end them.
    connections: Mutex<Vec<TcpStream>>,
    ended: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panic left is whole: it is changed in single steps.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Program {
    /// Ends it: the program finds its device gone, and its threads here find their connections closed.
    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        let _closed = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        for connection in lock(&self.connections).drain(..) {
            let _closed = connection.shutdown(Shutdown::Both);
        }
    }

    fn is_open(&self) -> bool {
        !self.ended.load(Ordering::Acquire) && handshake::is_open(self.socket.as_fd())
    }
}

impl Shared {
    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        let _closed = self.control.shutdown(Shutdown::Both);
        for program in lock(&self.programs).values() {
            program.end();
        }
    }

    fn accept(self: &Arc<Self>, listener: &OwnedFd) {
        let tick = Timespec {
            tv_sec: 0,
            tv_nsec: 200_000_000,
        };
        while !self.ended.load(Ordering::Acquire) {
            let mut look = [PollFd::new(listener, PollFlags::IN)];
            if !poll(&mut look, Some(&tick)).is_ok_and(|ready| ready != 0) {
                continue;
            }
            let Ok(socket) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC) else {
                std::thread::sleep(LOOK);
                continue;
            };
            let program = Arc::new(Program {
                number: self.next.fetch_add(1, Ordering::Relaxed),
                socket,
                connections: Mutex::default(),
                ended: AtomicBool::new(false),
            });
            lock(&self.programs).insert(program.number, Arc::clone(&program));
            let shared = Arc::clone(self);
            // Without a thread the program finds no worker.
            let _started = start("program", move || {
                let _ended = shared.serve(&program);
                program.end();
                lock(&shared.programs).remove(&program.number);
                let _unheard = lock(&shared.words).send(Word::End {
                    program: program.number,
                });
            });
        }
    }

    /// Serves a program until it closes its socket.
    fn serve(self: &Arc<Self>, program: &Arc<Program>) -> Result<(), Errno> {
        if self.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        let shape = Shape {
            channels: CHANNELS,
            message_bytes: MESSAGE as u32,
            // No memory of the server's is shared: all bytes go in messages.
            data_bytes: 0,
            ..Shape::default()
        };
        let (region, fd) = Region::create(&shape).map_err(|_| Errno::NOMEM)?;
        handshake::greet(program.socket.as_fd(), fd.as_fd(), None)?;
        drop(fd);
        while let Some(heard) = handshake::heard(program.socket.as_fd())? {
            let channel = match heard {
                Heard::Begin => continue,
                Heard::Channel(channel) => channel,
                _ => return Err(Errno::PROTO),
            };
            let look = Arc::clone(program);
            let peer = Peer::new(Futex, move || look.is_open()).with(limits());
            let Some(ring) = region.server(channel, peer) else {
                if channel < CHANNELS {
                    continue;
                }
                return Err(Errno::PROTO);
            };
            let (shared, program) = (Arc::clone(self), Arc::clone(program));
            let name = format!("channel {channel}");
            start(&name, move || {
                shared.serve_channel(ring, &program);
            })
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        }
        Ok(())
    }

    /// Serves the threads that have a channel, one after the other.
    fn serve_channel(&self, mut ring: Server<Futex>, program: &Program) {
        let mut message = Vec::new();
        loop {
            let end = match ring.receive(None, &mut message) {
                Ok(waits) => match self.connect_in_time(program) {
                    Ok(mut way) => {
                        let end = forward(&mut ring, &mut way, &mut message, waits);
                        // Another descriptor of it is kept to end it from elsewhere.
                        let _closed = way.stream().socket().shutdown(Shutdown::Both);
                        end
                    }
                    // What is no answer to its greeting fails this thread's call, and the program goes on.
                    Err(Lost) if waits && program.is_open() && ring.reply(&[0]).is_ok() => {
                        End::Ring(until_gone(&mut ring, &mut message))
                    }
                    Err(Lost) => End::Network,
                },
                Err(error) => End::Ring(error),
            };
            match end {
                // The thread has ended, and the program goes on.
                End::Ring(RingError::Gone) if program.is_open() => ring.reset(),
                End::Ring(RingError::Gone) => return,
                End::Ring(_) | End::Network => return program.end(),
            }
        }
    }

    /// A connection for one thread. One that fails is tried again within the time limit: the server may be busy.
    fn connect_in_time(&self, program: &Program) -> Result<StreamTransport<Network>, Lost> {
        let deadline = Instant::now() + TIME_LIMIT;
        loop {
            match self.connect(program) {
                Err(Failed::Now(Lost)) if program.is_open() && Instant::now() < deadline => {
                    std::thread::sleep(RETRY);
                }
                made => return made.map_err(|_| Lost),
            }
        }
    }

    /// A connection for one thread, tried once.
    fn connect(&self, program: &Program) -> Result<StreamTransport<Network>, Failed> {
        let Link {
            address,
            config,
            session,
        } = &self.link;
        let mut frames = tls::connect(address, config).map_err(|_| Lost)?;
        let thread = Ask::Thread {
            session: session.clone(),
            program: program.number,
        };
        let capacity = match ask(address, &mut frames, &thread) {
            Ok(Answer::Thread { capacity }) => capacity,
            Ok(Answer::Refused { fault }) if fault.code == Code::RemoteIdentity => {
                return Err(Failed::ForGood);
            }
            _ => return Err(Lost.into()),
        };
        frames.stream().carries().map_err(|_| Lost)?;
        let closer = frames.stream().socket().try_clone().map_err(|_| Lost)?;
        let mut connections = lock(&program.connections);
        if program.ended.load(Ordering::Acquire) {
            return Err(Lost.into());
        }
        // Those whose other end is closed need no end.
        connections.retain(|connection| connection.peer_addr().is_ok());
        connections.push(closer);
        Ok(StreamTransport::over(frames, MESSAGE.min(capacity as usize)))
    }
}

/// Why a connection was not made.
enum Failed {
    /// Another try may make it.
    Now(Lost),
    /// The server has forgotten this host.
    ForGood,
}

impl From<Lost> for Failed {
    fn from(lost: Lost) -> Self {
        Self::Now(lost)
    }
}

/// Why messages go no further.
enum End {
    Ring(RingError),
    Network,
}

impl From<RingError> for End {
    fn from(error: RingError) -> Self {
        End::Ring(error)
    }
}

impl From<Lost> for End {
    fn from(_: Lost) -> Self {
        End::Network
    }
}

/// Takes what a thread posted before it found that it has no server.
fn until_gone(ring: &mut Server<Futex>, message: &mut Vec<u8>) -> RingError {
    loop {
        if let Err(error) = ring.receive(None, message) {
            return error;
        }
    }
}

/// Carries one thread's messages, of which the first is in `message`, and their answers.
fn forward(
    ring: &mut Server<Futex>,
    way: &mut StreamTransport<Network>,
    message: &mut Vec<u8>,
    waits: bool,
) -> End {
    let mut carry = || -> Result<std::convert::Infallible, End> {
        let mut answer = Vec::new();
        // Calls whose answers have not come.
        let mut under_way = 0_usize;
        let mut waits = waits;
        loop {
            way.put(message)?;
            under_way += usize::from(waits);
            waits = loop {
                // What is there goes together.
                match ring.receive(Some(Duration::ZERO), message) {
                    Ok(waits) => break waits,
                    Err(RingError::TimedOut) => {}
                    Err(error) => return Err(error.into()),
                }
                way.flush()?;
                if under_way == 0 {
                    break ring.receive(None, message)?;
                }
                if let Some(waits) = next(ring, way, message)? {
                    break waits;
                }
                way.take(&mut answer)?;
                under_way -= 1;
                ring.reply(&answer)?;
            };
        }
    };
    match carry() {
        Ok(never) => match never {},
        Err(end) => end,
    }
}

/// Waits for an answer, or for another message of the thread: programs post several calls before they wait. Gives whether
/// the thread waits for its message, or None where an answer has come.
fn next(
    ring: &mut Server<Futex>,
    way: &mut StreamTransport<Network>,
    message: &mut Vec<u8>,
) -> Result<Option<bool>, End> {
    let mut wait = FIRST_LOOK;
    while !way.has_more() {
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        let mut look = [PollFd::new(way.stream().socket(), PollFlags::IN)];
        // Whatever it says, the answer is looked for next.
        let _ready = poll(&mut look, Some(&limit));
        match ring.receive(Some(Duration::ZERO), message) {
            Ok(waits) => return Ok(Some(waits)),
            Err(RingError::TimedOut) => wait = LOOK.min(2 * wait),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

const _: () = assert!(talk::MOST < MESSAGE);
