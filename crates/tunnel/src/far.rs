//! The server's relay: it takes connections of clients, and carries their messages to workers on this host.
//!
//! It has no device. What it may do is what its user may do with the agent. A client is served once it has shown a
//! certificate of the authority that counts; until then it gets a thread, ten seconds and no answer, and its host has so many of
//! these at once.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use divvy_model::{Code, Fault};
use divvy_remote::stream::Frames;
use divvy_remote::wire::{Header, Sort};
use divvy_remote::{Connector, LocalConnector, Transport};
use rustls::pki_types::CertificateDer;
use rustls::{ServerConfig, ServerConnection};

use crate::allowance::Allowance;
use crate::certificate::Authority;
use crate::newcomers::{Newcomer, Newcomers};
use crate::talk::{Answer, Ask, Greeting, Wanted, Word, hear, say};
use crate::tls::{self, GONE, Tls};
use crate::{MESSAGE, talk};

/// Connections of invited clients at once: each has a thread.
const MOST_CONNECTIONS: usize = 1024;
/// Connections of one client at once, of all its slices.
const MOST_OF_CLIENT: usize = 256;
/// Slices of one client at once.
const MOST_SLICES: usize = 16;
/// So many numbers of programs that ended are kept one by one.
const MOST_ENDED: usize = 4096;
/// Programs of one slice.
const MOST_OF_SESSION: usize = 256;
/// Calls of one thread that may be under way. Programs post four.
const MOST_UNDER_WAY: usize = 8;
/// How often a client that waits for its slice hears so.
const WAITING: Duration = Duration::from_secs(2);

type Network = Tls<ServerConnection>;

/// What the relay asks of the host it runs on.
pub trait Host: Send + Sync + 'static {
    /// The devices, as `divvy devices -o json` gives them.
    ///
    /// # Errors
    /// What stopped it. The client is told.
    fn devices(&self) -> Result<serde_json::Value, Fault>;

    /// A slice for a client, whose slices have no more than `allowance` together: as it is when it is asked, since a
    /// client that waits may be invited again. `goes_on` says whether the client still waits for it.
    ///
    /// # Errors
    /// Why there is none. The client is told.
    fn open(
        &self,
        client: &str,
        allowance: &(dyn Fn() -> Result<Allowance, Fault> + Sync),
        wanted: &Wanted,
        goes_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<Box<dyn Slot>, Fault>;

    /// Tells the administrator.
    fn log(&self, text: &str);
}

/// A slice on this host. It goes when this is dropped.
pub trait Slot: Send + Sync {
    /// A connection to a worker of its own.
    ///
    /// # Errors
    /// The slice has gone, or has no worker left.
    fn connect(&self) -> Result<OwnedFd, Fault>;
}

struct Relay {
    config: Arc<ServerConfig>,
    authority: Authority,
    host: Box<dyn Host>,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    newcomers: Arc<Newcomers>,
    /// It was said that a connection was closed for want of a place.
    is_full_told: AtomicBool,
    clients: Mutex<HashMap<String, usize>>,
    slices: Mutex<HashMap<String, usize>>,
}

/// A client's slice.
struct Session {
    client: String,
    /// What opened it: the slice's threads show the same one, also once the client was invited again.
    certificate: CertificateDer<'static>,
    slot: Box<dyn Slot>,
    programs: Mutex<Programs>,
    ended: AtomicBool,
}

/// The programs of a slice by their numbers, which a client counts upwards.
#[derive(Default)]
struct Programs {
    live: HashMap<u64, Arc<Program>>,
    ended: BTreeSet<u64>,
    /// Up to this number no new program begins.
    floor: u64,
}

impl Programs {
    /// A thread that comes after its program's end gets no new worker.
    fn end(&mut self, number: u64) -> Option<Arc<Program>> {
        self.ended.insert(number);
        if self.ended.len() > MOST_ENDED
            && let Some(lowest) = self.ended.pop_first()
        {
            self.floor = self.floor.max(lowest);
        }
        self.live.remove(&number)
    }

    fn has_ended(&self, number: u64) -> bool {
        self.ended.contains(&number) || (number <= self.floor && !self.live.contains_key(&number))
    }
}

/// A program of the client's, and its worker.
struct Program {
    connector: LocalConnector,
    /// The worker's socket. A worker ends when it is closed.
    worker: OwnedFd,
    connections: Mutex<Vec<TcpStream>>,
    ended: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Program {
    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        let _closed = rustix::net::shutdown(&self.worker, rustix::net::Shutdown::Both);
        for connection in lock(&self.connections).drain(..) {
            let _closed = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Session {
    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        for (_, program) in lock(&self.programs).live.drain() {
            program.end();
        }
    }

    /// The program of this number, which gets a worker with its first thread.
    fn program(&self, number: u64) -> Result<Arc<Program>, Fault> {
        let mut programs = lock(&self.programs);
        let refused = |text: &str| Fault::new(Code::Busy, text.to_owned());
        if self.ended.load(Ordering::Acquire) {
            return Err(refused("the slice has ended"));
        }
        if programs.has_ended(number) {
            return Err(refused("the program has ended"));
        }
        if let Some(program) = programs.live.get(&number) {
            return Ok(Arc::clone(program));
        }
        if programs.live.len() >= MOST_OF_SESSION {
            return Err(refused("the slice has too many programs"));
        }
        let socket = self.slot.connect()?;
        let gone =
            |error: &dyn std::error::Error| Fault::new(Code::Internal, "no worker started").because(error);
        let worker = socket.try_clone().map_err(|error| gone(&error))?;
        let program = Arc::new(Program {
            connector: LocalConnector::over(socket).map_err(|error| gone(&error))?,
            worker,
            connections: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        programs.live.insert(number, Arc::clone(&program));
        Ok(program)
    }
}

/// Serves clients that connect to this listener, for ever.
///
/// # Errors
/// No connection can be taken any more.
pub fn serve(
    listener: &TcpListener,
    config: Arc<ServerConfig>,
    authority: Authority,
    host: Box<dyn Host>,
) -> io::Result<()> {
    let relay = Arc::new(Relay {
        config,
        authority,
        host,
        sessions: Mutex::default(),
        newcomers: Arc::default(),
        is_full_told: AtomicBool::new(false),
        clients: Mutex::default(),
        slices: Mutex::default(),
    });
    loop {
        let (socket, peer) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if is_fatal(&error) => return Err(error),
            // Too many files, or a client that has already gone.
            Err(_) => {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        let Some(newcomer) = relay.newcomers.take(peer.ip()) else {
            // Once: anyone who reaches the port makes this as often as they want.
            if !relay.is_full_told.swap(true, Ordering::Relaxed) {
                relay.host.log(&format!(
                    "{peer}: closed, since too many connections have shown no certificate yet. No more is said of such"
                ));
            }
            continue;
        };
        let serving = Arc::clone(&relay);
        // Without a thread the connection ends.
        let _started = std::thread::Builder::new()
            .name("connection".into())
            .spawn(move || {
                if let Err(error) = serving.connection(socket, newcomer) {
                    serving.host.log(&format!("{peer}: {error}"));
                }
            });
    }
}

fn is_fatal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
    )
}

/// One of a client's connections, or of its slices, in their counts by the clients' names.
struct PlaceOf<'a> {
    counts: &'a Mutex<HashMap<String, usize>>,
    client: String,
}

impl<'a> PlaceOf<'a> {
    /// None where this client, or all of them together, have as many as they may.
    fn take(
        counts: &'a Mutex<HashMap<String, usize>>,
        client: &str,
        most: usize,
        most_of_all: usize,
    ) -> Option<Self> {
        let mut held = lock(counts);
        let own = held.get(client).copied().unwrap_or(0);
        if own >= most || held.values().sum::<usize>() >= most_of_all {
            return None;
        }
        held.insert(client.to_owned(), own + 1);
        drop(held);
        Some(Self {
            counts,
            client: client.to_owned(),
        })
    }
}

impl Drop for PlaceOf<'_> {
    fn drop(&mut self) {
        let mut held = lock(self.counts);
        if let Some(own) = held.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                held.remove(&self.client);
            }
        }
    }
}

fn refused(fault: Fault) -> Answer {
    Answer::Refused { fault }
}

impl Relay {
    fn connection(&self, socket: TcpStream, newcomer: Newcomer) -> io::Result<()> {
        let tls = tls::accepted(socket, Arc::clone(&self.config))?;
        let certificate = tls
            .client_certificate()
            .map(|certificate| certificate.clone().into_owned());
        let mut frames = Frames::new(tls, talk::MOST);
        say(&mut frames, &Greeting::ours())?;
        let wanted: Ask = hear(&mut frames)?;
        let shown =
            certificate.and_then(|certificate| Some((self.client(&certificate, &wanted)?, certificate)));
        let Some((client, certificate)) = shown else {
            let fault = Fault::new(
                Code::RemoteIdentity,
                "the server has forgotten this host's invitation, or has made a newer one",
            )
            .hint("have this host invited again: `divvy remote invite NAME` on the GPU's host");
            say(&mut frames, &refused(fault))?;
            return Err(io::Error::other("a certificate that counts no more"));
        };
        let Some(_place) = PlaceOf::take(&self.clients, &client, MOST_OF_CLIENT, MOST_CONNECTIONS) else {
            let fault = Fault::new(Code::Busy, "the server has too many connections of this host");
            return say(&mut frames, &refused(fault));
        };
        drop(newcomer);
        frames.stream().made()?;
        match wanted {
            Ask::Devices => {
                let answer = match self.host.devices() {
                    Ok(devices) => Answer::Devices { devices },
                    Err(fault) => refused(fault),
                };
                say(&mut frames, &answer)
            }
            Ask::Open(wanted) => self.open(frames, client, certificate, wanted),
            Ask::Thread { session, program } => self.thread(frames, &certificate, &session, program),
        }
    }

    /// The client that shows this certificate, if it counts for what is asked. A slice outlives the certificate that opened
    /// it: a newer one of that client's, which has a place still, ends no program.
    fn client(&self, certificate: &CertificateDer<'_>, wanted: &Ask) -> Option<String> {
        if let Ask::Thread { session, .. } = wanted
            && let Some(session) = self.session(session, certificate)
        {
            return (self.authority.is_invited(&session.client)).then(|| session.client.clone());
        }
        self.authority.client(certificate)
    }

    /// The slice of this name, if this certificate opened it.
    fn session(&self, name: &str, certificate: &CertificateDer<'_>) -> Option<Arc<Session>> {
        let session = lock(&self.sessions).get(name).map(Arc::clone);
        session.filter(|session| session.certificate == *certificate)
    }

    /// Makes a slice, and keeps it as long as the connection lasts.
    fn open(
        &self,
        mut frames: Frames<Network>,
        client: String,
        certificate: CertificateDer<'static>,
        wanted: Wanted,
    ) -> io::Result<()> {
        let Some(_place) = PlaceOf::take(&self.slices, &client, MOST_SLICES, MOST_CONNECTIONS) else {
            let fault = Fault::new(
                Code::Busy,
                format!("this host has {MOST_SLICES} slices of the server, and gets no more"),
            )
            .hint("end a program that has one");
            return say(&mut frames, &refused(fault));
        };
        let slot = match self.slot(&mut frames, &client, &wanted)? {
            Ok(slot) => slot,
            Err(fault) => return say(&mut frames, &refused(fault)),
        };
        let session = Arc::new(Session {
            client,
            certificate,
            slot,
            programs: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let name = random()?;
        lock(&self.sessions).insert(name.clone(), Arc::clone(&session));
        let kept = keep(&mut frames, &name, &session);
        lock(&self.sessions).remove(&name);
        session.end();
        match kept {
            // The usual end.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            kept => kept,
        }
    }

    /// Waits for the slice, and tells the client meanwhile that it does.
    fn slot(
        &self,
        frames: &mut Frames<Network>,
        client: &str,
        wanted: &Wanted,
    ) -> io::Result<Result<Box<dyn Slot>, Fault>> {
        let goes_on = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let (made, slot) = sync_channel(1);
            let goes_on = &goes_on;
            scope.spawn(move || {
                let allowance = || self.authority.allowance(client);
                let opened = self
                    .host
                    .open(client, &allowance, wanted, &|| goes_on.load(Ordering::Acquire));
                let _unheard = made.send(opened);
            });
            loop {
                match slot.recv_timeout(WAITING) {
                    Ok(slot) => return Ok(slot),
                    Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("no slice was made")),
                    Err(RecvTimeoutError::Timeout) => {}
                }
                // A client says nothing now: what can be read is its end.
                if frames.has_more() || say(frames, &Answer::Waiting).is_err() {
                    goes_on.store(false, Ordering::Release);
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        })
    }

    /// Carries the messages of one thread of a program.
    fn thread(
        &self,
        mut frames: Frames<Network>,
        certificate: &CertificateDer<'_>,
        session: &str,
        number: u64,
    ) -> io::Result<()> {
        let Some(session) = self.session(session, certificate) else {
            let fault = Fault::new(Code::UnknownSlice, "the slice has ended");
            return say(&mut frames, &refused(fault));
        };
        let program = match session.program(number) {
            Ok(program) => program,
            Err(fault) => {
                self.host.log(&format!("{}: {fault}", session.client));
                return say(&mut frames, &refused(fault));
            }
        };
        let closer = frames.stream().socket().try_clone()?;
        {
            let mut connections = lock(&program.connections);
            connections.retain(|connection| connection.peer_addr().is_ok());
            if program.ended.load(Ordering::Acquire) {
                return Ok(());
            }
            connections.push(closer);
        }
        let opened = program.connector.open(0);
        let Ok(mut worker) = opened else {
            let fault = Fault::new(Code::Busy, "the worker takes no more threads");
            let said = say(&mut frames, &refused(fault));
            let _closed = frames.stream().socket().shutdown(Shutdown::Both);
            return said;
        };
        let capacity = worker.capacity().min(MESSAGE);
        let ready = Answer::Thread {
            capacity: capacity as u32,
        };
        say(&mut frames, &ready)?;
        frames.set_most(capacity);
        frames.stream().carries()?;
        let carried = carry(&mut frames, worker.as_mut());
        let _closed = frames.stream().socket().shutdown(Shutdown::Both);
        match carried {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(error),
            // A thread, a program, a worker or the network has ended.
            _ => Ok(()),
        }
    }
}

/// Answers the client's heartbeat, until it ends.
fn keep(frames: &mut Frames<Network>, name: &str, session: &Session) -> io::Result<()> {
    frames.stream().socket().set_read_timeout(Some(GONE))?;
    let ready = Answer::Ready {
        session: name.to_owned(),
    };
    say(frames, &ready)?;
    loop {
        if let Word::End { program } = hear(frames)? {
            let ended = lock(&session.programs).end(program);
            if let Some(program) = ended {
                program.end();
            }
        }
        say(frames, &Word::Beat)?;
    }
}

/// Carries messages to a worker and answers back. While the worker is at one call, the next ones come in.
fn carry(frames: &mut Frames<Network>, worker: &mut dyn Transport) -> io::Result<()> {
    let lost = |_| io::Error::from(io::ErrorKind::BrokenPipe);
    let (mut message, mut answer) = (Vec::new(), Vec::new());
    let mut under_way = 0;
    loop {
        if under_way == 0 || (under_way < MOST_UNDER_WAY && frames.has_more()) {
            frames.take(&mut message)?;
            let (header, _) = Header::read(&message).map_err(|_| io::ErrorKind::InvalidData)?;
            match header.sort {
                Sort::Submit => worker.submit(&message).map_err(lost)?,
                Sort::Call | Sort::Hello => {
                    worker.post(&message).map_err(lost)?;
                    under_way += 1;
                }
                Sort::Answer => return Err(io::ErrorKind::InvalidData.into()),
            }
            continue;
        }
        worker.take(&mut answer).map_err(lost)?;
        under_way -= 1;
        frames.put(&answer)?;
        frames.flush()?;
    }
}

/// A name that cannot be guessed.
fn random() -> io::Result<String> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_so_many_places_and_another_one_has_its_own() {
        let counts = Mutex::default();
        let take = |client| PlaceOf::take(&counts, client, 2, 4);
        let first = take("a");
        let second = take("a");
        assert!(first.is_some() && second.is_some() && take("a").is_none());
        assert!(take("b").is_some());
        drop(first);
        assert!(take("a").is_some());
        drop(second);
        assert!(lock(&counts).is_empty());
    }

    #[test]
    fn a_program_that_has_ended_does_not_begin_again() {
        let mut programs = Programs::default();
        let most = MOST_ENDED as u64;
        for number in 1..=most + 1 {
            assert!(!programs.has_ended(number));
            assert!(programs.end(number).is_none());
        }
        assert_eq!(programs.ended.len(), MOST_ENDED);
        assert!((1..=most + 1).all(|number| programs.has_ended(number)));
        assert!(!programs.has_ended(most + 2));
    }
}
