//! A page server's listening sockets. The agent makes them in a folder that only it can write. It hands them to the
//! page server that it starts, or to a `divvy run` that asks for them.

use core::mem::MaybeUninit;
use core::time::Duration;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::channel::{self, Deadline};
use super::error::AttachError;
use super::wire::{Kind, MESSAGE_BYTES, Malformed, Reply, Request, Status};

/// How long the other side may take.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(2);

/// The sockets on which a page server listens.
#[derive(Debug)]
pub struct Sockets {
    /// For the slice's processes on the host.
    pub attach: UnixListener,
    /// For the agent.
    pub control: UnixListener,
    /// For the slice's processes in containers, if it may have any.
    pub container: Option<UnixListener>,
    /// The slice's user.
    pub uid: u32,
}

/// Sends the sockets over a connection.
///
/// # Errors
/// [`AttachError`].
pub fn give(stream: &UnixStream, sockets: &Sockets) -> Result<(), AttachError> {
    let reply = Reply {
        status: Status::Done,
        pid: sockets.uid,
        accounts: 0,
    }
    .encode();
    let (attach, control) = (sockets.attach.as_fd(), sockets.control.as_fd());
    match &sockets.container {
        None => send(stream, &reply, &[attach, control]),
        Some(container) => send(stream, &reply, &[attach, control, container.as_fd()]),
    }
}

/// Receives the sockets that [`give`] sends.
///
/// # Errors
/// [`AttachError::Declined`] with the agent's reason, or another [`AttachError`].
pub fn take(stream: &UnixStream) -> Result<Sockets, AttachError> {
    stream
        .set_read_timeout(Some(EXCHANGE_LIMIT))
        .map_err(|_| AttachError::Protocol)?;
    let mut message = [0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut buffers = [IoSliceMut::new(&mut message)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        match rustix::net::recvmsg(stream, &mut buffers, &mut control, flags) {
            Ok(received) => break received.bytes,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(AttachError::system("recvmsg of a page server's sockets")(errno)),
        }
    };
    if received != MESSAGE_BYTES {
        return Err(AttachError::Protocol);
    }
    let mut sockets: Vec<OwnedFd> = Vec::with_capacity(3);
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = part {
            sockets.extend(fds);
        }
    }
    let reply = Reply::decode(&message)?;
    if reply.status != Status::Done {
        return Err(AttachError::Declined(reply.status));
    }
    let mut sockets = sockets.into_iter().map(UnixListener::from);
    match (sockets.next(), sockets.next()) {
        (Some(attach), Some(control)) => Ok(Sockets {
            attach,
            control,
            container: sockets.next(),
            uid: reply.pid,
        }),
        _ => Err(AttachError::Protocol),
    }
}

/// Asks the agent that listens on `path` for the sockets of slice `id`. This process is going to be its page server.
///
/// # Errors
/// [`AttachError::Declined`] with [`Status::NotAllowed`] if the agent expects another page server, or another
/// [`AttachError`].
pub fn fetch(path: &Path, id: u32) -> Result<Sockets, AttachError> {
    let deadline = Deadline::after(EXCHANGE_LIMIT);
    let socket = channel::connect(path, deadline)?;
    let request = Request {
        kind: Kind::Keep,
        pid: std::process::id(),
        account: id,
    };
    channel::send(socket.as_fd(), &request.encode(), None, deadline)?;
    take(&UnixStream::from(socket))
}

/// Tells a peer that it may make no request here, before it has sent anything. This takes no time.
pub fn refuse(stream: &UnixStream) {
    let reply = Reply {
        status: Status::NotAllowed,
        pid: 0,
        accounts: 0,
    };
    // A peer that does not receive it is refused all the same.
    let _unheard = channel::send(
        stream.as_fd(),
        &reply.encode(),
        None,
        Deadline::after(Duration::from_millis(1)),
    );
}

/// Reads which slice's sockets a `divvy run` requests. Replies with them, or with the reason for a refusal.
///
/// # Errors
/// [`AttachError`] when the peer went away, took too long or did not speak the protocol.
pub fn answer(
    stream: &UnixStream,
    decide: impl FnOnce(u32) -> Result<Sockets, Status>,
) -> Result<(), AttachError> {
    let deadline = Deadline::after(EXCHANGE_LIMIT);
    let (bytes, _none) = channel::receive(stream.as_fd(), deadline)?;
    let decision = match Request::decode(&bytes) {
        Ok(Request {
            kind: Kind::Keep,
            account,
            ..
        }) => decide(account),
        Ok(_) | Err(Malformed::Meaning) => Err(Status::Unfit),
        Err(Malformed::Version { .. }) => Err(Status::Version),
        Err(Malformed::Foreign) => return Err(AttachError::Protocol),
    };
    match decision {
        Ok(sockets) => give(stream, &sockets),
        Err(status) => {
            let reply = Reply {
                status,
                pid: 0,
                accounts: 0,
            };
            channel::send(stream.as_fd(), &reply.encode(), None, deadline)
        }
    }
}

fn send(
    stream: &UnixStream,
    message: &[u8; MESSAGE_BYTES],
    fds: &[BorrowedFd<'_>],
) -> Result<(), AttachError> {
    stream
        .set_write_timeout(Some(EXCHANGE_LIMIT))
        .map_err(|_| AttachError::Protocol)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(AttachError::Protocol);
    }
    match rustix::net::sendmsg(
        stream,
        &[IoSlice::new(message)],
        &mut control,
        SendFlags::NOSIGNAL,
    ) {
        Ok(MESSAGE_BYTES) => Ok(()),
        Ok(_) => Err(AttachError::Protocol),
        Err(errno) => Err(AttachError::system("sendmsg of a page server's sockets")(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_are_handed_over_go_on_listening() {
        let folder = tempfile::tempdir().expect("a folder");
        let listen = |name: &str| UnixListener::bind(folder.path().join(name)).expect("a socket");
        for container in [None, Some(listen("c"))] {
            let _gone = std::fs::remove_file(folder.path().join("a"));
            let _gone = std::fs::remove_file(folder.path().join("b"));
            let (ours, theirs) = UnixStream::pair().expect("a pair");
            let sockets = Sockets {
                attach: listen("a"),
                control: listen("b"),
                container,
                uid: 1000,
            };
            give(&ours, &sockets).expect("given");
            let has_container = sockets.container.is_some();
            drop(sockets);
            let taken = take(&theirs).expect("taken");
            assert_eq!((taken.uid, taken.container.is_some()), (1000, has_container));
            let _connected = UnixStream::connect(folder.path().join("b")).expect("it listens");
            taken.control.accept().expect("the right one");
        }
    }

    #[test]
    fn a_run_that_may_not_keep_a_slice_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("keep.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a run");
            answer(&stream, |id| {
                assert_eq!(id, 0x0123_abcd);
                Err(Status::NotAllowed)
            })
        });
        let refused = fetch(&path, 0x0123_abcd).expect_err("refused");
        assert_eq!(refused, AttachError::Declined(Status::NotAllowed));
        server.join().expect("ended").expect("answered");
    }
}
