//! The attach protocol as bytes, so that a message can say what no client of ours would.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use divvy_ledger::PAGE_ABI_VERSION;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// A tenant asks for the pages.
pub const ATTACH: u32 = 1;
/// The agent asks for them back.
pub const RECALL: u32 = 2;
/// The agent brings some.
pub const DELIVER: u32 = 3;
/// The answer: as asked.
pub const DONE: u32 = 0;
/// The answer: the pages that were brought are not fit.
pub const UNFIT: u32 = 4;

/// A request of this kind, or an answer of this status.
pub fn message(code: u32) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(b"DVYATTCH");
    bytes[8..12].copy_from_slice(&PAGE_ABI_VERSION.to_ne_bytes());
    bytes[12..16].copy_from_slice(&code.to_ne_bytes());
    bytes[16..20].copy_from_slice(&std::process::id().to_ne_bytes());
    // The second half: account 0 of a request, one account of an answer to a recall.
    bytes
}

/// Which kind of request it is, or which status an answer has.
pub fn code(message: &[u8; 32]) -> u32 {
    let mut code = [0; 4];
    code.copy_from_slice(&message[12..16]);
    u32::from_ne_bytes(code)
}

/// Asks the page server that listens on `socket`: the answer's status, and what came with it.
pub fn ask(socket: &Path, kind: u32, fds: &[BorrowedFd<'_>]) -> anyhow::Result<(u32, Vec<OwnedFd>)> {
    let stream = UnixStream::connect(socket).with_context(|| format!("Cannot connect to {socket:?}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    send(stream.as_fd(), &message(kind), fds)?;
    let (answer, fds) = receive(stream.as_fd())?;
    Ok((code(&answer), fds))
}

/// Sends bytes and descriptors.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message and what came with it.
pub fn receive(socket: BorrowedFd<'_>) -> anyhow::Result<([u8; 32], Vec<OwnedFd>)> {
    let mut bytes = [0; 32];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let count = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?
    .bytes;
    anyhow::ensure!(count > 0, "The other side hung up");
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = part {
            fds.extend(came);
        }
    }
    Ok((bytes, fds))
}
