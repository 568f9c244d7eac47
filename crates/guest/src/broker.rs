//! The guest's side: root's process that gives each program a part of the shared memory.
//!
//! A program gets the device's file, and so could map all of it: programs of one guest are one tenant, and the guest's
//! own kernel and users keep them apart, or do not. Another guest has another file.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::devices::labelled;
use crate::frame::{Frame, Incoming, ToGuest, ToHost, VERSION};
use crate::memory::random;
use crate::program::{Program, Said, Words};

/// So many programs may be connected at once, the most parts that a relay has: each has a thread here. More are not
/// accepted before one of these is gone.
const MOST: usize = 256;

/// Why [`Broker::serve`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The host's side is gone, or sent what is no frame. It may come back.
    HostGone,
    /// The relay has this version, and not ours.
    OtherVersion(u32),
    /// No memory here has the relay's label, or it cannot be opened.
    NoMemory(Errno),
}

/// See the module.
#[derive(Debug)]
pub struct Broker<'a> {
    port: BorrowedFd<'a>,
    listener: BorrowedFd<'a>,
    memory: OwnedFd,
    bytes: u64,
    incoming: Incoming,
    programs: Vec<Program>,
    words: Words,
    /// Threads of programs. One whose program is gone may still close what that had sent.
    threads: usize,
    next: u32,
}

/// The answer to a broker's greeting: the relay's version, the memory's label and its length. What stands before it was
/// for an earlier broker.
fn answer_to(nonce: u64, incoming: &mut Incoming) -> Option<(u32, u64, u64)> {
    loop {
        incoming.align();
        match incoming.take() {
            Ok(Some(ToGuest::Hello {
                version,
                nonce: answered,
                label,
                bytes,
            })) if answered == nonce => return Some((version, label, bytes)),
            Ok(None) => return None,
            _ => {}
        }
    }
}

/// Says something to the host.
fn tell(port: BorrowedFd<'_>, frame: ToHost) -> Result<(), Errno> {
    let bytes = frame.encode();
    let mut left = &bytes[..];
    while !left.is_empty() {
        match rustix::io::write(port, left) {
            Ok(0) => return Err(Errno::PIPE),
            Ok(sent) => left = &left[sent..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut room = [PollFd::from_borrowed_fd(port, PollFlags::OUT)];
                poll(&mut room, None)?;
                if room[0].revents().contains(PollFlags::HUP) {
                    return Err(Errno::PIPE);
                }
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Reads what the host said. A port whose host is gone reads as nothing.
fn read(port: BorrowedFd<'_>, incoming: &mut Incoming) -> Result<(), Errno> {
    let mut bytes = [0; 4096];
    match rustix::io::read(port, &mut bytes) {
        Ok(0) => Err(Errno::PIPE),
        Ok(length) => {
            incoming.add(&bytes[..length]);
            Ok(())
        }
        Err(Errno::INTR | Errno::AGAIN) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Waits for the host to say something.
fn wait(port: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut look = [PollFd::from_borrowed_fd(port, PollFlags::IN)];
    match poll(&mut look, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

impl<'a> Broker<'a> {
    /// Greets the relay behind this port, and opens the memory that it means, which is one of these files.
    ///
    /// # Errors
    /// Why there is none to serve by.
    pub fn new(port: BorrowedFd<'a>, listener: BorrowedFd<'a>, files: &[PathBuf]) -> Result<Self, End> {
        let nonce = random();
        let hello = ToHost::Hello {
            version: VERSION,
            nonce,
        };
        tell(port, hello).map_err(|_| End::HostGone)?;
        let mut incoming = Incoming::default();
        let (version, label, bytes) = loop {
            if let Some(answer) = answer_to(nonce, &mut incoming) {
                break answer;
            }
            wait(port).map_err(|_| End::HostGone)?;
            read(port, &mut incoming).map_err(|_| End::HostGone)?;
        };
        if version != VERSION {
            return Err(End::OtherVersion(version));
        }
        Ok(Self {
            port,
            listener,
            memory: labelled(files, label, bytes).map_err(End::NoMemory)?,
            bytes,
            incoming,
            programs: Vec::new(),
            words: Words::new().map_err(End::NoMemory)?,
            threads: 0,
            next: 1,
        })
    }

    /// Serves programs until the host's side is gone. Their connections are closed then.
    pub fn serve(mut self) -> End {
        loop {
            if self.step().is_err() {
                return End::HostGone;
            }
        }
    }

    fn step(&mut self) -> Result<(), Errno> {
        let listener = (self.threads < MOST).then_some(self.listener);
        let mut fds: Vec<PollFd<'_>> = [self.port, self.words.wake()]
            .into_iter()
            .chain(listener)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let is_ready = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
        let (from_host, from_programs, connected) = (is_ready(0), is_ready(1), is_ready(2));
        if from_programs {
            for said in self.words.take() {
                self.hear_program(said)?;
            }
        }
        if connected {
            self.accept()?;
        }
        if from_host {
            read(self.port, &mut self.incoming)?;
            while let Some(frame) = self.incoming.take().map_err(|_| Errno::PROTO)? {
                self.hear_host(frame);
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<(), Errno> {
        let socket = match rustix::net::accept_with(self.listener, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::INTR | Errno::CONNABORTED | Errno::AGAIN) => return Ok(()),
            // A program that waits sees that its connection is not taken.
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                std::thread::sleep(std::time::Duration::from_millis(50));
                return Ok(());
            }
            Err(errno) => return Err(errno),
        };
        let connection = self.next;
        self.next = self.next.wrapping_add(1);
        // A program whose thread cannot be started sees that its connection is closed.
        let Ok(program) = Program::start(connection, socket, &self.words) else {
            return Ok(());
        };
        self.threads += 1;
        self.programs.push(program);
        tell(self.port, ToHost::Open { connection })
    }

    /// A program has said something, or has ended.
    fn hear_program(&mut self, said: Said) -> Result<(), Errno> {
        let (connection, channel) = match said {
            Said::Closed => {
                self.threads -= 1;
                return Ok(());
            }
            Said::Channel(connection, channel) => (connection, Some(channel)),
            Said::Ended(connection) => (connection, None),
        };
        // One that the host has closed just now is of no account.
        let Some(index) = self.find(connection) else {
            return Ok(());
        };
        match channel {
            Some(channel) if self.programs[index].is_open => {
                tell(self.port, ToHost::Channel { connection, channel })
            }
            _ => {
                self.programs.swap_remove(index);
                tell(self.port, ToHost::Close { connection })
            }
        }
    }

    fn hear_host(&mut self, frame: ToGuest) {
        match frame {
            ToGuest::Opened {
                connection,
                at,
                bytes,
            } => {
                let is_inside = at.checked_add(bytes).is_some_and(|end| end <= self.bytes);
                let Some(index) = self.find(connection) else {
                    return;
                };
                let program = &mut self.programs[index];
                program.is_open = is_inside && program.greet(self.memory.as_fd(), at).is_ok();
                if !program.is_open {
                    program.end();
                }
            }
            ToGuest::Closed { connection } => {
                let Some(index) = self.find(connection) else {
                    return;
                };
                // The program sees that its worker is gone. It still has its part, which is another's only when the
                // program's own end of the socket is closed: its thread says so, and then the host is told.
                match self.programs[index].is_open {
                    true => self.programs[index].hang_up(),
                    false => self.programs[index].end(),
                }
            }
            ToGuest::Hello { .. } => {}
        }
    }

    fn find(&self, connection: u32) -> Option<usize> {
        let mut programs = self.programs.iter();
        programs.position(|program| program.connection == connection)
    }
}
