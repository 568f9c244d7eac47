//! `divvy remote hand-over`: a process in a slice of this host, for `divvy remote serve`.
//!
//! The slice's workers only take connections of processes below its `divvy run`. This process is one. For each byte that
//! comes over its standard input it connects to a worker, and sends the connection back.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use divvy_model::{Code, Fault};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

/// What this process says first, and with each connection.
pub const READY: u8 = b'r';

/// Serves until the standard input is closed.
pub fn run() -> Result<u8, Fault> {
    let failed = |errno: Errno| Fault::new(Code::Internal, "cannot hand a worker over").because(&errno);
    let path = std::env::var_os("DIVVY_REMOTE").ok_or_else(|| {
        Fault::new(Code::Usage, "this slice has no workers")
            .hint("`divvy remote serve` starts this by itself")
    })?;
    let relay = rustix::stdio::stdin();
    rustix::net::send(relay, &[READY], SendFlags::NOSIGNAL).map_err(failed)?;
    let mut asked = [0; 1];
    loop {
        match rustix::net::recv(relay, &mut asked, RecvFlags::empty()) {
            Ok((_, 0)) => return Ok(0),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(failed(errno)),
        }
        let connected = || -> Result<OwnedFd, Errno> {
            let socket = rustix::net::socket_with(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC,
                None,
            )?;
            rustix::net::connect(&socket, &SocketAddrUnix::new(path.as_os_str())?)?;
            Ok(socket)
        };
        let worker = connected();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = worker.as_ref().map(|worker| [worker.as_fd()]);
        if let Ok(fds) = &fds {
            // There is room for one.
            let _pushed = control.push(SendAncillaryMessage::ScmRights(fds));
        }
        // Without a connection the byte says that there is none.
        rustix::net::sendmsg(
            relay,
            &[IoSlice::new(&[READY])],
            &mut control,
            SendFlags::NOSIGNAL,
        )
        .map_err(failed)?;
    }
}
