//! The pages of an emulated device: how a process requests them from their holder, and how the holder replies.
//!
//! One connection is one request and one reply. The reply brings the device's ledger and its engine's page. Both are
//! sealed memory files, each with an open file description for the requesting process alone. The connection stays open
//! until that process has its slot, and the holder stays for as long. docs/adr/0035 says more.

use core::time::Duration;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::channel::{self, Deadline};
use super::error::AttachError;
use super::peer;
use super::wire::{DeviceRequest, Malformed, Reply, Status};

/// How long either side may take.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(2);

/// The pages of a device.
#[derive(Debug)]
pub struct DevicePages {
    /// The ledger of the device's memory. A process that maps it checks that it is sealed.
    pub ledger: OwnedFd,
    /// Its engine's page. A process that maps it checks the same.
    pub engine: OwnedFd,
    /// Closed when this process has its slot.
    pub connection: OwnedFd,
}

/// Requests the pages of a device from the holder that listens on `path`.
///
/// # Errors
/// [`AttachError::Declined`]: [`Status::NoPages`] for a device that it does not hold, [`Status::NotAllowed`] for one
/// that was not given to this process. Other [`AttachError`]s tell why the exchange failed.
pub fn device_pages(path: &Path, uuid: [u8; 16]) -> Result<DevicePages, AttachError> {
    let deadline = Deadline::after(EXCHANGE_LIMIT);
    let connection = channel::connect(path, deadline)?;
    channel::send(
        connection.as_fd(),
        &DeviceRequest { uuid }.encode(),
        None,
        deadline,
    )?;
    let (bytes, fds) = channel::receive(connection.as_fd(), deadline)?;
    match Reply::decode(&bytes)?.status {
        Status::Done => {}
        status => return Err(AttachError::Declined(status)),
    }
    let (ledger, engine) = fds.ok_or(AttachError::Protocol)?;
    Ok(DevicePages {
        ledger,
        engine,
        connection,
    })
}

/// Reads a process's request and replies to it. `decide` gets the process's user and the device's UUID. Returns when
/// the process has hung up, or when its time is over.
///
/// # Errors
/// [`AttachError`] when the peer went away, took too long or did not speak the protocol.
pub fn serve_device(
    stream: &UnixStream,
    decide: impl FnOnce(u32, [u8; 16]) -> Result<(OwnedFd, OwnedFd), Status>,
) -> Result<(), AttachError> {
    let deadline = Deadline::after(EXCHANGE_LIMIT);
    let user = peer::of(stream.as_fd())?.uid;
    let (bytes, _none) = channel::receive(stream.as_fd(), deadline)?;
    let decision = match DeviceRequest::decode(&bytes) {
        Ok(request) => decide(user, request.uuid),
        Err(Malformed::Version { .. }) => Err(Status::Version),
        Err(Malformed::Meaning) => Err(Status::Unfit),
        Err(Malformed::Foreign) => return Err(AttachError::Protocol),
    };
    let reply = |status| {
        let reply = Reply {
            status,
            pid: 0,
            accounts: 0,
        };
        reply.encode()
    };
    match decision {
        Err(status) => channel::send(stream.as_fd(), &reply(status), None, deadline),
        Ok((ledger, engine)) => {
            let fds = [ledger.as_fd(), engine.as_fd()];
            channel::send(stream.as_fd(), &reply(Status::Done), Some(fds), deadline)?;
            drop((ledger, engine));
            // No more messages follow: this waits until the peer hangs up.
            let _hung_up = channel::receive(stream.as_fd(), deadline);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backing, Ledger};
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_device_is_asked_for_by_its_uuid_and_its_pages_come_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pages.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let holder = Ledger::create().expect("a ledger");
        let server = std::thread::spawn(move || {
            for given in [true, false] {
                let (stream, _) = listener.accept().expect("a process");
                serve_device(&stream, |user, uuid| {
                    assert_eq!(user, rustix::process::geteuid().as_raw());
                    assert_eq!(uuid, [7; 16]);
                    let page = || holder.share().map_err(|_| Status::Failed);
                    match given {
                        true => Ok((page()?, page()?)),
                        false => Err(Status::NotAllowed),
                    }
                })
                .expect("answered");
            }
        });
        let pages = device_pages(&path, [7; 16]).expect("pages");
        Ledger::open(pages.ledger, Backing::Sealed).expect("a sealed ledger");
        drop(pages.connection);
        let refused = device_pages(&path, [7; 16]).expect_err("refused");
        assert_eq!(refused, AttachError::Declined(Status::NotAllowed));
        server.join().expect("ended");
    }
}
