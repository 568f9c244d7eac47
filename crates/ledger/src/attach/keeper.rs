//! The keeper's half: serves the pages to tenants, takes them from the agent, gives them back to a restarted one.

use core::time::Duration;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use rustix::fs::OFlags;

use super::channel::{self, Deadline, Descriptors};
use super::error::AttachError;
use super::peer::{self, Peer};
use super::wire::{Kind, Malformed, Reply, Request, Status};
use crate::error::PageError;
use crate::grant::GrantView;
use crate::layout::PAGE_ABI_VERSION;
use crate::ledger::{Backing, Ledger};
use crate::memfd;

/// How long a peer may take over one exchange: longer, and it is dropped, so that it cannot hold up others.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(2);

/// What a keeper did for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// A tenant has the pages.
    Attached {
        /// Its id in its own pid namespace.
        pid: u32,
        /// Its id in the keeper's, or 0.
        host_pid: u32,
    },
    /// A process of the slice looks at the pages.
    Observed,
    /// The agent has the pages back.
    Recalled,
    /// The agent brought pages, with a grant of this generation.
    Delivered {
        /// See [`GrantView::generation`].
        generation: u32,
    },
    /// The peer was told no.
    Declined(Status),
}

/// Holds a slice's pages, and serves them.
#[derive(Debug)]
pub struct Keeper {
    agent_uid: u32,
    /// By account. Tenants are served once all are there.
    pages: Mutex<Vec<Option<Held>>>,
}

#[derive(Debug)]
struct Held {
    grant: OwnedFd,
    ledger: OwnedFd,
    generation: u32,
}

/// The accounts a slice has, if the keeper has the pages of each.
fn complete(pages: &[Option<Held>]) -> Option<u32> {
    (!pages.is_empty() && pages.iter().all(Option::is_some)).then_some(pages.len() as u32)
}

impl Keeper {
    /// A keeper without pages yet, which takes them from processes of `agent_uid` and of root only.
    ///
    /// Where tenant and agent are one user, the tenant too may bring pages. That user may also trace the keeper or
    /// the agent: nothing short of another user, or a rung above cooperative, would stop it.
    #[must_use]
    pub fn new(agent_uid: u32) -> Self {
        Self {
            agent_uid,
            pages: Mutex::new(Vec::new()),
        }
    }

    /// Whether the pages of all accounts were delivered.
    #[must_use]
    pub fn has_pages(&self) -> bool {
        complete(&self.lock()).is_some()
    }

    /// Serves one accepted connection: one request, one reply, within two seconds. Connections may be served by
    /// several threads, so that a peer which connects and says nothing holds up nobody.
    ///
    /// # Errors
    /// [`AttachError`] when the peer went away, took too long or did not speak the protocol. Nothing has changed
    /// then, and the keeper goes on with the next.
    pub fn serve(&self, stream: &UnixStream) -> Result<Served, AttachError> {
        let deadline = Deadline::after(EXCHANGE_LIMIT);
        let peer = peer::of(stream.as_fd())?;
        let (bytes, brought) = channel::receive(stream.as_fd(), deadline)?;
        let decision = match Request::decode(&bytes) {
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
            Kind::Recall => {
                self.require_agent(peer)?;
                let pages = self.lock();
                let taken = share(&pages, request.account, OFlags::RDWR)?;
                Ok((Served::Recalled, Some(taken)))
            }
            Kind::Deliver => {
                self.require_agent(peer)?;
                let (grant, ledger) = brought.ok_or(Status::Unfit)?;
                let generation = self
                    .take(request.account, grant, ledger)
                    .map_err(|_| Status::Unfit)?;
                Ok((Served::Delivered { generation }, None))
            }
        }
    }

    fn require_agent(&self, peer: Peer) -> Result<(), Status> {
        if peer.uid == self.agent_uid || peer.uid == 0 {
            Ok(())
        } else {
            Err(Status::NotAllowed)
        }
    }

    /// A tenant gets no account before the slice has all of them: it would take a device for a stranger's.
    fn share_with_tenant(&self, account: u32) -> Result<Descriptors, Status> {
        let pages = self.lock();
        complete(&pages).ok_or(Status::NoPages)?;
        share(&pages, account, OFlags::RDWR)
    }

    /// Keeps the pages, if they are pages of that account, and newer than those it has.
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

/// Opens both pages anew for one peer. Its liveness lock belongs to the open file description, so each has to have
/// its own; and it keeps working where the peer itself has no /proc to open them by. `ledger` is how the peer gets the
/// ledger; the grant is for reading always.
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
    fn only_the_agent_and_root_bring_pages_or_take_them_back() {
        let keeper = Keeper::new(1000);
        for kind in [Kind::Deliver, Kind::Recall] {
            let ask = |uid| {
                keeper
                    .decide(
                        Request {
                            kind,
                            pid: 1,
                            account: 0,
                        },
                        Peer { pid: 1, uid },
                        None,
                    )
                    .err()
            };
            assert_eq!(ask(1001), Some(Status::NotAllowed));
            assert_ne!(ask(1000), Some(Status::NotAllowed));
            assert_ne!(ask(0), Some(Status::NotAllowed));
        }
    }
}
