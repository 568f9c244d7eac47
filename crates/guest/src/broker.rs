//! The guest's side: root's process that gives each program a part of the shared memory.
//!
//! A program gets the device's file, and so could map all of it: programs of one guest are one tenant, and the guest's
//! own kernel and users keep them apart, or do not. Another guest has another file.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use divvy_remote::local::handshake::{self, Heard};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::devices::labelled;
use crate::frame::{Frame, Incoming, ToGuest, ToHost, VERSION};
use crate::memory::random;

/// So many programs may be connected at once.
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

/// A program, and whether it has its part.
#[derive(Debug)]
struct Program {
    connection: u32,
    socket: OwnedFd,
    is_open: bool,
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
        let sockets = self.programs.iter().map(|program| program.socket.as_fd());
        let mut fds: Vec<PollFd<'_>> = sockets
            .chain([self.port, self.listener])
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let is_ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let count = self.programs.len();
        for index in (0..count).rev().filter(|index| is_ready[*index]) {
            self.hear_program(index)?;
        }
        if is_ready[count + 1] {
            self.accept()?;
        }
        if is_ready[count] {
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
        if self.programs.len() >= MOST {
            return Ok(());
        }
        let connection = self.next;
        self.next = self.next.wrapping_add(1);
        self.programs.push(Program {
            connection,
            socket,
            is_open: false,
        });
        tell(self.port, ToHost::Open { connection })
    }

    /// A program has said something, or has ended.
    fn hear_program(&mut self, index: usize) -> Result<(), Errno> {
        let program = &self.programs[index];
        let connection = program.connection;
        match handshake::heard(program.socket.as_fd()) {
            Ok(Some(Heard::Channel(channel))) if program.is_open => {
                tell(self.port, ToHost::Channel { connection, channel })
            }
            // It has ended, or is no program of ours.
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
                program.is_open = is_inside
                    && handshake::greet(program.socket.as_fd(), self.memory.as_fd(), Some(at)).is_ok();
                if !program.is_open {
                    // The next look finds that it has ended, and says so.
                    let _gone = rustix::net::shutdown(&program.socket, rustix::net::Shutdown::Both);
                }
            }
            ToGuest::Closed { connection } => {
                if let Some(index) = self.find(connection) {
                    // The program sees that its worker is gone.
                    self.programs.swap_remove(index);
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
