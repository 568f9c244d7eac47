//! What goes over the socket: a greeting with the region's descriptor, then the number of each channel that is used.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// The first bytes of a greeting, and the version of this handshake.
const GREETING: [u8; 12] = *b"divvywrk\x01\0\0\0";

/// Greets a program, and gives it the region.
///
/// # Errors
/// The system's reason.
pub fn greet(socket: BorrowedFd<'_>, region: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [region];
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::NOBUFS);
    }
    let message = [IoSlice::new(&GREETING)];
    rustix::net::sendmsg(socket, &message, &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// Takes the region from a worker's greeting.
///
/// # Errors
/// `EPROTO` for what is no greeting of this version; else the system's reason, as where none came in time.
pub fn greeted(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut greeting = [0; GREETING.len()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut into = [IoSliceMut::new(&mut greeting)];
        match rustix::net::recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    let mut region = None;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = part {
            region = fds.last().or(region);
        }
    }
    match region {
        Some(region) if received.bytes == GREETING.len() && greeting == GREETING => Ok(region),
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

/// The next channel that a thread of the program uses; None once the program has closed the socket.
///
/// # Errors
/// `EPROTO` for what is no number of a channel; else the system's reason.
pub fn announced(socket: BorrowedFd<'_>) -> Result<Option<u32>, Errno> {
    let mut number = [0; 4];
    loop {
        return match rustix::net::recv(socket, &mut number, RecvFlags::empty()) {
            Ok((_, 0)) => Ok(None),
            Ok((_, 4)) => Ok(Some(u32::from_le_bytes(number))),
            Ok(_) => Err(Errno::PROTO),
            Err(Errno::INTR) => continue,
            Err(error) => Err(error),
        };
    }
}

/// Whether the other side has the socket open.
pub fn is_open(socket: BorrowedFd<'_>) -> bool {
    let mut look = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
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
