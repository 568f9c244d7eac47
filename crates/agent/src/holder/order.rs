//! The agent's orders to the holder of emulated devices' pages, over a socket that only the agent's user can reach: a
//! length, JSON, and descriptors beside the length.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The UUID by which a device's pages are requested.
pub(crate) type Id = [u8; 16];

/// The largest order, in bytes: some ten thousand users with a device each.
const LONGEST: u32 = 1 << 20;

/// An order of the agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Asks for the list of held devices.
    List,
    /// Asks for the pages of a held device.
    Take(Id),
    /// Makes it hold this device. A descriptor that disables the device's files comes with it. Where another holder had
    /// them, the pages come too: the ledger, then the engine's.
    Hold(Id),
    /// Gives these devices to these users, and to no others.
    Users {
        /// The devices of each user.
        users: Vec<(u32, Vec<Id>)>,
        /// Whether some slices outlast their programs, and so need an agent: the holder stays for them.
        lasting: bool,
    },
    /// Makes it serve these devices at the attached socket, to every process of a container that connects.
    Open {
        /// The name of the container's folder.
        door: String,
        /// The granted devices.
        devices: Vec<Id>,
    },
    /// Makes it stop serving there.
    Close(String),
}

/// The holder's answer.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The order is done.
    Done,
    /// The held devices.
    Devices(Vec<Id>),
    /// The ledger, the engine's page and the descriptor that disables its files come with this.
    Pages,
    /// The order failed.
    Failed(String),
}

/// Sends a message, and descriptors with it.
pub(super) fn send(stream: &UnixStream, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let length = u32::try_from(text.len()).map_err(|_| ErrorKind::InvalidInput)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(ErrorKind::InvalidInput.into());
    }
    let head = length.to_le_bytes();
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(&head)], &mut control, SendFlags::NOSIGNAL)?;
    if sent != head.len() {
        return Err(ErrorKind::WriteZero.into());
    }
    let mut rest = text.as_slice();
    while !rest.is_empty() {
        match rustix::net::send(stream, rest, SendFlags::NOSIGNAL) {
            Ok(sent) => rest = &rest[sent..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Receives a message, and the descriptors that came with it.
pub(super) fn receive<T: DeserializeOwned>(stream: &UnixStream) -> io::Result<(T, Vec<OwnedFd>)> {
    let mut head = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let received = loop {
        match rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut head)], &mut control, flags) {
            Ok(received) => break received.bytes,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    let mut fds = Vec::with_capacity(3);
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = part {
            fds.extend(more);
        }
    }
    let length = u32::from_le_bytes(head);
    if received != head.len() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    if length > LONGEST {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut text = Vec::new();
    let mut stream = stream;
    (&mut stream).take(u64::from(length)).read_to_end(&mut text)?;
    if text.len() != length as usize {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok((serde_json::from_slice(&text)?, fds))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn orders_and_their_descriptors_arrive_whole_and_others_do_not() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let null = std::fs::File::open("/dev/null").expect("open");
        let order = Order::Hold([3; 16]);
        send(&ours, &order, &[null.as_fd(), null.as_fd()]).expect("sent");
        let (got, fds) = receive::<Order>(&theirs).expect("received");
        assert!(matches!(got, Order::Hold(id) if id == [3; 16]));
        assert_eq!(fds.len(), 2);
        let users = (0..2_000).map(|uid| (uid, vec![[9; 16]; 3])).collect();
        std::thread::scope(|scope| {
            let order = Order::Users { users, lasting: true };
            let ours = &ours;
            scope.spawn(move || send(ours, &order, &[]).expect("sent"));
            let (got, fds) = receive::<Order>(&theirs).expect("received");
            assert!(matches!(got, Order::Users { users, .. } if users.len() == 2_000));
            assert!(fds.is_empty());
        });
        for said in [&b"\xff\xff\xff\xff"[..], b"\x04\0\0\0null", b"\x10\0"] {
            let (ours, theirs) = UnixStream::pair().expect("a pair");
            rustix::net::send(&ours, said, SendFlags::empty()).expect("sent");
            drop(ours);
            receive::<Order>(&theirs).expect_err("no order");
        }
    }
}
