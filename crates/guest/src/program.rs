//! A program at the broker: its socket, and the thread that reads it.
//!
//! A program can send descriptors, and closing one may take as long as its maker likes (a socket with `SO_LINGER`). So a
//! thread of its own reads each socket and closes what came: only that thread waits. The broker never closes a program's
//! socket itself, for a socket's end closes what was sent to it and not read.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use divvy_remote::local::handshake::{self, Heard};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::Shutdown;

/// What a thread says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// A thread of this program uses this channel.
    Channel(u32, u32),
    /// This program has ended, or is no program of ours.
    Ended(u32),
    /// A thread has closed all that it had.
    Closed,
}

/// So many words are held. A thread with more waits.
const MOST: usize = 256;

/// What the threads say, and how they wake the broker.
#[derive(Debug)]
pub struct Words {
    wake: Arc<OwnedFd>,
    say: SyncSender<Said>,
    said: Receiver<Said>,
}

impl Words {
    /// With none yet.
    ///
    /// # Errors
    /// The system's reason.
    pub fn new() -> Result<Self, Errno> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (say, said) = sync_channel(MOST);
        Ok(Self {
            wake: Arc::new(wake),
            say,
            said,
        })
    }

    /// Readable while there are words.
    pub fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Words that have come. There may be more.
    pub fn take(&self) -> Vec<Said> {
        // Before the words: what comes later wakes again.
        let _count = rustix::io::read(&*self.wake, &mut [0_u8; 8]);
        let words: Vec<Said> = self.said.try_iter().take(MOST).collect();
        if words.len() == MOST {
            ring(&self.wake);
        }
        words
    }
}

fn ring(wake: &OwnedFd) {
    // A full counter wakes as well.
    let _written = rustix::io::write(wake, &1_u64.to_ne_bytes());
}

/// A program, and whether it has its part. Its connection ends with this.
#[derive(Debug)]
pub struct Program {
    /// The broker's number for it.
    pub connection: u32,
    /// Whether it has its part.
    pub is_open: bool,
    socket: Arc<OwnedFd>,
    /// After the socket: the thread waits for its end, and then has the socket alone.
    _held: Sender<()>,
}

impl Program {
    /// Starts to read this socket.
    ///
    /// # Errors
    /// The system's reason: there is no room for a thread.
    pub fn start(connection: u32, socket: OwnedFd, words: &Words) -> io::Result<Self> {
        let socket = Arc::new(socket);
        let (held, let_go) = channel();
        let (own, wake, say) = (Arc::clone(&socket), Arc::clone(&words.wake), words.say.clone());
        let thread = std::thread::Builder::new().name(format!("program {connection}"));
        thread.spawn(move || {
            // A broker that is gone hears nothing.
            let tell = |word| {
                let _heard = say.send(word);
                ring(&wake);
            };
            loop {
                match handshake::heard(own.as_fd()) {
                    Ok(Some(Heard::Begin)) => {}
                    Ok(Some(Heard::Channel(channel))) => tell(Said::Channel(connection, channel)),
                    _ => break,
                }
            }
            tell(Said::Ended(connection));
            let _let_go = let_go.recv();
            drop(own);
            tell(Said::Closed);
        })?;
        Ok(Self {
            connection,
            is_open: false,
            socket,
            _held: held,
        })
    }

    /// Gives it the part of this memory that begins at byte `at`.
    ///
    /// # Errors
    /// The system's reason.
    pub fn greet(&self, memory: BorrowedFd<'_>, at: u64) -> Result<(), Errno> {
        handshake::greet(self.socket.as_fd(), memory, Some(at))
    }

    /// Says no more. Its thread hears it until it ends its side.
    pub fn hang_up(&self) {
        let _gone = rustix::net::shutdown(&*self.socket, Shutdown::Write);
    }

    /// Ends its connection. Its thread says that it has ended.
    pub fn end(&self) {
        let _gone = rustix::net::shutdown(&*self.socket, Shutdown::Both);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.end();
    }
}

/// Programs that connect here cannot send descriptors, where the kernel has that (Linux 6.16). Elsewhere they can, and their
/// threads close them.
///
/// # Errors
/// The system's reason: `ENOPROTOOPT` of an older kernel.
pub fn refuse_descriptors(listener: BorrowedFd<'_>) -> Result<(), Errno> {
    /// `SO_PASSRIGHTS` of asm-generic/socket.h, which x86-64 and arm64 have.
    const PASS_RIGHTS: i32 = 83;
    let no: i32 = 0;
    // SAFETY: the descriptor is open, and the kernel reads the four bytes of `no`.
    let set = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::SOL_SOCKET,
            PASS_RIGHTS,
            (&raw const no).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    match set {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

    use super::*;

    /// What is set on the listener holds for its connections. An older kernel does not have it.
    #[test]
    fn descriptors_are_refused_by_the_kernel() {
        let folder = tempfile::tempdir().expect("a folder");
        let address = SocketAddrUnix::new(folder.path().join("socket")).expect("an address");
        let new = || {
            let kind = SocketType::SEQPACKET;
            rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a socket")
        };
        let (listener, program) = (new(), new());
        rustix::net::bind(&listener, &address).expect("bound");
        let refused = refuse_descriptors(listener.as_fd());
        rustix::net::listen(&listener, 1).expect("it listens");
        rustix::net::connect(&program, &address).expect("connected");
        let expected = match refused {
            Ok(()) => Err(Errno::PERM),
            Err(errno) => {
                assert_eq!(errno, Errno::NOPROTOOPT);
                Ok(())
            }
        };
        assert_eq!(
            handshake::greet(program.as_fd(), listener.as_fd(), None),
            expected
        );
        // Words come through.
        assert_eq!(handshake::announce(program.as_fd(), 3), Ok(()));
    }
}
