//! The host's side: a process of the tenant's, inside the slice, that gets a worker for each program of one machine.
//!
//! It has no right but the tenant's own. What it hears from the guest only chooses among its own connections and parts.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use divvy_remote::local::handshake::{self, Said};
use divvy_remote::server::Traffic;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

use crate::frame::{Frame, Incoming, Malformed, ToGuest, ToHost, VERSION};
use crate::memory::Memory;

/// So many programs may wait for a part.
const MOST_WAITING: usize = 256;

/// Workers that are asked to end have so long, in seconds. Their process ends with its socket in any case.
const ENDING_SECONDS: i64 = 10;

/// What the relay tells its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A broker of the guest has said its version, which is ours or not.
    Guest {
        /// Its version.
        version: u32,
    },
    /// No worker serves this program: the reason.
    Refused(u32, String),
    /// A program is served.
    Opened(u32),
    /// A program has ended, and so many bytes were copied for it.
    Ended(u32, Option<Traffic>),
}

/// Why [`Relay::serve`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The machine has closed its end.
    Closed,
    /// The guest sent what is no frame.
    Malformed,
    /// What the caller waits for beside it came.
    Asked,
}

/// A program of the guest, and its worker.
#[derive(Debug)]
struct Program {
    /// The broker's number.
    connection: u32,
    /// Which part of the memory it has.
    part: u32,
    /// None once its process is gone.
    worker: Option<OwnedFd>,
    stage: Stage,
    /// The guest's program has the part, and may write there though its worker is gone.
    is_held: bool,
    /// Its end was told, or is no one's concern.
    is_told: bool,
    traffic: Option<Traffic>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The worker's greeting is to come.
    Greeting,
    /// The worker makes the region.
    Region,
    /// The program has it.
    Open,
    /// The worker is asked what it copied, and then ends.
    Ending,
}

/// The guest's end, and what the relay's caller waits for beside it.
#[derive(Clone, Copy)]
struct Ends<'a> {
    guest: BorrowedFd<'a>,
    until: Option<BorrowedFd<'a>>,
}

/// See the module.
pub struct Relay<L> {
    memory: Memory,
    worker: PathBuf,
    programs: Vec<Program>,
    waiting: VecDeque<u32>,
    /// Parts that no worker has.
    free: Vec<u32>,
    log: L,
}

impl<L: FnMut(Event)> Relay<L> {
    /// For the listener behind this socket.
    pub fn new(memory: Memory, worker: PathBuf, log: L) -> Self {
        Self {
            free: (0..memory.count()).rev().collect(),
            memory,
            worker,
            programs: Vec::new(),
            waiting: VecDeque::new(),
            log,
        }
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// How many parts have a worker.
    pub fn used(&self) -> usize {
        self.programs.len()
    }

    /// Serves one machine, until it is gone or `until` is readable. No worker of it is left then.
    ///
    /// # Errors
    /// The system's reason.
    pub fn serve(&mut self, guest: BorrowedFd<'_>, until: Option<BorrowedFd<'_>>) -> Result<End, Errno> {
        let end = self.converse(Ends { guest, until });
        self.forget_all();
        self.wait_for_workers();
        end
    }

    fn converse(&mut self, ends: Ends<'_>) -> Result<End, Errno> {
        let mut incoming = Incoming::default();
        let mut greeted = false;
        loop {
            match self.turn(ends, &mut incoming, &mut greeted) {
                Ok(None) => {}
                Ok(Some(end)) => return Ok(end),
                Err(Errno::PROTO) => return Ok(End::Malformed),
                Err(Errno::CANCELED) => return Ok(End::Asked),
                Err(Errno::PIPE | Errno::CONNRESET) => return Ok(End::Closed),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Waits, and answers all that came.
    fn turn(
        &mut self,
        ends: Ends<'_>,
        incoming: &mut Incoming,
        greeted: &mut bool,
    ) -> Result<Option<End>, Errno> {
        let (from_guest, asked, ready) = self.wait(ends)?;
        // From the last on: one that ends is replaced by one that was heard.
        for index in ready.into_iter().rev() {
            self.hear_worker(ends, index)?;
        }
        self.open_waiting(ends)?;
        if asked {
            return Ok(Some(End::Asked));
        }
        if !from_guest {
            return Ok(None);
        }
        let mut bytes = [0; 4096];
        match rustix::io::read(ends.guest, &mut bytes) {
            Ok(0) => return Ok(Some(End::Closed)),
            Ok(length) => incoming.add(&bytes[..length]),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(errno),
        }
        while let Some(frame) = incoming.take().map_err(|Malformed| Errno::PROTO)? {
            self.hear_guest(ends, frame, greeted)?;
        }
        Ok(None)
    }

    /// Waits. Whether the guest has said something, whether `until` is readable, and which workers have something.
    fn wait(&self, ends: Ends<'_>) -> Result<(bool, bool, Vec<usize>), Errno> {
        let programs = self.programs.iter().enumerate();
        let (indices, workers): (Vec<usize>, Vec<BorrowedFd<'_>>) = programs
            .filter_map(|(index, program)| Some((index, program.worker.as_ref()?.as_fd())))
            .unzip();
        let mut fds: Vec<PollFd<'_>> = workers
            .into_iter()
            .chain([ends.guest])
            .chain(ends.until)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let is_ready = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
        let count = indices.len();
        let ready = (0..count).filter(|at| is_ready(*at)).map(|at| indices[at]);
        let ready = ready.collect();
        Ok((is_ready(count), is_ready(count + 1), ready))
    }

    fn hear_guest(&mut self, ends: Ends<'_>, frame: ToHost, greeted: &mut bool) -> Result<(), Errno> {
        match frame {
            ToHost::Hello { version, nonce } => {
                // Another broker: that of a guest that has started again, perhaps.
                self.forget_all();
                *greeted = version == VERSION;
                (self.log)(Event::Guest { version });
                // The broker finds the memory by it.
                self.memory.mark()?;
                let answer = ToGuest::Hello {
                    version: VERSION,
                    nonce,
                    label: self.memory.label(),
                    bytes: self.memory.bytes(),
                };
                tell(ends, answer)
            }
            // Nothing of another version means anything here.
            _ if !*greeted => Ok(()),
            ToHost::Open { connection } => {
                if self.waiting.contains(&connection) || self.find(connection).is_some() {
                    return Err(Errno::PROTO);
                }
                if self.waiting.len() >= MOST_WAITING {
                    return tell(ends, ToGuest::Closed { connection });
                }
                self.waiting.push_back(connection);
                self.open_waiting(ends)
            }
            ToHost::Channel { connection, channel } => {
                // One that its worker has left just now is of no account.
                let Some(index) = self.find(connection) else {
                    return Ok(());
                };
                let program = &self.programs[index];
                if program.stage != Stage::Open {
                    return Err(Errno::PROTO);
                }
                let worker = program.worker.as_ref();
                // A worker that takes no more messages is no worker.
                if worker.is_none_or(|worker| handshake::announce(worker.as_fd(), channel).is_err()) {
                    self.end(index);
                    return tell(ends, ToGuest::Closed { connection });
                }
                Ok(())
            }
            ToHost::Close { connection } => {
                self.waiting.retain(|waiting| *waiting != connection);
                if let Some(index) = self.find(connection) {
                    self.end(index);
                }
                let mut programs = self.programs.iter();
                let held = programs.position(|program| program.is_held && program.connection == connection);
                if let Some(index) = held {
                    self.programs[index].is_held = false;
                    self.reap_if_over(index);
                }
                self.open_waiting(ends)
            }
        }
    }

    fn find(&self, connection: u32) -> Option<usize> {
        let mut programs = self.programs.iter();
        programs.position(|program| program.connection == connection && program.stage != Stage::Ending)
    }

    /// Gets workers for programs that wait, as far as there are parts.
    fn open_waiting(&mut self, ends: Ends<'_>) -> Result<(), Errno> {
        while !self.waiting.is_empty()
            && let Some(part) = self.free.pop()
        {
            let Some(connection) = self.waiting.pop_front() else {
                return Ok(());
            };
            match self.connect() {
                Ok(worker) => self.programs.push(Program {
                    connection,
                    part,
                    worker: Some(worker),
                    stage: Stage::Greeting,
                    is_held: false,
                    is_told: false,
                    traffic: None,
                }),
                Err(errno) => {
                    self.free.push(part);
                    (self.log)(Event::Refused(connection, errno.to_string()));
                    tell(ends, ToGuest::Closed { connection })?;
                }
            }
        }
        Ok(())
    }

    fn connect(&self) -> Result<OwnedFd, Errno> {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(&self.worker)?)?;
        handshake::begin(socket.as_fd())?;
        Ok(socket)
    }

    /// A worker has said something, or has ended.
    fn hear_worker(&mut self, ends: Ends<'_>, index: usize) -> Result<(), Errno> {
        let program = &mut self.programs[index];
        let part = self.memory.part(program.part);
        let Some(worker) = &program.worker else {
            return Ok(());
        };
        let worker = worker.as_fd();
        let went_on = match program.stage {
            // Its own region is not used, and goes with its descriptor.
            Stage::Greeting => handshake::greeted(worker)
                .and_then(|_| handshake::bring(worker, self.memory.file(), part))
                .map(|()| program.stage = Stage::Region),
            Stage::Region => match handshake::said(worker) {
                Ok(Some(Said::Agreed)) => {
                    program.stage = Stage::Open;
                    program.is_held = true;
                    let connection = program.connection;
                    (self.log)(Event::Opened(connection));
                    return tell(
                        ends,
                        ToGuest::Opened {
                            connection,
                            at: part.at,
                            bytes: part.bytes,
                        },
                    );
                }
                _ => Err(Errno::PROTO),
            },
            Stage::Open | Stage::Ending => match handshake::said(worker) {
                Ok(Some(Said::Traffic(traffic))) if program.stage == Stage::Ending => {
                    program.traffic = Some(traffic);
                    let _gone = rustix::net::shutdown(worker, Shutdown::Write);
                    Ok(())
                }
                _ => Err(Errno::PROTO),
            },
        };
        if went_on.is_err() {
            self.worker_ended(ends, index)?;
        }
        Ok(())
    }

    /// Asks a worker what it copied, after which it ends.
    fn end(&mut self, index: usize) {
        let program = &mut self.programs[index];
        let early = matches!(program.stage, Stage::Greeting | Stage::Region);
        if program.stage == Stage::Ending {
            return;
        }
        program.stage = Stage::Ending;
        let Some(worker) = &program.worker else { return };
        if early || handshake::ask(worker.as_fd()).is_err() {
            let _gone = rustix::net::shutdown(worker, Shutdown::Write);
        }
    }

    /// A worker has ended, or said what is no word of a worker's. Its use of the part is over when its process is, which
    /// the end of its socket tells.
    fn worker_ended(&mut self, ends: Ends<'_>, index: usize) -> Result<(), Errno> {
        let program = &mut self.programs[index];
        let connection = program.connection;
        let before = std::mem::replace(&mut program.stage, Stage::Ending);
        if before != Stage::Ending {
            program.is_told = true;
            (self.log)(match before {
                Stage::Open => Event::Ended(connection, None),
                _ => Event::Refused(connection, "its worker ended before it was served".to_owned()),
            });
        }
        match &program.worker {
            Some(worker) if handshake::is_open(worker) => {
                let _asked = rustix::net::shutdown(worker, Shutdown::Write);
            }
            _ => {
                program.worker = None;
                self.reap_if_over(index);
            }
        }
        match before {
            Stage::Ending => Ok(()),
            _ => tell(ends, ToGuest::Closed { connection }),
        }
    }

    /// Another one may have the part once the worker's process is gone and the guest's program has let go of it.
    fn reap_if_over(&mut self, index: usize) {
        let program = &self.programs[index];
        if program.worker.is_some() || program.is_held {
            return;
        }
        let program = self.programs.swap_remove(index);
        if self.memory.clear(program.part).is_ok() {
            self.free.push(program.part);
        }
        if !program.is_told {
            (self.log)(Event::Ended(program.connection, program.traffic));
        }
    }

    /// The guest has forgotten all its programs.
    fn forget_all(&mut self) {
        self.waiting.clear();
        for index in (0..self.programs.len()).rev() {
            let program = &mut self.programs[index];
            program.is_held = false;
            program.is_told |= matches!(program.stage, Stage::Greeting | Stage::Region);
            self.end(index);
            self.reap_if_over(index);
        }
    }

    /// Waits until the workers' processes have ended.
    fn wait_for_workers(&mut self) {
        while !self.programs.is_empty() {
            let workers = self.programs.iter().filter_map(|program| program.worker.as_ref());
            let mut fds: Vec<PollFd<'_>> = workers
                .map(|worker| PollFd::from_borrowed_fd(worker.as_fd(), PollFlags::IN))
                .collect();
            let limit = Timespec {
                tv_sec: ENDING_SECONDS,
                tv_nsec: 0,
            };
            match poll(&mut fds, Some(&limit)) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => break,
            }
            for index in (0..self.programs.len()).rev() {
                let program = &mut self.programs[index];
                let Some(worker) = program.worker.as_ref().filter(|worker| is_readable(worker)) else {
                    continue;
                };
                // A word that was under way is read, and then its end.
                match handshake::said(worker.as_fd()) {
                    Ok(Some(said)) => {
                        if let Said::Traffic(traffic) = said {
                            program.traffic = Some(traffic);
                        }
                        let _gone = rustix::net::shutdown(worker, Shutdown::Write);
                    }
                    _ if handshake::is_open(worker) => {
                        let _asked = rustix::net::shutdown(worker, Shutdown::Write);
                    }
                    _ => {
                        program.worker = None;
                        self.reap_if_over(index);
                    }
                }
            }
        }
        // Those that have not ended have lost their parts for good.
        self.programs.clear();
    }
}

/// Whether a read returns at once.
fn is_readable(socket: &OwnedFd) -> bool {
    let mut look = [PollFd::new(socket, PollFlags::IN)];
    matches!(poll(&mut look, Some(&Timespec::default())), Ok(1..))
}

/// Says something to the guest. While the guest takes nothing the relay waits: it serves no other. A guest may be suspended
/// for days, so the wait ends with the guest, or with what the relay's caller waits for.
///
/// # Errors
/// `ECANCELED` where the caller's end came first; the system's reason.
fn tell(ends: Ends<'_>, frame: ToGuest) -> Result<(), Errno> {
    let bytes = frame.encode();
    let mut left = &bytes[..];
    while !left.is_empty() {
        // A socket that blocks would keep the relay in the call.
        match rustix::net::send(ends.guest, left, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) => left = &left[sent..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_for_room(ends)?,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn wait_for_room(ends: Ends<'_>) -> Result<(), Errno> {
    let guest = PollFd::from_borrowed_fd(ends.guest, PollFlags::OUT);
    let until = ends
        .until
        .map(|until| PollFd::from_borrowed_fd(until, PollFlags::IN));
    let mut look: Vec<PollFd<'_>> = [Some(guest), until].into_iter().flatten().collect();
    match poll(&mut look, None) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno),
    }
    match look.get(1) {
        Some(until) if !until.revents().is_empty() => Err(Errno::CANCELED),
        _ => Ok(()),
    }
}
