//! The supervisor of slices of the `supervised` isolation level. Several times a second it compares what the devices'
//! drivers say of each process with what its slice has, and acts. docs/adr/0042-supervised.md has the reasons.
//!
//! - [`account`]: what looks found of slices on devices; [`turn`]: one of them at one look; [`acts`]: what is done to it;
//! - [`register`]: the processes that the kernel vouches for as a slice's; [`slices`]: what it says at one look;
//! - [`freezer`]: the slices whose processes are stopped;
//! - [`opens`]: whether a process has the device open at all;
//! - [`sight`]: the figures of one look;
//! - [`stopped`]: how a stopped process goes on;
//! - [`tracers`]: what keeps a killed process from its end;
//! - [`watchdog`]: the process that lets go on what is stopped where the agent is killed.
//!
//! What is done is decided in [`crate::decide::supervise`], without a clock or a system.

mod account;
mod acts;
mod freezer;
mod opens;
mod register;
mod sight;
mod slices;
mod stopped;
#[cfg(test)]
mod tests;
mod tracers;
mod turn;
mod watchdog;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use divvy_host::Nvidia;
use divvy_model::{Condition, DeviceRecord, Isolation, SliceRecord};

use crate::api::events::EventKind;
use crate::decide::supervise::dead::{Charged, Dead, Finding};
use crate::journal::Journal;
use crate::leasing::{Charge, Leasing};
use crate::life::members::Members;
use crate::life::slice::Slice;
use crate::start::rundir::{KeepCommand, RunDir};
use crate::start::settings::Current;
use crate::state::Shared;
use account::{Account, Accounts, SILENT};
use freezer::Freezer;
use opens::Opens;
use register::Register;
use sight::{OfSlice, Sight};
use slices::Slices;
use tracers::Killed;
use turn::Turn;
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
/// How seldom all processes of supervised slices are noted at most, in nanoseconds: one that ends its `divvy run` later is
/// still known to be the slice's. Each look does so where a walk over all processes is cheap.
const NOTED: u64 = 1_000_000_000;
/// A walk over all processes may cost one part in so many of a processor.
const NOTED_PART: u32 = 20;

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
    /// The clock, in nanoseconds.
    pub clock: fn() -> u64,
    /// The numbers of this machine's GPUs' nodes.
    pub nodes: fn() -> HashSet<u64>,
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
    killed: Killed,
    accounts: Accounts,
    /// The use by processes that have ended, by device.
    dead: HashMap<String, Dead>,
    /// The use of all processes together at the last look, by device, as far as the driver tells it in all.
    totals: HashMap<String, u64>,
    /// Until then, looks come fast.
    hunts_until: u64,
    /// From then on, all processes of supervised slices are noted again.
    notes_at: u64,
    /// The supervised slices of the last look, and those before that have ended while processes of theirs live.
    records: Vec<SliceRecord>,
}

/// The figures of a device at one look.
struct Seen<'a> {
    device: &'a DeviceRecord,
    /// None where the driver does not answer.
    sight: Option<Sight>,
    charges: Vec<Charge>,
    /// When that was, in nanoseconds.
    at: u64,
}

impl Supervisor {
    /// Opens the accounts of the slices that an earlier agent made, before this one makes any: those have its indulgence
    /// for what was launched earlier, and a slice that begins before the first look has none.
    pub fn begin(&self) {
        let (records, _) = self.slices(true);
        let supervised: Vec<&SliceRecord> = records.iter().filter(|record| is_supervised(record)).collect();
        self.lock().accounts.keep(&supervised, (self.clock)(), &self.run);
    }

    /// Notes what a slice has now. It comes before a resize: a slice that began since the last look has no account, and would be
    /// taken for one that never had more.
    pub fn note_limits(&self, record: &SliceRecord) {
        if is_supervised(record) {
            self.lock()
                .accounts
                .note_limits(record, (self.clock)(), &self.run);
        }
    }

    /// Looks once. Returns the pause until the next look.
    pub fn look(&self) -> Duration {
        let before: Vec<SliceRecord> = {
            let mut known = self.lock();
            if self.ends.load(Relaxed) {
                return CALM;
            }
            // What an earlier agent had stopped goes on at once, whether the driver answers or not.
            self.freezer(&mut known);
            known.records.clone()
        };
        let (records, devices) = self.slices(!before.is_empty());
        let looked_at: BTreeSet<&str> = records
            .iter()
            .filter(|record| is_supervised(record))
            .chain(&before)
            .flat_map(|record| record.shares.iter())
            .map(|share| share.device_uuid.as_str())
            .collect();
        let devices = devices.iter();
        // A driver may take seconds to answer, and an agent that ends must not wait for it: nothing is locked meanwhile.
        let seen: Vec<Seen<'_>> = devices
            .filter(|device| looked_at.contains(device.uuid.as_str()))
            .map(|device| Seen {
                device,
                sight: Sight::of(&self.nvidia, self.run.path(), device),
                charges: self.leasing.charges(),
                at: (self.clock)(),
            })
            .collect();
        // A slice within another may have begun meanwhile: its processes are not the outer one's.
        let (records, _) = self.slices(!before.is_empty());
        self.judge(&records, seen)
    }

    /// Compares the figures with what the slices have, and acts. Returns the pause until the next look.
    fn judge(&self, records: &[SliceRecord], seen: Vec<Seen<'_>>) -> Duration {
        let mut known = self.lock();
        if self.ends.load(Relaxed) {
            return CALM;
        }
        self.freezer(&mut known);
        let known = &mut *known;
        let Some(freezer) = &mut known.freezer else {
            return CALM;
        };
        known.register.settle();
        known.killed.settle((self.clock)());
        // Processes that outlive their slice have a limit of nothing.
        let is_there = |record: &SliceRecord| records.iter().any(|other| other.id == record.id);
        let mut ended = std::mem::take(&mut known.records);
        ended.retain(|record| !is_there(record));
        // What an inner slice left behind is the outer one's, which gave it that.
        for record in &ended {
            let outer = record.parent_id.as_ref();
            let is_outer = |other: &&SliceRecord| Some(&other.id) == outer && is_supervised(other);
            if let Some(outer) = records.iter().find(is_outer) {
                known.register.hand_over(&record.id, outer);
            }
        }
        ended.retain(|record| known.register.has(&record.id));
        let supervised: Vec<&SliceRecord> = records
            .iter()
            .filter(|record| is_supervised(record))
            .chain(&ended)
            .collect();
        known.records = supervised.iter().map(|record| (*record).clone()).collect();
        let at = (self.clock)();
        let judged_at = at;
        known.accounts.keep(&supervised, at, &self.run);
        // Nothing stays stopped for a slice that has ended or is no longer supervised.
        for id in freezer.ids() {
            if !known.accounts.all.keys().any(|(slice, _)| *slice == id) {
                freezer.release(&id);
            }
        }
        if supervised.is_empty() {
            known.register = Register::default();
            known.dead.clear();
            known.totals.clear();
            self.show_frozen(freezer, &known.accounts.all);
            return CALM;
        }
        let slices = Slices::of(records, &self.members);
        if at >= known.notes_at {
            for record in &supervised {
                let _noted = known.register.members(record, &slices);
            }
            let pause = u64::try_from((slices.took() * NOTED_PART).as_nanos());
            known.notes_at = at.saturating_add(pause.unwrap_or(NOTED).min(NOTED));
        }
        // Where one driver does not answer, what it would tell of is not known.
        let asked = seen
            .iter()
            .map(|seen| seen.sight.as_ref().map(|sight| sight.asked));
        let asked = asked.min().flatten();
        let mut pause = if ended.is_empty() { CALM } else { ALERT };
        for Seen {
            device,
            sight,
            charges,
            at,
        } in seen
        {
            let on_it = |record: &&&SliceRecord| record.shares.on(&device.uuid).is_some();
            let on_it: Vec<&SliceRecord> = supervised.iter().filter(on_it).copied().collect();
            if on_it.is_empty() {
                continue;
            }
            // The driver does not answer: the last look's result stands for a while, and what is frozen stays so.
            let Some(sight) = sight else {
                for record in on_it {
                    let of = (record.id.clone(), device.uuid.clone());
                    if let Some(account) = known.accounts.all.get_mut(&of) {
                        account.memory.miss();
                    }
                }
                continue;
            };
            let total = sight.total();
            let is_told = known.totals.insert(device.uuid.clone(), total) != Some(total);
            let opens = Opens::of(self.run.path(), device, self.nodes);
            let sight = sight.sorted(|pid, told| known.register.whose(pid, told, &slices, &opens));
            let of_dead = sight
                .dead
                .as_ref()
                .map_or_else(Finding::default, |(dead, living)| {
                    let on_it = charges.iter().filter(|charge| charge.device_uuid == device.uuid);
                    let is_untrue = |charge: &Charge| {
                        let of = (charge.slice_id.clone(), device.uuid.clone());
                        let account = known.accounts.all.get(&of);
                        account.is_some_and(|account| account.time.is_untrue())
                    };
                    let on_it: Vec<Charged> =
                        on_it.map(|charge| explains(charge, is_untrue(charge))).collect();
                    let of_device = known.dead.entry(device.uuid.clone()).or_default();
                    of_device.look(at, *dead, living, &on_it)
                });
            if of_dead.hunts || sight.missed_some {
                known.hunts_until = at.saturating_add(HUNTED);
            }
            for record in on_it {
                let of = (record.id.clone(), device.uuid.clone());
                let Some(account) = known.accounts.all.get_mut(&of) else {
                    continue;
                };
                // Another device's driver may have answered much later than this one's.
                account.seen_at = judged_at;
                let mut turn = Turn {
                    supervisor: self,
                    record,
                    device,
                    account,
                    register: &mut known.register,
                    freezer,
                    killed: &mut known.killed,
                    slices: &slices,
                    at,
                    has_ended: !is_there(record),
                    is_told,
                };
                let nothing = OfSlice::default();
                let seen = sight.by_slice.get(&record.id).unwrap_or(&nothing);
                let ends_in = turn.memory(seen);
                let charge = charges
                    .iter()
                    .find(|charge| charge.slice_id == record.id && charge.device_uuid == device.uuid);
                let dead = of_dead.bills.get(&record.id).copied().unwrap_or(0);
                let is_watched = turn.time(seen, dead, charge);
                if ends_in.is_some() || is_watched {
                    pause = pause.min(ALERT);
                }
                // Not a whole pause later: the limit holds for as long as is promised on a busy machine too.
                if let Some(ends_in) = ends_in.filter(|ends_in| !ends_in.is_zero()) {
                    pause = pause.min(ends_in.max(HUNT));
                }
            }
        }
        if let Some(asked) = asked {
            known.register.forget_unnamed(asked);
        }
        if known.killed.is_awaited(at) {
            pause = HUNT;
        }
        self.let_silent_go(&mut known.accounts, &supervised, at);
        for id in freezer.ids() {
            let mut accounts = known.accounts.all.iter().filter(|((slice, _), _)| *slice == id);
            if !accounts.any(|(_, account)| account.is_frozen.contains(&true)) {
                freezer.release(&id);
            }
        }
        self.show_frozen(freezer, &known.accounts.all);
        if at < known.hunts_until { HUNT } else { pause }
    }

    /// The agent's freezer. The first one lets go on what an earlier agent had stopped.
    fn freezer(&self, known: &mut Known) {
        known
            .freezer
            .get_or_insert_with(|| Freezer::open(self.run.clone(), Watchdog::new(self.keep)));
    }

    /// Has slices go on whose device gives no figure any more, or is no longer this agent's: nothing would ever say that
    /// they have paid.
    fn let_silent_go(&self, accounts: &mut Accounts, supervised: &[&SliceRecord], at: u64) {
        for (slice, device) in accounts.let_silent_go(at) {
            let seconds = SILENT / 1_000_000_000;
            let message =
                format!("device {device} has given no figure for {seconds} seconds: its processes go on");
            if let Some(record) = supervised.iter().find(|record| record.id == slice) {
                if self.journal.may_log(record.uid) {
                    tracing::warn!(slice = record.name, "{message}");
                }
                self.journal.tell_run(EventKind::Thawed, record, None, message);
            }
        }
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

/// For what is billed to slices for their dead: `is_untrue` says which slices lied about their launches.
fn explains(charge: &Charge, is_untrue: bool) -> Charged {
    Charged {
        slice: charge.slice_id.clone(),
        charged: charge.charged,
        outlasted: if is_untrue { 0 } else { charge.outlasted },
        is_open: charge.is_open,
    }
}

fn is_supervised(record: &SliceRecord) -> bool {
    record.terms.isolation == Isolation::Supervised
}
