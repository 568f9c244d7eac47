//! The queue: runs that wait for admission, first come, first served. docs/adr/0013 says what "first" means.
//!
//! It is a file under the run directory, as all of an agent's state: a restarted agent finds everybody in place.

use std::collections::HashSet;

use divvy_model::{Code, Fault};
use serde::{Deserialize, Serialize};

use crate::api::{CreatedSlice, Standing, Wait};
use crate::create::{Resolved, Wanted};
use crate::daemon::{Book, Daemon};
use crate::names::fresh_id;
use crate::peer::Peer;
use crate::placement::Ahead;
use crate::records;
use crate::watched::Watched;

/// One who waits.
pub(crate) struct Waiter {
    stored: StoredWaiter,
    watched: Watched,
    /// What it stands in line for, by UUID of devices or id of a slice.
    on: HashSet<String>,
    /// What was lacking when it was last tried.
    why: Option<Fault>,
    /// What became of it, until it is told.
    outcome: Option<Result<CreatedSlice, Fault>>,
}

/// What a restarted agent has to know of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoredWaiter {
    ticket: String,
    uid: u32,
    pid: u32,
    start_ticks: u64,
    wanted: Wanted,
}

impl StoredWaiter {
    fn peer(&self) -> Peer {
        Peer {
            uid: self.uid,
            pid: self.pid,
            since: self.start_ticks,
        }
    }
}

/// Whether time may mend a refusal: others have what is lacking. What exceeds a device, a quota or the slice around it
/// has codes of its own.
pub(crate) fn may_change(code: Code) -> bool {
    matches!(
        code,
        Code::DeviceFull
            | Code::ComputeFull
            | Code::OtherMode
            | Code::TooManySlices
            | Code::QuotaFull
            | Code::SliceFull
    )
}

impl Daemon {
    /// Gives the caller a place in the queue, or tells how the one it has stands.
    ///
    /// # Errors
    /// A refusal that waiting does not mend.
    pub fn wait(&self, peer: Peer, ask: &Wait) -> Result<Standing, Fault> {
        let ticket = {
            let book = self.book();
            let mine = |waiter: &&Waiter| {
                Some(&waiter.stored.ticket) == ask.ticket.as_ref() && waiter.stored.uid == peer.uid
            };
            book.queue
                .iter()
                .find(mine)
                .map(|waiter| waiter.stored.ticket.clone())
        };
        let ticket = match ticket {
            Some(ticket) => ticket,
            None => match self.enter(peer, ask)? {
                Ok(ticket) => ticket,
                Err(created) => return Ok(Standing::admitted(created)),
            },
        };
        self.look(peer, &ticket)
    }

    /// A place at the end of the queue, or the slice that was there without waiting.
    fn enter(&self, peer: Peer, ask: &Wait) -> Result<Result<String, CreatedSlice>, Fault> {
        self.may_create(peer)?;
        let wanted = match self.resolve(peer, &ask.ask)? {
            Resolved::Done(created) => return self.prepared(*created, ask.ask.dry_run).map(Err),
            Resolved::Wanted(wanted) => *wanted,
        };
        let mut book = self.book();
        let ticket = fresh_id(&book)?;
        let stored = StoredWaiter {
            ticket: ticket.clone(),
            uid: peer.uid,
            pid: peer.pid,
            start_ticks: peer.since,
            wanted,
        };
        book.queue.push(Waiter {
            watched: Watched::new(peer.pid),
            stored,
            on: HashSet::new(),
            why: None,
            outcome: None,
        });
        self.serve_queue(&mut book);
        self.store_queue(&book);
        Ok(Ok(ticket))
    }

    /// How a place stands. One that was served is given up.
    fn look(&self, peer: Peer, ticket: &str) -> Result<Standing, Fault> {
        let mut book = self.book();
        let gone = || Fault::new(Code::Internal, "the place in the queue is gone");
        let at = book
            .queue
            .iter()
            .position(|waiter| waiter.stored.ticket == ticket)
            .ok_or_else(gone)?;
        if book.queue[at].outcome.is_none() {
            return Ok(book.standing(at));
        }
        let waiter = book.queue.remove(at);
        self.store_queue(&book);
        drop(book);
        let outcome = waiter.outcome.unwrap_or_else(|| Err(gone()));
        self.settled(peer, &waiter.stored.wanted, outcome)
            .map(Standing::admitted)
    }

    /// Admits who can be admitted, in order. Nobody gets what one before waits for. Tells what is waited for.
    pub(crate) fn serve_queue(&self, book: &mut Book) -> Ahead {
        let mut ahead = Ahead::default();
        if book.queue.is_empty() {
            return ahead;
        }
        let mut queue = std::mem::take(&mut book.queue);
        let before = queue.len();
        queue.retain(|waiter| waiter.watched.is_alive());
        let mut changed = queue.len() != before;
        for waiter in queue.iter_mut().filter(|waiter| waiter.outcome.is_none()) {
            let (peer, wanted) = (waiter.stored.peer(), &waiter.stored.wanted);
            match self.try_create(book, peer, wanted, &ahead) {
                // A driver that hangs may come back: nobody loses his place meanwhile.
                Err(fault)
                    if may_change(fault.code) || fault.code == Code::Driver && self.nvidia.is_silent() =>
                {
                    waiter.on = self.stand_in_line(book, peer, wanted, fault.code, &mut ahead);
                    waiter.why = Some(fault);
                }
                outcome => {
                    changed = true;
                    waiter.outcome = Some(outcome);
                }
            }
        }
        book.queue = queue;
        if changed {
            self.store_queue(book);
        }
        ahead
    }

    /// Notes what this waiter waits for, so that nobody behind it gets it.
    fn stand_in_line(
        &self,
        book: &mut Book,
        peer: Peer,
        wanted: &Wanted,
        code: Code,
        ahead: &mut Ahead,
    ) -> HashSet<String> {
        match (&wanted.parent, code) {
            (Some(parent), _) => {
                ahead.parents.insert(parent.clone());
                HashSet::from([parent.clone()])
            }
            // A user's own quota keeps nobody else waiting.
            (None, Code::QuotaFull) => {
                ahead.users.insert(peer.uid);
                HashSet::from([format!("user {}", peer.uid)])
            }
            (None, _) => {
                let devices = self.candidates(book, &wanted.ask).unwrap_or_default();
                let uuids: HashSet<String> =
                    devices.into_iter().flatten().map(|device| device.uuid).collect();
                for uuid in &uuids {
                    *ahead.devices.entry(uuid.clone()).or_default() += 1;
                }
                uuids
            }
        }
    }

    fn store_queue(&self, book: &Book) {
        let waiting = book.queue.iter().filter(|waiter| waiter.outcome.is_none());
        let stored: Vec<&StoredWaiter> = waiting.map(|waiter| &waiter.stored).collect();
        if let Err(fault) = records::store_queue(&self.run, &stored) {
            tracing::warn!("{fault}: {}", fault.causes.join(": "));
        }
    }

    /// Gives those who waited for the agent's predecessor their places back; who has died has none.
    pub(crate) fn reopen_queue(&self) {
        let stored: Vec<StoredWaiter> = records::stored_queue(&self.run);
        self.book().queue = stored
            .into_iter()
            .filter_map(|stored| {
                Some(Waiter {
                    watched: Watched::again(stored.pid, stored.start_ticks)?,
                    stored,
                    on: HashSet::new(),
                    why: None,
                    outcome: None,
                })
            })
            .collect();
    }
}

impl Book {
    fn standing(&self, at: usize) -> Standing {
        let waiter = &self.queue[at];
        let rivals = |others: &[Waiter]| {
            let waiting = others.iter().filter(|other| other.outcome.is_none());
            waiting.filter(|other| !other.on.is_disjoint(&waiter.on)).count()
        };
        let before = rivals(&self.queue[..at]);
        Standing {
            ticket: waiter.stored.ticket.clone(),
            place: u32::try_from(before + 1).unwrap_or(u32::MAX),
            count: u32::try_from(before + 1 + rivals(&self.queue[at + 1..])).unwrap_or(u32::MAX),
            why: waiter.why.clone(),
            created: None,
        }
    }
}
