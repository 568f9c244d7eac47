//! The queue: runs that wait for admission, first come, first served. docs/adr/0013 says what "first" means.
//!
//! It is a file under the run directory, as all of an agent's state: a restarted agent finds everybody in place. There are
//! so many places for each user and in all, and one for each process.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use divvy_model::{Code, Fault};
use serde::{Deserialize, Serialize};

use crate::admission::create::{Resolved, Wanted};
use crate::api::{CreatedSlice, Standing, Wait};
use crate::daemon::{Daemon, State};
use crate::decide::placement::Ahead;
use crate::life::names::fresh_id;
use crate::life::records;
use crate::system::peer::Peer;
use crate::system::procs::Life;
use crate::system::watched::Watched;

/// As many places one foreign user has.
const PER_USER: usize = 8;
/// As many all foreign users have together.
const FOREIGN: usize = 192;
/// As many there are: the rest of them are for root and the agent's own user alone.
const ALL: usize = 256;

/// Those that come and go are written down so often at most. What is lost with an agent that is killed in between is a
/// place at the end.
const STORE: Duration = Duration::from_millis(100);

/// Who waits, first come first.
#[derive(Default)]
pub(crate) struct Queue {
    waiters: Vec<Waiter>,
    /// Not all of it is written down.
    unstored: bool,
    stored_at: Option<Instant>,
}

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
            let state = self.state();
            let mine = |waiter: &&Waiter| {
                Some(&waiter.stored.ticket) == ask.ticket.as_ref() && waiter.stored.uid == peer.uid
            };
            state
                .queue
                .waiters
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
        self.look_at_members_of(peer.uid);
        let wanted = match self.resolve(peer, &ask.ask)? {
            Resolved::Done(created) => return self.prepared(*created, ask.ask.dry_run).map(Err),
            Resolved::Wanted(wanted) => *wanted,
        };
        let mut state = self.state();
        let mine = |waiter: &Waiter| waiter.stored.peer() == peer;
        let mut waiters = state.queue.waiters.iter();
        if let Some(same) = waiters.find(|waiter| mine(waiter) && waiter.stored.wanted == wanted) {
            // The answer with its ticket was lost.
            return Ok(Ok(same.stored.ticket.clone()));
        }
        // A process has one place. Another wish goes to the end.
        state.queue.waiters.retain(|waiter| !mine(waiter));
        state.queue.require_room(peer, self.uid)?;
        let ticket = fresh_id(&state)?;
        let stored = StoredWaiter {
            ticket: ticket.clone(),
            uid: peer.uid,
            pid: peer.pid,
            start_ticks: peer.since,
            wanted,
        };
        state.queue.waiters.push(Waiter {
            watched: Watched::again(peer.pid, peer.since).ok_or_else(|| gone(peer))?,
            stored,
            on: HashSet::new(),
            why: None,
            outcome: None,
        });
        self.serve_queue(&mut state);
        state.queue.unstored = true;
        self.store_queue_in_time(&mut state);
        Ok(Ok(ticket))
    }

    /// How a place stands. One that was served is given up.
    fn look(&self, peer: Peer, ticket: &str) -> Result<Standing, Fault> {
        let mut state = self.state();
        let gone = || Fault::new(Code::Internal, "the place in the queue is gone");
        let at = state
            .queue
            .waiters
            .iter()
            .position(|waiter| waiter.stored.ticket == ticket)
            .ok_or_else(gone)?;
        if state.queue.waiters[at].outcome.is_none() {
            return Ok(state.standing(at));
        }
        let waiter = state.queue.waiters.remove(at);
        drop(state);
        let outcome = waiter.outcome.unwrap_or_else(|| Err(gone()));
        self.settled(peer, &waiter.stored.wanted, outcome)
            .map(Standing::admitted)
    }

    /// Admits who can be admitted, in order. Nobody gets what one before waits for. Tells what is waited for.
    pub(crate) fn serve_queue(&self, state: &mut State) -> Ahead {
        let mut ahead = Ahead::default();
        if state.queue.is_empty() {
            return ahead;
        }
        let mut queue = std::mem::take(&mut state.queue.waiters);
        let before = queue.len();
        queue.retain(|waiter| waiter.watched.is_alive());
        state.queue.unstored |= queue.len() != before;
        let mut changed = false;
        for waiter in queue.iter_mut().filter(|waiter| waiter.outcome.is_none()) {
            let (peer, wanted) = (waiter.stored.peer(), &waiter.stored.wanted);
            match self.try_create(state, peer, wanted, &ahead) {
                // A driver that hangs may come back: nobody loses his place meanwhile.
                Err(fault)
                    if may_change(fault.code) || fault.code == Code::Driver && self.nvidia.is_silent() =>
                {
                    waiter.on = self.stand_in_line(state, peer, wanted, fault.code, &mut ahead);
                    waiter.why = Some(fault);
                }
                // It cannot be looked at now, which decides nothing.
                Err(_) if waiter.watched.life() == Life::Unknown => {}
                outcome => {
                    changed = true;
                    waiter.outcome = Some(outcome);
                }
            }
        }
        state.queue.waiters = queue;
        if changed {
            // At once: another agent must not serve it again.
            self.store_queue(state);
        }
        ahead
    }

    /// Notes what this waiter waits for, so that nobody behind it gets it.
    fn stand_in_line(
        &self,
        state: &mut State,
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
                let devices = self.candidates(state, &wanted.ask).unwrap_or_default();
                let uuids: HashSet<String> =
                    devices.into_iter().flatten().map(|device| device.uuid).collect();
                for uuid in &uuids {
                    *ahead.devices.entry(uuid.clone()).or_default() += 1;
                }
                uuids
            }
        }
    }

    /// Writes down who waits, unless that was done a moment ago.
    pub(crate) fn store_queue_in_time(&self, state: &mut State) {
        let queue = &state.queue;
        if queue.unstored && queue.stored_at.is_none_or(|stored| stored.elapsed() >= STORE) {
            self.store_queue(state);
        }
    }

    /// Writes down what is not written yet, before the agent ends.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        if state.queue.unstored {
            self.store_queue(&mut state);
        }
    }

    fn store_queue(&self, state: &mut State) {
        state.queue.unstored = false;
        state.queue.stored_at = Some(Instant::now());
        let waiters = state.queue.waiters.iter();
        let waiting = waiters.filter(|waiter| waiter.outcome.is_none());
        let stored: Vec<&StoredWaiter> = waiting.map(|waiter| &waiter.stored).collect();
        if let Err(fault) = records::store_queue(&self.run, &stored) {
            tracing::warn!("{fault}: {}", fault.causes.join(": "));
        }
    }

    /// Gives those who waited for the agent's predecessor their places back; who has died has none.
    pub(crate) fn reopen_queue(&self) {
        let stored: Vec<StoredWaiter> = records::stored_queue(&self.run);
        self.state().queue.waiters = stored
            .into_iter()
            .take(ALL)
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

fn gone(peer: Peer) -> Fault {
    Fault::new(Code::NotAllowed, format!("process {} has ended", peer.pid))
}

impl Queue {
    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Refuses one more where there is no place for it.
    fn require_room(&self, peer: Peer, agent: u32) -> Result<(), Fault> {
        let count = |fits: &dyn Fn(Peer) -> bool| {
            let peers = self.waiters.iter().map(|waiter| waiter.stored.peer());
            peers.filter(|peer| fits(*peer)).count()
        };
        let trusted = peer.is_trusted(agent);
        let own = count(&|other| other.uid == peer.uid);
        if !trusted && own >= PER_USER {
            let message = format!("user {} has {own} places in the queue", peer.uid);
            return Err(Fault::new(Code::QueueFull, message)
                .hint("wait until one of them is served, or end one that waits"));
        }
        let full =
            self.waiters.len() >= ALL || !trusted && count(&|other| !other.is_trusted(agent)) >= FOREIGN;
        if full {
            return Err(Fault::new(Code::QueueFull, "the queue is full").hint("try again later"));
        }
        Ok(())
    }
}

impl State {
    fn standing(&self, at: usize) -> Standing {
        let queue = &self.queue.waiters;
        let waiter = &queue[at];
        let rivals = |others: &[Waiter]| {
            let waiting = others.iter().filter(|other| other.outcome.is_none());
            waiting.filter(|other| !other.on.is_disjoint(&waiter.on)).count()
        };
        let before = rivals(&queue[..at]);
        Standing {
            ticket: waiter.stored.ticket.clone(),
            place: u32::try_from(before + 1).unwrap_or(u32::MAX),
            count: u32::try_from(before + 1 + rivals(&queue[at + 1..])).unwrap_or(u32::MAX),
            why: waiter.why.clone(),
            created: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            match queue.require_room(peer, AGENT) {
                Ok(()) => entered += 1,
                Err(fault) => {
                    assert_eq!(fault.code, Code::QueueFull);
                    break;
                }
            }
            queue.waiters.push(Waiter {
                stored: StoredWaiter {
                    ticket: format!("{uid}-{pid}"),
                    uid,
                    pid,
                    start_ticks: 1,
                    wanted: wanted.clone(),
                },
                watched: Watched::new(std::process::id()),
                on: HashSet::new(),
                why: None,
                outcome: None,
            });
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
