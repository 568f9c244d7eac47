//! The runs that wait for admission, first come first.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use divvy_model::Fault;
use serde::{Deserialize, Serialize};

use crate::accounts::Accounts;
use crate::admission::wanted::Wanted;
use crate::api::{CreatedSlice, Standing};
use crate::decide::queue::{Party, require_place, standing};
use crate::system::peer::Peer;
use crate::system::watched::Watched;

/// The shortest time between two writes of the queue to disk. An agent that is killed in between loses at most places
/// at the queue's end.
const STORE: Duration = Duration::from_millis(100);

/// The queue.
#[derive(Default)]
pub(crate) struct Queue {
    pub waiters: Vec<Waiter>,
    /// Whether some changes are not written down yet.
    pub unstored: bool,
    pub stored_at: Option<Instant>,
}

/// One waiting run.
pub(crate) struct Waiter {
    pub stored: StoredWaiter,
    pub watched: Watched,
    /// The resources that it stands in line for: see [`crate::decide::queue::WaitsFor::names`].
    pub on: HashSet<String>,
    /// The resource that was lacking at the last try.
    pub why: Option<Fault>,
    /// The outcome, until the process is told.
    pub outcome: Option<Result<CreatedSlice, Fault>>,
}

/// The part of a waiter that a restarted agent needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoredWaiter {
    pub ticket: String,
    pub uid: u32,
    pub pid: u32,
    pub start_ticks: u64,
    pub wanted: Wanted,
}

impl StoredWaiter {
    /// The process that waits.
    pub fn peer(&self) -> Peer {
        Peer {
            uid: self.uid,
            pid: self.pid,
            since: self.start_ticks,
        }
    }
}

impl Waiter {
    /// A waiter that was not tried yet.
    pub fn new(stored: StoredWaiter, watched: Watched) -> Self {
        Self {
            stored,
            watched,
            on: HashSet::new(),
            why: None,
            outcome: None,
        }
    }
}

impl Queue {
    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Whether it is time to write the queue down.
    pub fn is_to_be_stored(&self) -> bool {
        self.unstored && self.stored_at.is_none_or(|stored| stored.elapsed() >= STORE)
    }

    /// Refuses one more waiter where the queue has no place for it.
    ///
    /// # Errors
    /// [`divvy_model::Code::QueueFull`].
    pub fn require_room(&self, peer: Peer, agent: u32, accounts: &Accounts) -> Result<(), Fault> {
        let party = |uid: u32| Party {
            account: accounts.one(uid),
            is_trusted: uid == 0 || uid == agent,
        };
        let waiting = self.waiters.iter().map(|waiter| party(waiter.stored.uid));
        require_place(&waiting.collect::<Vec<_>>(), party(peer.uid))
    }

    /// The state of the waiter at `at`.
    pub fn standing(&self, at: usize) -> Standing {
        let waiter = &self.waiters[at];
        let waiting = |waiter: &Waiter| waiter.outcome.is_none();
        let names: Vec<Option<&HashSet<String>>> = self
            .waiters
            .iter()
            .map(|waiter| waiting(waiter).then_some(&waiter.on))
            .collect();
        let (place, count) = standing(&names, at);
        Standing {
            ticket: waiter.stored.ticket.clone(),
            place: u32::try_from(place).unwrap_or(u32::MAX),
            count: u32::try_from(count).unwrap_or(u32::MAX),
            why: waiter.why.clone(),
            created: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use divvy_model::Code;

    use super::*;
    use crate::decide::queue::{ALL, FOREIGN, PER_USER};

    const AGENT: u32 = 500;

    fn enter(queue: &mut Queue, uid: u32, count: u32) -> usize {
        let ask = serde_json::json!({ "request": {}, "command": ["true"] });
        let ask: crate::api::CreateSlice = serde_json::from_value(ask).expect("a request");
        let wanted = Wanted {
            ask,
            parent: None,
            then_join: false,
        };
        let mut entered = 0;
        for pid in 0..count {
            let peer = Peer { uid, pid, since: 1 };
            match queue.require_room(peer, AGENT, &Accounts::default()) {
                Ok(()) => entered += 1,
                Err(fault) => {
                    assert_eq!(fault.code, Code::QueueFull);
                    break;
                }
            }
            let stored = StoredWaiter {
                ticket: format!("{uid}-{pid}"),
                uid,
                pid,
                start_ticks: 1,
                wanted: wanted.clone(),
            };
            let watched = Watched::new(std::process::id());
            queue.waiters.push(Waiter::new(stored, watched));
        }
        entered
    }

    #[test]
    fn a_user_has_few_places_and_root_always_has_some() {
        let mut queue = Queue::default();
        assert_eq!(enter(&mut queue, 1000, 10_000), PER_USER);
        assert_eq!(enter(&mut queue, 1001, 3), 3, "another's are its own");
        let rest: usize = (1002..1100).map(|uid| enter(&mut queue, uid, 10_000)).sum();
        assert_eq!(rest + PER_USER + 3, FOREIGN);
        assert_eq!(enter(&mut queue, 0, 40), 40);
        assert_eq!(enter(&mut queue, AGENT, 10_000), ALL - FOREIGN - 40);
        assert_eq!(queue.waiters.len(), ALL);
    }
}
