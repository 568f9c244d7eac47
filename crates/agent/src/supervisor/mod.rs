//! The supervisor of slices of the `supervised` isolation level. Several times a second it compares what the devices'
//! drivers say of each process with what its slice has, and acts. docs/adr/0042-supervised.md has the reasons.
//!
//! - [`turn`]: one slice on one device at one look; [`acts`]: what is done to it;
//! - [`register`]: the processes that the kernel vouches for as a slice's;
//! - [`freezer`]: the slices whose processes are stopped;
//! - [`sight`]: the figures of one look;
//! - [`stopped`]: how a stopped process goes on;
//! - [`watchdog`]: the process that lets go on what is stopped where the agent is killed.
//!
//! What is done is decided in [`crate::decide::supervise`], without a clock or a system.

mod acts;
mod freezer;
mod register;
mod sight;
mod stopped;
#[cfg(test)]
mod tests;
mod turn;
mod watchdog;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use divvy_host::Nvidia;
use divvy_model::{Condition, DeviceRecord, Isolation, SliceRecord};

use crate::decide::supervise::dead::{Charged, Dead, Finding};
use crate::journal::Journal;
use crate::leasing::{Charge, Leasing, monotonic};
use crate::life::members::Members;
use crate::life::slice::Slice;
use crate::start::rundir::{KeepCommand, RunDir};
use crate::start::settings::Current;
use crate::state::Shared;
use freezer::Freezer;
use register::{Register, Slices};
use sight::{OfSlice, Sight};
use turn::{Account, Turn};
use watchdog::Watchdog;
pub(crate) use watchdog::{WATCHDOG, watch};

/// The pause between looks where no slice has too much.
const CALM: Duration = Duration::from_millis(250);
/// The same where one has too much, or is frozen.
const ALERT: Duration = Duration::from_millis(100);
/// The same where processes that ended used some of a device, and it is not known whose they were.
const HUNT: Duration = Duration::from_millis(20);
/// For how long looks stay that fast after a figure of a process that no look found alive, in nanoseconds.
const HUNTED: u64 = 2_000_000_000;
/// How often all processes of supervised slices are noted, in nanoseconds: one that ends its `divvy run` later is still
/// known to be the slice's.
const NOTED: u64 = 1_000_000_000;

/// The supervisor.
pub(crate) struct Supervisor {
    pub run: RunDir,
    /// The command that starts the watchdog.
    pub keep: KeepCommand,
    pub nvidia: Arc<Nvidia>,
    pub settings: Arc<Current>,
    pub state: Shared,
    pub leasing: Arc<Leasing>,
    pub members: Arc<Members>,
    pub journal: Arc<Journal>,
    /// What earlier looks saw.
    pub known: Mutex<Known>,
    /// The ids of the slices that are frozen, or pay back what they took.
    pub frozen: Mutex<HashSet<String>>,
    /// Processes that were ended.
    pub ended: AtomicU64,
    /// Freezes of slices.
    pub freezes: AtomicU64,
    /// This agent ends: nothing is stopped any more.
    pub ends: AtomicBool,
}

/// What earlier looks saw.
#[derive(Debug, Default)]
pub(crate) struct Known {
    register: Register,
    freezer: Option<Freezer>,
    /// By slice and device.
    accounts: HashMap<(String, String), Account>,
    /// The use by processes that have ended, by device.
    dead: HashMap<String, Dead>,
    /// Until then, looks come fast.
    hunts_until: u64,
    noted_at: u64,
    has_looked: bool,
    /// The supervised slices of the last look, and those before that have ended while processes of theirs live.
    records: Vec<SliceRecord>,
}

impl Supervisor {
    /// Looks once. Returns the pause until the next look.
    pub fn look(&self) -> Duration {
        let mut known = self.lock();
        let known = &mut *known;
        if self.ends.load(Relaxed) {
            return CALM;
        }
        let is_adopted = !std::mem::replace(&mut known.has_looked, true);
        let (records, devices) = self.slices(!known.records.is_empty());
        let freezer = known
            .freezer
            .get_or_insert_with(|| Freezer::open(self.run.clone(), Watchdog::new(self.keep)));
        known.register.settle();
        // Processes that outlive their slice have a limit of nothing.
        let is_there = |record: &SliceRecord| records.iter().any(|other| other.id == record.id);
        let mut ended = std::mem::take(&mut known.records);
        ended.retain(|record| !is_there(record) && known.register.has(&record.id));
        let supervised: Vec<&SliceRecord> = records
            .iter()
            .filter(|record| is_supervised(record))
            .chain(&ended)
            .collect();
        known.records = supervised.iter().map(|record| (*record).clone()).collect();
        known.accounts.retain(|(slice, device), _| {
            supervised
                .iter()
                .any(|record| record.id == *slice && record.shares.on(device).is_some())
        });
        // Nothing stays stopped for a slice that has ended or is no longer supervised.
        for id in freezer.ids() {
            if !known.accounts.keys().any(|(slice, _)| *slice == id) {
                freezer.release(&id);
            }
        }
        if supervised.is_empty() {
            known.register = Register::default();
            known.dead.clear();
            self.show_frozen(freezer, &known.accounts);
            return CALM;
        }
        let at = monotonic();
        let slices = Slices::of(&records, &self.members);
        if at.saturating_sub(known.noted_at) >= NOTED {
            known.noted_at = at;
            for record in supervised.iter().filter(|record| is_there(record)) {
                let _noted = known.register.members(record, &slices);
            }
        }
        let charges = self.leasing.charges();
        let mut pause = CALM;
        for device in &devices {
            let on_it = |record: &&&SliceRecord| record.shares.on(&device.uuid).is_some();
            let on_it: Vec<&SliceRecord> = supervised.iter().filter(on_it).copied().collect();
            if on_it.is_empty() {
                continue;
            }
            // The driver does not answer: the last look's result stands, and what is frozen stays so.
            let Some(sight) = Sight::of(&self.nvidia, self.run.path(), device) else {
                continue;
            };
            let sight = sight.sorted(|pid| known.register.whose(pid, &slices));
            let of_dead = sight
                .dead
                .as_ref()
                .map_or_else(Finding::default, |(dead, living)| {
                    let on_it = charges.iter().filter(|charge| charge.device_uuid == device.uuid);
                    let on_it: Vec<Charged> = on_it.map(Charged::from).collect();
                    let of_device = known.dead.entry(device.uuid.clone()).or_default();
                    of_device.look(monotonic(), *dead, living, &on_it)
                });
            if of_dead.hunts || sight.missed_some {
                known.hunts_until = at.saturating_add(HUNTED);
            }
            for record in on_it {
                let account = known
                    .accounts
                    .entry((record.id.clone(), device.uuid.clone()))
                    .or_default();
                let mut turn = Turn {
                    supervisor: self,
                    record,
                    device,
                    account,
                    register: &mut known.register,
                    freezer,
                    slices: &slices,
                    is_adopted,
                    has_ended: !is_there(record),
                };
                let nothing = OfSlice::default();
                let seen = sight.by_slice.get(&record.id).unwrap_or(&nothing);
                let is_alert = turn.memory(seen);
                let charge = charges
                    .iter()
                    .find(|charge| charge.slice_id == record.id && charge.device_uuid == device.uuid);
                let dead = of_dead.bills.get(&record.id).copied().unwrap_or(0);
                let is_watched = turn.time(seen, dead, charge);
                if is_alert || is_watched {
                    pause = ALERT;
                }
            }
        }
        for id in freezer.ids() {
            let mut accounts = known.accounts.iter().filter(|((slice, _), _)| *slice == id);
            if !accounts.any(|(_, account)| account.is_frozen.contains(&true)) {
                freezer.release(&id);
            }
        }
        self.show_frozen(freezer, &known.accounts);
        if at < known.hunts_until { HUNT } else { pause }
    }

    /// Lets everything go on, because this agent ends.
    pub fn release(&self) {
        let mut known = self.lock();
        // A look that waits for the lock stops nothing again.
        self.ends.store(true, Relaxed);
        if let Some(freezer) = &mut known.freezer {
            freezer.release_all();
        }
    }

    /// The notes on a slice.
    pub fn conditions(&self, id: &str) -> Option<Condition> {
        let frozen = self.frozen.lock().unwrap_or_else(PoisonError::into_inner);
        frozen.contains(id).then_some(Condition::Frozen)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes which slices are frozen, or pay back what they took.
    fn show_frozen(&self, freezer: &Freezer, accounts: &HashMap<(String, String), Account>) {
        let paying = accounts
            .iter()
            .filter(|(_, account)| account.time.pays() && !account.is_told[1]);
        let paying = paying.map(|((slice, _), _)| slice.clone());
        let mut frozen = self.frozen.lock().unwrap_or_else(PoisonError::into_inner);
        *frozen = freezer.ids().into_iter().chain(paying).collect();
    }

    /// The slices with a limit, as they are now, and this agent's devices. Programs of the `env` level count as those of
    /// the slice around theirs. Nothing is read where none is supervised, nor was at the last look.
    fn slices(&self, had_some: bool) -> (Vec<SliceRecord>, Vec<DeviceRecord>) {
        let mut state = self.state.lock();
        if !had_some && !state.slices.values().any(|slice| is_supervised(&slice.record)) {
            return (Vec::new(), Vec::new());
        }
        let devices = state.inventory.devices.iter();
        let devices = devices
            .filter(|device| state.owned.contains(&device.uuid))
            .cloned()
            .collect();
        let slices = state.slices.values_mut();
        let limited = slices.filter(|slice| slice.record.terms.isolation != Isolation::Env);
        (limited.map(Slice::shown).collect(), devices)
    }
}

impl From<&Charge> for Charged {
    fn from(charge: &Charge) -> Self {
        Self {
            slice: charge.slice_id.clone(),
            charged: charge.charged,
            is_open: charge.is_open,
        }
    }
}

fn is_supervised(record: &SliceRecord) -> bool {
    record.terms.isolation == Isolation::Supervised
}
