//! Compute: brings the arbiter's leases to the slices. docs/adr/0025 gives the reasons, docs/adr/0023 defines the
//! words.
//!
//! - [`State`]: the arbiter, and the slices' pages beside its tenants. It knows no clock and no thread.
//! - [`doorbell`]: a thread for each account, which looks when a tenant rings; [`alarm`]: the thread that acts by the
//!   clock; [`pidfd_watcher`]: the thread that notices deaths. Each takes the lock, acts, and reports events.
//! - [`figures`]: each slice's recent use; [`metered`]: the driver's figures of that use.
//!
//! A thread that holds the agent's state may take this lock. A thread that holds this lock may not take the state's.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use divvy_arbiter::{Nanos, Settings, Terms};
use divvy_ledger::attach::Pages;

use crate::journal::Journal;
use crate::lookout::wanted::Wanted;

mod account;
mod alarm;
mod audit;
mod charges;
mod decide;
mod doorbell;
mod figures;
mod leaseholder;
mod listener;
mod look;
mod meter;
mod metered;
mod pidfd_watcher;
mod shares;
mod state;
mod thrash;
mod uncharged;
mod views;

pub(crate) use charges::Charge;
use listener::ListenerHandle;
pub(crate) use meter::{Meter, Use};
use pidfd_watcher::PidfdWatcher;
use state::State;

#[cfg(test)]
mod tests;

/// A slice that is to lease its devices.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// The slice's id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its user.
    pub uid: u32,
    /// The user whose debts it takes over and leaves.
    pub account: u32,
    /// Its devices by UUID, in order.
    pub devices: Vec<String>,
    /// Its pages, an account for each device.
    pub pages: Arc<Vec<Pages>>,
    /// Its promise on each device, less the parts of nested slices.
    pub terms: Terms,
}

/// The leases of all devices, and the threads that serve them.
#[derive(Debug)]
pub(crate) struct Leasing {
    locked: Mutex<Locked>,
    /// The alarm must ring earlier than it plans.
    earlier: Condvar,
    journal: Arc<Journal>,
    /// Watches processes, where it could be started.
    watcher: Option<Arc<PidfdWatcher>>,
    /// The devices that tenants want looked at.
    wanted: Arc<Wanted>,
}

#[derive(Debug)]
struct Locked {
    state: State,
    /// When the alarm's thread wakes; 0 while it is awake.
    alarm_at: Nanos,
    /// Leasing has ended.
    ended: bool,
}

/// Raises the calling thread's priority, where the agent may: it works for microseconds, and tenants that compute wait
/// for it.
pub(crate) fn hurry() {
    const NICE: i32 = -10;
    let _as_before = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
}

/// The clock of leases: nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn monotonic() -> Nanos {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(now.tv_nsec as u64)
}

impl Leasing {
    /// Leasing with quantums of this length, which must be within the allowed range.
    pub fn start(settings: Settings, journal: Arc<Journal>) -> Arc<Self> {
        let watcher = PidfdWatcher::start()
            .map_err(|error| tracing::warn!(%error, "cannot watch processes; the dead are looked for by the clock"))
            .ok();
        let leasing = Arc::new(Self {
            locked: Mutex::new(Locked {
                state: State::new(settings, monotonic()),
                alarm_at: 0,
                ended: false,
            }),
            earlier: Condvar::new(),
            journal,
            watcher,
            wanted: Arc::default(),
        });
        if let Err(error) = alarm::start(Arc::downgrade(&leasing)) {
            // Doorbells are heard all the same, and gates that no agent opens open themselves.
            tracing::error!(%error, "cannot start the thread of the leases");
        }
        leasing
    }

    /// Has these slices lease their devices, and no others.
    pub fn sync(self: &Arc<Self>, members: Vec<Member>) {
        let listeners: Vec<Arc<ListenerHandle>> = self.with(|state, now| {
            state.sync(members, now);
            let mut listeners = Vec::new();
            for (number, leaseholder) in &mut state.leaseholders {
                for (place, account) in leaseholder.accounts.iter_mut().enumerate() {
                    if account.listener.is_none() {
                        let listener = Arc::new(ListenerHandle::new(
                            *number,
                            leaseholder.member.uid,
                            leaseholder.member.pages.clone(),
                            place,
                            leaseholder.member.devices.get(place).cloned().unwrap_or_default(),
                        ));
                        // Processes that came before the listener, under an earlier agent.
                        listener.came(&account.host_pids());
                        account.listener = Some(listener.clone());
                        listeners.push(listener);
                    }
                }
            }
            listeners
        });
        // The alarm sleeps long where there is no slice.
        let mut locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        locked.alarm_at = 0;
        self.earlier.notify_one();
        drop(locked);
        for listener in listeners {
            if let Err(error) = doorbell::listen(&listener, Arc::downgrade(self)) {
                // It is looked at ten times a second all the same.
                tracing::error!(%error, "cannot start a thread that listens to a slice");
            }
        }
    }

    /// The devices that tenants want looked at.
    pub fn wanted(&self) -> &Arc<Wanted> {
        &self.wanted
    }

    /// A slice's doorbell rang.
    fn look(&self, number: u64) -> u32 {
        self.with(|state, now| {
            state.look(number, now);
            state.crowd(number)
        })
    }

    /// Does something, has the alarm ring earlier where it must, and reports the incidents.
    fn with<T>(&self, work: impl FnOnce(&mut State, Nanos) -> T) -> T {
        let (answer, incidents) = {
            let mut locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
            let answer = work(&mut locked.state, monotonic());
            if locked.alarm_at != 0 && locked.state.deadline().is_some_and(|at| at < locked.alarm_at) {
                locked.alarm_at = 0;
                self.earlier.notify_one();
            }
            (answer, std::mem::take(&mut locked.state.incidents))
        };
        // The log is written after the lock is released, because a log may be slow.
        for incident in incidents {
            let slice = incident.slice.as_ref().map(|(_, name)| name.as_str());
            if incident.owner.is_none_or(|owner| self.journal.may_tell(owner)) {
                tracing::warn!(
                    slice,
                    device = incident.device,
                    kind = incident.kind.name(),
                    "{}",
                    incident.message
                );
            }
            self.journal.note(incident);
        }
        answer
    }
}

impl Leasing {
    /// Ends the threads. The gates stay as they are.
    pub fn stop(&self) {
        self.wanted.end();
        let mut locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        locked.ended = true;
        let accounts = locked
            .state
            .leaseholders
            .values()
            .flat_map(|leaseholder| &leaseholder.accounts);
        accounts
            .filter_map(|account| account.listener.as_ref())
            .for_each(|listener| listener.end());
        self.earlier.notify_one();
    }
}
