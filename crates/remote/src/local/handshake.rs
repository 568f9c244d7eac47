//! What goes over the socket between a program and its worker.
//!
//! The program says that it begins: only then a worker is started for it. The worker greets with the region's descriptor.
//! Then the program says the number of each channel that it uses. What
//! stands between a virtual machine and the worker says two things more: it brings memory in the place of the worker's,
//! before any channel, and it asks how many bytes were copied.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::server::Traffic;

/// The first bytes of a greeting, and the version of this handshake.
const GREETING: [u8; 12] = *b"divvywrk\x02\0\0\0";
/// What stands in a greeting's place where as many programs have a worker as may have one.
const FULL: [u8; 4] = *b"full";
/// The program's first word: it has a call to make.
const BEGIN: u8 = b'!';
/// The question for [`Traffic`].
const ASK: u8 = b'?';

/// A part of a memory file, which a region is to lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where it begins, in bytes: a multiple of a page.
    pub at: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// So many bytes of it may be pinned.
    pub pinned: u64,
}

/// What a worker hears.
#[derive(Debug)]
pub enum Heard {
    /// The program's first word, where no listener has taken it.
    Begin,
    /// A thread of the program uses this channel.
    Channel(u32),
    /// The region is to lie in this part of this memory file.
    Memory(OwnedFd, Part),
    /// How many bytes were copied, by which path?
    Ask,
}

/// A message with the bytes that came, and the first descriptor.
struct Received<const N: usize> {
    bytes: [u8; N],
    length: usize,
    descriptor: Option<OwnedFd>,
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    send_with(socket, bytes, descriptor.as_slice())
}

/// Room for more descriptors than any message has: tests send too many.
const MOST_SENT: usize = 9;

fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SENT))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::NOBUFS);
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// None once the other side has closed the socket. More bytes than `N`, or more descriptors than one, are `EPROTO`.
fn receive<const N: usize>(socket: BorrowedFd<'_>) -> Result<Option<Received<N>>, Errno> {
    let mut bytes = [0; N];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut into = [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = part {
            descriptors.extend(fds);
        }
    }
    // Padding has room for a second one; what has no room is closed by the kernel.
    if received
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        || descriptors.len() > 1
    {
        return Err(Errno::PROTO);
    }
    let descriptor = descriptors.pop();
    let length = received.bytes;
    Ok((length != 0).then_some(Received {
        bytes,
        length,
        descriptor,
    }))
}

fn number(bytes: &[u8]) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(number)
}

/// Says that the program has a call to make. Does not wait: the word has room in a new socket.
///
/// # Errors
/// The system's reason.
pub fn begin(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::net::send(socket, &[BEGIN], SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(drop)
}

/// Whether this message is [`begin`]'s.
#[must_use]
pub fn is_begin(message: &[u8]) -> bool {
    message == [BEGIN]
}

/// What a program that connected has said so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// Nothing.
    Silent,
    /// [`begin`].
    Begun,
    /// Something else, or it has closed its socket.
    Other,
}

/// The first word of a program, for a listener that waits for many of them. Takes the word from the socket, and does not wait.
#[must_use]
pub fn first(socket: BorrowedFd<'_>) -> First {
    // One byte more than the word has: a longer message shows by it.
    let mut word = [0; 2];
    loop {
        return match rustix::net::recv(socket, &mut word[..], RecvFlags::DONTWAIT) {
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => First::Silent,
            Ok((length, _)) if is_begin(&word[..length]) && is_open(socket) => First::Begun,
            _ => First::Other,
        };
    }
}

/// Whether this message is [`refuse`]'s.
#[must_use]
pub fn is_refusal(message: &[u8]) -> bool {
    message == FULL
}

/// Tells a program that no more programs are served.
///
/// # Errors
/// The system's reason.
pub fn refuse(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::net::send(socket, &FULL, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(drop)
}

/// Greets a program, and gives it the region: a file of its own, or what begins at byte `at` of a file.
///
/// # Errors
/// The system's reason.
pub fn greet(socket: BorrowedFd<'_>, region: BorrowedFd<'_>, at: Option<u64>) -> Result<(), Errno> {
    let mut greeting = GREETING.to_vec();
    greeting.extend(at.map(u64::to_le_bytes).into_iter().flatten());
    send(socket, &greeting, Some(region))
}

/// Takes the region from a worker's greeting, and where it begins if it is a part of the file.
///
/// # Errors
/// `EBUSY` where no more programs are served; `EPROTO` for what is no greeting of this version; else the system's reason, as
/// where none came in time.
pub fn greeted(socket: BorrowedFd<'_>) -> Result<(OwnedFd, Option<u64>), Errno> {
    let received = receive::<20>(socket)?.ok_or(Errno::PROTO)?;
    let at = match received.length {
        length if is_refusal(&received.bytes[..length]) => return Err(Errno::BUSY),
        12 => None,
        20 => Some(number(&received.bytes[12..])),
        _ => return Err(Errno::PROTO),
    };
    match received.descriptor {
        Some(region) if received.bytes.starts_with(&GREETING) => Ok((region, at)),
        _ => Err(Errno::PROTO),
    }
}

/// Tells the worker that a thread uses a channel. Does not wait: a worker that takes no messages is no worker.
///
/// # Errors
/// The system's reason.
pub fn announce(socket: BorrowedFd<'_>, channel: u32) -> Result<(), Errno> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::send(socket, &channel.to_le_bytes(), flags).map(drop)
}

/// Gives the worker memory for the region, which it makes there. It answers by [`agree`].
///
/// # Errors
/// The system's reason.
pub fn bring(socket: BorrowedFd<'_>, memory: BorrowedFd<'_>, part: Part) -> Result<(), Errno> {
    let words = [part.at, part.bytes, part.pinned].map(u64::to_le_bytes);
    send(socket, words.as_flattened(), Some(memory))
}

/// Tells the other side that the region lies in its memory.
///
/// # Errors
/// The system's reason.
pub fn agree(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    send(socket, &GREETING, None)
}

/// Asks the worker how many bytes were copied. It answers by [`report`]. Does not wait.
///
/// # Errors
/// The system's reason.
pub fn ask(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::net::send(socket, &[ASK], SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(drop)
}

/// Answers [`ask`].
///
/// # Errors
/// The system's reason.
pub fn report(socket: BorrowedFd<'_>, traffic: Traffic) -> Result<(), Errno> {
    let words = [traffic.inline, traffic.staged, traffic.shared, traffic.bypass].map(u64::to_le_bytes);
    send(socket, words.as_flattened(), None)
}

/// What a worker says after its greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// [`agree`].
    Agreed,
    /// [`report`].
    Traffic(Traffic),
}

/// The worker's next word after its greeting; None once it has closed the socket.
///
/// # Errors
/// `EPROTO` for what is none; else the system's reason.
pub fn said(socket: BorrowedFd<'_>) -> Result<Option<Said>, Errno> {
    let Some(received) = receive::<32>(socket)? else {
        return Ok(None);
    };
    let word = |at: usize| number(&received.bytes[8 * at..]);
    match received.length {
        12 if received.bytes.starts_with(&GREETING) => Ok(Some(Said::Agreed)),
        32 => Ok(Some(Said::Traffic(Traffic {
            inline: word(0),
            staged: word(1),
            shared: word(2),
            bypass: word(3),
        }))),
        _ => Err(Errno::PROTO),
    }
}

/// The next word of the program's side; None once it has closed the socket.
///
/// # Errors
/// `EPROTO` for what is none; else the system's reason.
pub fn heard(socket: BorrowedFd<'_>) -> Result<Option<Heard>, Errno> {
    let Some(received) = receive::<24>(socket)? else {
        return Ok(None);
    };
    let bytes = received.bytes;
    match (received.length, received.descriptor) {
        (1, None) if bytes[0] == ASK => Ok(Some(Heard::Ask)),
        (1, None) if bytes[0] == BEGIN => Ok(Some(Heard::Begin)),
        (4, None) => Ok(Some(Heard::Channel(u32::from_le_bytes([
            bytes[0], bytes[1], bytes[2], bytes[3],
        ])))),
        (24, Some(memory)) => {
            let part = Part {
                at: number(&bytes),
                bytes: number(&bytes[8..]),
                pinned: number(&bytes[16..]),
            };
            Ok(Some(Heard::Memory(memory, part)))
        }
        _ => Err(Errno::PROTO),
    }
}

/// Whether the other side has the socket open.
pub fn is_open(socket: impl AsFd) -> bool {
    let mut look = [PollFd::new(&socket, PollFlags::RDHUP)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match poll(&mut look, Some(&now)) {
        Ok(_) => !look[0]
            .revents()
            .intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR),
        // No memory for a look is no sign of death.
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let kind = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        socketpair(AddressFamily::UNIX, kind.0, kind.1, None).expect("a pair")
    }

    #[test]
    fn each_word_comes_as_it_was_said() {
        let (program, worker) = pair();
        let (program, worker) = (program.as_fd(), worker.as_fd());
        let file = std::fs::File::open("/dev/null").expect("a file");
        for at in [None, Some(1 << 40)] {
            greet(worker, file.as_fd(), at).expect("sent");
            assert_eq!(greeted(program).expect("a greeting").1, at);
        }
        let traffic = Traffic {
            inline: 1,
            staged: 2,
            shared: u64::MAX,
            bypass: 4,
        };
        agree(worker).expect("sent");
        report(worker, traffic).expect("sent");
        assert_eq!(said(program), Ok(Some(Said::Agreed)));
        assert_eq!(said(program), Ok(Some(Said::Traffic(traffic))));
        let part = Part {
            at: 4096,
            bytes: 1 << 20,
            pinned: 3,
        };
        refuse(worker).expect("sent");
        assert_eq!(greeted(program).map(|_| ()), Err(Errno::BUSY));
        begin(program).expect("sent");
        assert!(matches!(heard(worker), Ok(Some(Heard::Begin))));
        announce(program, 63).expect("sent");
        bring(program, file.as_fd(), part).expect("sent");
        ask(program).expect("sent");
        assert!(matches!(heard(worker), Ok(Some(Heard::Channel(63)))));
        assert!(matches!(heard(worker), Ok(Some(Heard::Memory(_, brought))) if brought == part));
        assert!(matches!(heard(worker), Ok(Some(Heard::Ask))));
    }

    /// A listener takes the first word without waiting. What else a program says first, and one that is gone, is told apart.
    #[test]
    fn the_first_word_is_taken_by_the_listener() {
        let (program, worker) = pair();
        assert_eq!(first(worker.as_fd()), First::Silent);
        begin(program.as_fd()).expect("sent");
        assert_eq!(first(worker.as_fd()), First::Begun);
        assert_eq!(first(worker.as_fd()), First::Silent, "the word was taken");
        for other in [&[BEGIN, BEGIN][..], b"?", b"\0\0\0\0", &[0; 4000]] {
            send(program.as_fd(), other, None).expect("sent");
            assert_eq!(first(worker.as_fd()), First::Other, "{other:?}");
        }
        begin(program.as_fd()).expect("sent");
        drop(program);
        assert_eq!(first(worker.as_fd()), First::Other, "it has gone");
    }

    /// Words of another length, or with a descriptor too many or too few, are none.
    #[test]
    fn what_is_no_word_is_refused() {
        let (program, worker) = pair();
        let file = std::fs::File::open("/dev/null").expect("a file");
        for (length, descriptor) in [
            (1, false),
            (3, false),
            (4, true),
            (5, false),
            (24, false),
            (25, true),
            (4000, true),
        ] {
            let with = descriptor.then_some(file.as_fd());
            send(program.as_fd(), &vec![7; length], with).expect("sent");
            assert!(matches!(heard(worker.as_fd()), Err(Errno::PROTO)), "{length}");
            send(worker.as_fd(), &vec![7; length], with).expect("sent");
            assert!(matches!(said(program.as_fd()), Err(Errno::PROTO)), "{length}");
            send(worker.as_fd(), &vec![7; length], with).expect("sent");
            assert!(matches!(greeted(program.as_fd()), Err(Errno::PROTO)), "{length}");
        }
        // Other tests of this process have files open, and none has this one.
        let sent =
            rustix::fs::memfd_create("sent-too-often", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        let open = || {
            let all = std::fs::read_dir("/proc/self/fd").expect("the descriptors");
            let links = all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
            links
                .filter(|link| link.to_string_lossy().contains("sent-too-often"))
                .count()
        };
        for count in [2, 3, MOST_SENT] {
            send_with(program.as_fd(), &[7; 24], &vec![sent.as_fd(); count]).expect("sent");
            assert!(matches!(heard(worker.as_fd()), Err(Errno::PROTO)), "{count}");
            assert_eq!(open(), 1, "{count}: none stays open");
        }
        drop(program);
        assert!(matches!(heard(worker.as_fd()), Ok(None)));
    }
}
