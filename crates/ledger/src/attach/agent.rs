//! The agent's half: makes a slice's pages, hands them to the page server, and gets them back after a restart.

use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use super::channel::{self, Deadline, Descriptors};
use super::error::AttachError;
use super::members::{MEMBER_BYTES, MOST, Member};
use super::wire::Kind;
use crate::error::PageError;
use crate::grant::{Grant, GrantSpec, GrantView};
use crate::ledger::{Backing, Ledger};

/// How long a page server may take.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(2);

/// Both pages of one account of a slice, held by the agent that made the grant.
#[derive(Debug)]
pub struct Pages {
    /// What the slice may use.
    pub grant: Grant,
    /// What it uses.
    pub ledger: Ledger,
}

impl Pages {
    /// Makes the pages of one account of a new slice.
    ///
    /// # Errors
    /// [`PageError::TextTooLong`], [`PageError::NoSuchAccount`], or the system's reason.
    pub fn create(spec: &GrantSpec<'_>) -> Result<Self, PageError> {
        let pages = Self {
            grant: Grant::create(spec)?,
            ledger: Ledger::create()?,
        };
        pages.delivered();
        Ok(pages)
    }

    /// Tells the slice's tenants to fetch the grant that their page server has.
    pub(super) fn delivered(&self) {
        // The order matters: otherwise a tenant would come and find the old one.
        self.ledger.set_grant_generation(self.grant.generation());
        // A sleeping tenant waits on the old grant's gate word, which no process changes any more.
        self.grant.wake_followers();
    }
}

/// What a restarted agent gets back from a page server.
///
/// The grant is as the page server has it. An agent that does not trust the slice's user takes the limit from its own
/// records, not from here.
#[derive(Debug)]
pub struct Recalled {
    /// The grant of the agent's predecessor: readable, and never writable again.
    pub grant: GrantView,
    /// The ledger: the same one, with its contents.
    pub ledger: Ledger,
}

impl Recalled {
    /// Makes a new writable grant for this agent. No other process sees it before it is delivered: see [`deliver`].
    ///
    /// # Errors
    /// The system's reason.
    pub fn adopt(self) -> Result<Pages, PageError> {
        let mut grant = Grant::succeed(&self.grant)?;
        grant.follows(self.grant);
        Ok(Pages {
            grant,
            ledger: self.ledger,
        })
    }
}

/// Hands one account's pages to the page server whose control socket is `path`. Then tells the slice's tenants to fetch
/// them.
///
/// # Errors
/// [`AttachError`]. The page server then has the same pages as before.
pub fn deliver(path: &Path, pages: &Pages) -> Result<(), AttachError> {
    let (grant, ledger) = (pages.grant.share()?, pages.ledger.share()?);
    let fds = Some([grant.as_fd(), ledger.as_fd()]);
    exchange(path, Kind::Deliver, pages.grant.account(), fds)?;
    pages.delivered();
    Ok(())
}

/// Gets the pages of account `account` back from the page server whose control socket is `path`.
/// [`GrantView::accounts`] of the first account tells how many there are.
///
/// # Errors
/// [`AttachError`].
pub fn recall(path: &Path, account: u32) -> Result<Recalled, AttachError> {
    let fds = exchange(path, Kind::Recall, account, None)?;
    let (grant, ledger) = fds.ok_or(AttachError::Protocol)?;
    Ok(Recalled {
        grant: GrantView::map(grant.as_fd())?,
        ledger: Ledger::open(ledger, Backing::Sealed)?,
    })
}

/// Asks the page server whose control socket is `path` which processes attached and are alive. A page server that does
/// not record them returns none.
///
/// # Errors
/// [`AttachError`].
pub fn members(path: &Path) -> Result<Vec<Member>, AttachError> {
    let deadline = Deadline::after(EXCHANGE_LIMIT);
    let socket = channel::connect(path, deadline)?;
    let (reply, _none) = channel::ask(socket.as_fd(), Kind::List, 0, None, deadline)?;
    let count = reply.accounts as usize;
    if count > MOST {
        return Err(AttachError::Protocol);
    }
    let bytes = channel::receive_bytes(socket.as_fd(), count * MEMBER_BYTES, deadline)?;
    let (chunks, _rest) = bytes.as_chunks::<MEMBER_BYTES>();
    Ok(chunks.iter().map(Member::decode).collect())
}

fn exchange(
    path: &Path,
    kind: Kind,
    account: u32,
    fds: Option<[BorrowedFd<'_>; 2]>,
) -> Result<Option<Descriptors>, AttachError> {
    let deadline = Deadline::after(EXCHANGE_LIMIT);
    let socket = channel::connect(path, deadline)?;
    let (_reply, fds) = channel::ask(socket.as_fd(), kind, account, fds, deadline)?;
    Ok(fds)
}
