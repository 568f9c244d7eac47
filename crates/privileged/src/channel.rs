//! A socket of whole messages, with a descriptor beside one where it is needed.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg,
    socket_with, socketpair,
};

use crate::wire::LONGEST;

/// One end.
#[derive(Debug)]
pub struct Channel(OwnedFd);

/// Two ends of one channel, for processes of which one starts the other.
///
/// # Errors
/// The system's reason.
pub fn pair() -> io::Result<(Channel, Channel)> {
    let (one, other) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    Ok((Channel(one), Channel(other)))
}

/// The ends that the starter of this process left as its standard input and output. These two lead nowhere from now on.
///
/// # Errors
/// The system's reason; `InvalidInput` where they are no channels.
pub fn inherited() -> io::Result<[Channel; 2]> {
    let own = |stream: BorrowedFd<'_>| -> io::Result<Channel> {
        if rustix::net::sockopt::socket_type(stream)? != SocketType::SEQPACKET {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Channel(rustix::io::fcntl_dupfd_cloexec(stream, 3)?))
    };
    let channels = [own(rustix::stdio::stdin())?, own(rustix::stdio::stdout())?];
    let nowhere = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nowhere)?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    Ok(channels)
}

/// What was received.
pub(crate) struct Received {
    pub bytes: Vec<u8>,
    pub descriptor: Option<OwnedFd>,
}

impl Channel {
    /// To the helper that listens at a path.
    ///
    /// # Errors
    /// The system's reason.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self(socket))
    }

    /// The socket itself.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Of a connection that was accepted.
    pub(crate) fn of(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// How long an answer is waited for.
    pub(crate) fn set_timeout(&self, limit: Duration) -> io::Result<()> {
        set_socket_timeout(&self.0, Timeout::Recv, Some(limit))?;
        set_socket_timeout(&self.0, Timeout::Send, Some(limit))?;
        Ok(())
    }

    pub(crate) fn send(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// The next message; none where the other side has hung up. One that is too long is an error.
    pub(crate) fn receive(&self) -> io::Result<Option<Received>> {
        let mut bytes = vec![0; LONGEST];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let into = &mut [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.0, into, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                received => break received?,
            }
        };
        let descriptor = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .next();
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        bytes.truncate(received.bytes);
        Ok(Some(Received { bytes, descriptor }))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Channel> for std::process::Stdio {
    fn from(channel: Channel) -> Self {
        channel.0.into()
    }
}
