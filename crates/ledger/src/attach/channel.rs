//! One message and up to two descriptors over a unix stream socket, within a time limit.

use core::mem::MaybeUninit;
use core::time::Duration;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::error::AttachError;
use super::wire::{Kind, MESSAGE_BYTES, Reply, Request, Status};

/// Descriptors that travel with a message: the grant, then the ledger.
pub(super) type Descriptors = (OwnedFd, OwnedFd);

/// The moment at which an exchange is abandoned.
#[derive(Clone, Copy)]
pub(super) struct Deadline(Instant);

impl Deadline {
    pub fn after(limit: Duration) -> Self {
        Self(Instant::now() + limit)
    }

    /// Sets the socket to wait no longer than the remaining time. Fails if none remains.
    fn arm(self, socket: BorrowedFd<'_>, which: Timeout) -> Result<(), AttachError> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(AttachError::TimedOut);
        }
        // A time below the resolution of the socket's clock would mean "for ever".
        let left = left.max(Duration::from_millis(1));
        set_socket_timeout(socket, which, Some(left))
            .map_err(AttachError::system("setsockopt of a time limit"))
    }
}

/// Connects to the page server's socket at `path`.
pub(super) fn connect(path: &Path, deadline: Deadline) -> Result<OwnedFd, AttachError> {
    let address =
        SocketAddrUnix::new(path).map_err(AttachError::system("address of the slice's attach socket"))?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(AttachError::system("socket"))?;
    loop {
        // A page server that many processes connect to at once has a queue: connecting waits for it within the send
        // limit.
        deadline.arm(socket.as_fd(), Timeout::Send)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::INTR) => {}
            Err(errno) => {
                return Err(AttachError::system("connect to the slice's attach socket")(errno));
            }
        }
    }
}

/// Sends `message`, and `fds` with it.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    message: &[u8],
    fds: Option<[BorrowedFd<'_>; 2]>,
    deadline: Deadline,
) -> Result<(), AttachError> {
    let mut sent = 0;
    while sent < message.len() {
        deadline.arm(socket, Timeout::Send)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let (0, Some(fds)) = (sent, fds.as_ref())
            && !control.push(SendAncillaryMessage::ScmRights(fds))
        {
            return Err(AttachError::Protocol);
        }
        // A peer that hung up must never raise a signal in the program.
        match rustix::net::sendmsg(
            socket,
            &[IoSlice::new(&message[sent..])],
            &mut control,
            SendFlags::NOSIGNAL,
        ) {
            Ok(0) => return Err(AttachError::Protocol),
            Ok(count) => sent += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(AttachError::system("sendmsg on the attach socket")(errno)),
        }
    }
    Ok(())
}

/// Receives one message, and the two descriptors that came with it, if they did. Any others are closed.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    deadline: Deadline,
) -> Result<([u8; MESSAGE_BYTES], Option<Descriptors>), AttachError> {
    let mut message = [0; MESSAGE_BYTES];
    let mut received = 0;
    let (mut first, mut second) = (None, None);
    while received < message.len() {
        deadline.arm(socket, Timeout::Recv)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let answer = rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut message[received..])],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        );
        let count = match answer {
            Ok(answer) => answer.bytes,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(AttachError::system("recvmsg on the attach socket")(errno)),
        };
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = part {
                for fd in fds {
                    if first.is_none() {
                        first = Some(fd);
                    } else if second.is_none() {
                        second = Some(fd);
                    }
                }
            }
        }
        if count == 0 {
            return Err(AttachError::Protocol);
        }
        received += count;
    }
    Ok((message, first.zip(second)))
}

/// Receives `count` bytes that follow a message, and no descriptors.
pub(super) fn receive_bytes(
    socket: BorrowedFd<'_>,
    count: usize,
    deadline: Deadline,
) -> Result<Vec<u8>, AttachError> {
    let mut bytes = vec![0; count];
    let mut received = 0;
    while received < count {
        deadline.arm(socket, Timeout::Recv)?;
        match rustix::net::recv(socket, &mut bytes[received..], RecvFlags::empty()) {
            Ok((_, 0)) => return Err(AttachError::Protocol),
            Ok((_, more)) => received += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(AttachError::system("recv on the control socket")(errno)),
        }
    }
    Ok(bytes)
}

/// Sends a request of `kind` about `account` and receives the reply.
pub(super) fn ask(
    socket: BorrowedFd<'_>,
    kind: Kind,
    account: u32,
    fds: Option<[BorrowedFd<'_>; 2]>,
    deadline: Deadline,
) -> Result<(Reply, Option<Descriptors>), AttachError> {
    let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    send(socket, &Request { kind, pid, account }.encode(), fds, deadline)?;
    let (bytes, fds) = receive(socket, deadline)?;
    let reply = Reply::decode(&bytes)?;
    match reply.status {
        Status::Done => Ok((reply, fds)),
        status => Err(AttachError::Declined(status)),
    }
}
