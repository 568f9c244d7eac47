//! The page server's half: serves the pages to tenants, takes them from the agent, and returns them to a restarted
//! agent.
//!
//! It listens on two sockets. The socket of a connection decides what may be requested on it ([`Door`]). The tenants'
//! socket is mounted into containers, where every process may be user 0, so no user id proves that the peer is the
//! agent.

use core::time::Duration;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use rustix::fs::OFlags;

use super::agent::Pages;
use super::channel::{self, Deadline, Descriptors};
use super::error::AttachError;
use super::members::Members;
use super::peer::{self, Peer};
use super::wire::{Kind, MESSAGE_BYTES, Malformed, Reply, Request, Status};
use crate::error::PageError;
use crate::grant::GrantView;
use crate::layout::PAGE_ABI_VERSION;
use crate::ledger::{Backing, Ledger};
use crate::memfd;

/// How long a peer may take for one exchange. A slower peer is dropped, so that it cannot hold up others.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(2);

/// What a page server did for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// A tenant has the pages.
    Attached {
        /// Its id in its own pid namespace.
        pid: u32,
        /// Its id in the page server's pid namespace, or 0.
        host_pid: u32,
    },
    /// A process of the slice looks at the pages.
    Observed,
    /// The agent has the pages back.
    Recalled,
    /// The agent received the list of living processes that attached.
    Listed,
    /// The agent brought pages, with a grant of this generation.
    Delivered {
        /// See [`GrantView::generation`].
        generation: u32,
    },
    /// The request was refused.
    Declined(Status),
}

/// The socket on which a connection came. It alone decides what may be requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// The slice's attach socket on the host: attach and observe, for processes of one user and of root.
    Host {
        /// The slice's user.
        uid: u32,
    },
    /// The attach socket that is mounted into containers: attach and observe, whatever the peer's user is there.
    Container,
    /// The control socket, where only the agent's user may connect: deliver, recall and list.
    Agent,
}

impl Door {
    /// Whether processes of this user may request anything here. Other processes must not use up their connections.
    #[must_use]
    pub fn admits_user(self, user: u32) -> bool {
        match self {
            Self::Host { uid } => user == uid || user == 0,
            Self::Container | Self::Agent => true,
        }
    }

    /// Whether a peer may request this here.
    fn admits(self, kind: Kind, peer: Peer) -> bool {
        let of_tenants = matches!(kind, Kind::Attach | Kind::Observe);
        match self {
            Self::Host { uid } => of_tenants && (peer.uid == uid || peer.uid == 0),
            Self::Container => of_tenants,
            Self::Agent => matches!(kind, Kind::Deliver | Kind::Recall | Kind::List),
        }
    }
}

/// Holds a slice's pages, and serves them.
#[derive(Debug, Default)]
pub struct PageServer {
    /// By account. Tenants are served once all accounts are there.
    pages: Mutex<Vec<Option<Held>>>,
    /// The processes that attached, if the agent wants to know them.
    members: Option<Members>,
}

#[derive(Debug)]
struct Held {
    grant: OwnedFd,
    ledger: OwnedFd,
    generation: u32,
}

/// How many accounts the slice has, if the page server has the pages of each.
fn complete(pages: &[Option<Held>]) -> Option<u32> {
    (!pages.is_empty() && pages.iter().all(Option::is_some)).then_some(pages.len() as u32)
}

impl PageServer {
    /// A page server without pages yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A page server without pages yet. It pins each process that attaches, so that it can tell the agent which
    /// processes are in the slice. It holds one descriptor for each.
    #[must_use]
    pub fn that_notes_members() -> Self {
        Self {
            members: Some(Members::default()),
            ..Self::default()
        }
    }

    /// Takes one account's pages from an agent in this process, as from [`super::deliver`].
    ///
    /// # Errors
    /// [`PageError`].
    pub fn hold(&self, pages: &Pages) -> Result<(), PageError> {
        let (grant, ledger) = (pages.grant.share()?, pages.ledger.share()?);
        self.take(pages.grant.account(), grant, ledger)?;
        pages.delivered();
        Ok(())
    }

    /// Whether the pages of all accounts were delivered.
    #[must_use]
    pub fn has_pages(&self) -> bool {
        complete(&self.lock()).is_some()
    }

    /// Serves one connection that was accepted at `door`: one request and one reply, within two seconds. Several
    /// threads may serve connections, so that a silent peer does not hold up others.
    ///
    /// # Errors
    /// [`AttachError`] when the peer went away, took too long or did not speak the protocol. Nothing has changed then,
    /// and the page server continues with the next connection.
    pub fn serve(&self, stream: &UnixStream, door: Door) -> Result<Served, AttachError> {
        let deadline = Deadline::after(EXCHANGE_LIMIT);
        let peer = peer::of(stream.as_fd())?;
        let (bytes, brought) = channel::receive(stream.as_fd(), deadline)?;
        let decision = match Request::decode(&bytes) {
            Ok(request) if !door.admits(request.kind, peer) => Err(Status::NotAllowed),
            Ok(request) if request.kind == Kind::List => return self.list(stream, peer, deadline),
            Ok(request) if request.kind == Kind::Attach => self
                .note(stream, peer, request)
                .and_then(|()| self.decide(request, peer, brought)),
            Ok(request) => self.decide(request, peer, brought),
            Err(Malformed::Version { .. }) => Err(Status::Version),
            Err(Malformed::Meaning) => Err(Status::Unfit),
            Err(Malformed::Foreign) => return Err(AttachError::Protocol),
        };
        let (served, status, fds) = match decision {
            Ok((served, fds)) => (served, Status::Done, fds),
            Err(status) => (Served::Declined(status), status, None),
        };
        let reply = Reply {
            status,
            pid: peer.pid,
            accounts: self.lock().len() as u32,
        };
        let fds = fds
            .as_ref()
            .map(|(grant, ledger)| [grant.as_fd(), ledger.as_fd()]);
        channel::send(stream.as_fd(), &reply.encode(), fds, deadline)?;
        Ok(served)
    }

    fn decide(
        &self,
        request: Request,
        peer: Peer,
        brought: Option<Descriptors>,
    ) -> Result<(Served, Option<Descriptors>), Status> {
        match request.kind {
            Kind::Attach => {
                let served = Served::Attached {
                    pid: request.pid,
                    host_pid: peer.pid,
                };
                Ok((served, Some(self.share_with_tenant(request.account)?)))
            }
            Kind::Observe => {
                let pages = self.lock();
                complete(&pages).ok_or(Status::NoPages)?;
                let looks = share(&pages, request.account, OFlags::RDONLY)?;
                Ok((Served::Observed, Some(looks)))
            }
            // Handled above, or a request for an agent.
            Kind::List | Kind::Keep => Err(Status::Unfit),
            Kind::Recall => {
                let pages = self.lock();
                let taken = share(&pages, request.account, OFlags::RDWR)?;
                Ok((Served::Recalled, Some(taken)))
            }
            Kind::Deliver => {
                let (grant, ledger) = brought.ok_or(Status::Unfit)?;
                let generation = self
                    .take(request.account, grant, ledger)
                    .map_err(|_| Status::Unfit)?;
                Ok((Served::Delivered { generation }, None))
            }
        }
    }

    /// Records a process that attaches, before it gets anything. A process that cannot be pinned gets nothing.
    fn note(&self, stream: &UnixStream, peer: Peer, request: Request) -> Result<(), Status> {
        match &self.members {
            // A process attaches once for each account, and again for fresh descriptors.
            Some(members) if complete(&self.lock()).is_some_and(|accounts| request.account < accounts) => {
                members.note(stream.as_fd(), peer)
            }
            _ => Ok(()),
        }
    }

    /// Tells the agent which attached processes are alive.
    fn list(&self, stream: &UnixStream, peer: Peer, deadline: Deadline) -> Result<Served, AttachError> {
        let living = self.members.as_ref().map(Members::living).unwrap_or_default();
        let reply = Reply {
            status: Status::Done,
            pid: peer.pid,
            accounts: living.len() as u32,
        };
        let mut bytes = Vec::with_capacity(MESSAGE_BYTES + living.len() * super::members::MEMBER_BYTES);
        bytes.extend(reply.encode());
        bytes.extend(living.iter().flat_map(|member| member.encode()));
        channel::send(stream.as_fd(), &bytes, None, deadline)?;
        Ok(Served::Listed)
    }

    /// A tenant gets no account before the slice has all of them. Otherwise it would think that a device has no
    /// account.
    fn share_with_tenant(&self, account: u32) -> Result<Descriptors, Status> {
        let pages = self.lock();
        complete(&pages).ok_or(Status::NoPages)?;
        share(&pages, account, OFlags::RDWR)
    }

    /// Keeps the pages, if they belong to that account and are newer than the present ones.
    fn take(&self, account: u32, grant: OwnedFd, ledger: OwnedFd) -> Result<u32, PageError> {
        let view = GrantView::map(grant.as_fd())?;
        let (generation, accounts) = (view.generation(), view.accounts());
        if account != view.account() || account >= accounts {
            return Err(PageError::NoSuchAccount { account, accounts });
        }
        let ledger = Ledger::open(ledger, Backing::Sealed)?.into_fd();
        let mut pages = self.lock();
        if pages.is_empty() {
            pages.resize_with(accounts as usize, || None);
        } else if pages.len() != accounts as usize {
            return Err(PageError::NoSuchAccount { account, accounts });
        }
        let place = &mut pages[account as usize];
        if place.as_ref().is_some_and(|held| held.generation >= generation) {
            return Err(PageError::Version {
                page: "grant",
                ours: generation,
                theirs: PAGE_ABI_VERSION,
            });
        }
        *place = Some(Held {
            grant,
            ledger,
            generation,
        });
        Ok(generation)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Option<Held>>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens both pages again for one peer. The peer's liveness lock belongs to the open file description, so each peer
/// needs its own. This also works for a peer without a /proc to open them by. `ledger` is the access that the peer gets
/// to the ledger; the grant is always read-only.
fn share(pages: &[Option<Held>], account: u32, ledger: OFlags) -> Result<Descriptors, Status> {
    if pages.is_empty() {
        return Err(Status::NoPages);
    }
    let held = pages.get(account as usize).ok_or(Status::NoSuchAccount)?;
    let held = held.as_ref().ok_or(Status::NoPages)?;
    let open = |fd: &OwnedFd, access| memfd::reopen(fd.as_fd(), access).map_err(|_| Status::Failed);
    Ok((open(&held.grant, OFlags::RDONLY)?, open(&held.ledger, ledger)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_door_decides_what_may_be_asked_and_no_user_id_does() {
        let root = Peer { pid: 1, uid: 0 };
        let alice = Peer { pid: 1, uid: 1000 };
        let bob = Peer { pid: 1, uid: 1001 };
        let door = Door::Host { uid: 1000 };
        for kind in [Kind::Attach, Kind::Observe] {
            assert!(door.admits(kind, alice) && door.admits(kind, root) && !door.admits(kind, bob));
            assert!(
                [alice, bob, root]
                    .iter()
                    .all(|peer| Door::Container.admits(kind, *peer))
            );
            assert!(!Door::Agent.admits(kind, root));
        }
        for kind in [Kind::Deliver, Kind::Recall, Kind::List] {
            for peer in [alice, bob, root] {
                assert!(!door.admits(kind, peer) && !Door::Container.admits(kind, peer));
            }
            assert!(Door::Agent.admits(kind, root));
        }
    }
}
