//! The queue: runs that wait for admission, first come, first served.
//!
//! The queue is a file under the run directory, like all of an agent's state: a restarted agent finds every run in its
//! place.

use std::sync::Arc;
use std::time::Instant;

use divvy_host::Nvidia;

use crate::admission::admit::Admission;
use crate::admission::waiters::{StoredWaiter, Waiter};
use crate::decide::queue::{ALL, Ahead, Turn, WaitsFor, turn};
use crate::life::records;
use crate::start::rundir::RunDir;
use crate::state::{Shared, State};
use crate::system::procs::Life;
use crate::system::watched::Watched;

/// Serves the queue.
pub(crate) struct Line {
    pub run: RunDir,
    pub nvidia: Arc<Nvidia>,
    pub state: Shared,
    pub admission: Arc<Admission>,
}

impl Line {
    /// Admits the waiters that can be admitted, in order. No waiter gets what an earlier one waits for. Returns what is
    /// waited for.
    pub fn serve(&self, state: &mut State) -> Ahead {
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
            let outcome = self.admission.try_create(state, peer, wanted, &ahead);
            let refusal = outcome.as_ref().err().map(|fault| fault.code);
            let is_unknown = refusal.is_some() && waiter.watched.life() == Life::Unknown;
            match (turn(refusal, self.nvidia.is_silent(), is_unknown), outcome) {
                (Turn::Waits, Err(fault)) => {
                    let account = state.accounts.one(peer.uid);
                    let devices = || self.admission.placing.candidates(state, wanted);
                    let waits_for = WaitsFor::of(wanted.parent.as_deref(), account, fault.code, devices);
                    ahead.add(&waits_for);
                    waiter.on = waits_for.names();
                    waiter.why = Some(fault);
                }
                (Turn::Undecided, _) => {}
                (_, outcome) => {
                    changed = true;
                    waiter.outcome = Some(outcome);
                }
            }
        }
        state.queue.waiters = queue;
        if changed {
            // The file is written at once: another agent must not serve this waiter again.
            self.store(state);
        }
        ahead
    }

    /// Writes down the waiters, unless that was done a moment ago.
    pub fn store_in_time(&self, state: &mut State) {
        if state.queue.is_to_be_stored() {
            self.store(state);
        }
    }

    /// Writes down what is not written yet, before the agent ends.
    pub fn close(&self) {
        let mut state = self.state.lock();
        if state.queue.unstored {
            self.store(&mut state);
        }
    }

    fn store(&self, state: &mut State) {
        state.queue.unstored = false;
        state.queue.stored_at = Some(Instant::now());
        let waiters = state.queue.waiters.iter();
        let waiting = waiters.filter(|waiter| waiter.outcome.is_none());
        let stored: Vec<&StoredWaiter> = waiting.map(|waiter| &waiter.stored).collect();
        if let Err(fault) = records::store_queue(&self.run, &stored) {
            tracing::warn!("{fault}: {}", fault.causes.join(": "));
        }
    }

    /// Restores the places of those that waited for the agent's predecessor. A process that has died has none.
    pub fn reopen(&self) {
        let stored: Vec<StoredWaiter> = records::stored_queue(&self.run);
        self.state.lock().queue.waiters = stored
            .into_iter()
            .take(ALL)
            .filter_map(|stored| {
                let watched = Watched::again(stored.pid, stored.start_ticks)?;
                Some(Waiter::new(stored, watched))
            })
            .collect();
    }
}
