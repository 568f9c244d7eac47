//! The supervisor of slices of the `supervised` isolation level. Several times a second it compares what the devices'
//! drivers say of each process with what its slice has, and acts. docs/adr/0042-supervised.md has the reasons.
//!
//! - [`register`]: the processes that the kernel vouches for as a slice's;
//! - [`freezer`]: the slices whose processes are stopped;
//! - [`sight`]: the figures of one look;
//! - [`stopped`]: how a stopped process goes on;
//! - [`watchdog`]: the process that lets go on what is stopped where the agent is killed.
//!
//! What is done is decided in [`crate::decide::supervise`], without a clock or a system.

mod freezer;
mod register;
mod sight;
mod stopped;
#[cfg(test)]
mod tests;
mod watchdog;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use divvy_host::Nvidia;
use divvy_model::{Bytes, Condition, DeviceRecord, Isolation, OnOveruse, SliceRecord};
use rustix::process::Signal;

use crate::api::events::EventKind;
use crate::decide::supervise::ProcessId;
use crate::decide::supervise::dead::{Charged, Dead, Finding};
use crate::decide::supervise::memory::{self, Memory, Target};
use crate::decide::supervise::time::{self, Step, Time};
use crate::journal::Journal;
use crate::leasing::{Charge, Leasing, monotonic};
use crate::life::members::Members;
use crate::life::slice::Slice;
use crate::start::rundir::{KeepCommand, RunDir};
use crate::start::settings::Settings;
use crate::state::Shared;
use crate::system::procs;
use freezer::Freezer;
use register::{Register, Slices};
use sight::{OfSlice, Sight};
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
/// How often the processes of a slice that is to be ended as a whole are looked for.
const ROUNDS: usize = 16;

/// The supervisor.
pub(crate) struct Supervisor {
    pub run: RunDir,
    /// The command that starts the watchdog.
    pub keep: KeepCommand,
    pub nvidia: Arc<Nvidia>,
    pub settings: Arc<Settings>,
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

#[derive(Debug, Default)]
struct Account {
    memory: Memory,
    time: Time,
    /// It is frozen for its memory, or for its time.
    is_frozen: [bool; 2],
    /// It was reported that it has too much memory, or time.
    is_told: [bool; 2],
    /// It was reported that it is not seen.
    is_blind: bool,
    limit: Bytes,
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

/// One slice on one device at one look.
struct Turn<'a> {
    supervisor: &'a Supervisor,
    record: &'a SliceRecord,
    device: &'a DeviceRecord,
    account: &'a mut Account,
    register: &'a mut Register,
    freezer: &'a mut Freezer,
    slices: &'a Slices<'a>,
    /// This is the first look of this agent: it made none of the slices.
    is_adopted: bool,
    /// The slice has ended, and processes of it live.
    has_ended: bool,
}

impl Turn<'_> {
    /// Compares its memory with its limit. Returns whether it is beyond that, or frozen for that.
    fn memory(&mut self, seen: &OfSlice) -> bool {
        let Some(share) = self.record.shares.on(&self.device.uuid) else {
            return false;
        };
        self.note_blind(seen.is_blind);
        let limit = match self.has_ended {
            true => Bytes(0),
            false => Bytes(share.granted().0.saturating_add(share.spill_limit_bytes.0)),
        };
        if self.is_adopted && share.memory_used_bytes > share.granted() {
            // An earlier agent resized it to less than its ledger has.
            let held = seen
                .held
                .iter()
                .fold(0_u64, |sum, (_, held)| sum.saturating_add(held.0));
            self.account.memory.allow_what_is_held(Bytes(held));
        }
        self.account.limit = limit;
        let processes: Vec<memory::Held> = seen
            .held
            .iter()
            .map(|(id, memory)| memory::Held {
                id: *id,
                memory: *memory,
                accounted: self.accounted(id.pid),
            })
            .collect();
        let context = self.supervisor.settings.limits(self.device).context;
        let found = self.account.memory.look(&memory::Look {
            at: monotonic(),
            limit,
            accounted: if self.has_ended {
                Bytes(0)
            } else {
                share.memory_used_bytes
            },
            context,
            processes: &processes,
        });
        for id in &found.unending {
            let message = format!(
                "process {} ({}) was to be ended and is still there: the system does not end it now, or it is another \
                 user's",
                id.pid,
                procs::command(id.pid)
            );
            self.tell(EventKind::OveruseReported, Some(*id), message);
        }
        if found.beyond.is_zero() {
            if std::mem::take(&mut self.account.is_frozen[0]) {
                self.tell(
                    EventKind::Thawed,
                    None,
                    "it holds no more than its limit again".into(),
                );
            }
            self.account.is_told[0] = false;
        }
        if let Some(target) = found.end {
            match self.record.terms.on_overuse {
                OnOveruse::End => self.end(target, found.beyond, &processes),
                OnOveruse::Freeze => {
                    if !self.account.is_frozen[0] {
                        self.supervisor.freezes.fetch_add(1, Relaxed);
                        let message = format!(
                            "its processes hold {} beyond its limit: they stand still until it is larger, or they are ended",
                            found.beyond
                        );
                        self.tell(EventKind::Frozen, None, message);
                    }
                    self.freeze(0, seen);
                }
                OnOveruse::Report => {
                    self.report(0, format!("its processes hold {} beyond its limit", found.beyond));
                }
            }
        }
        !found.beyond.is_zero()
    }

    /// Compares its time with its charge and its share. Returns whether it is suspected, or in debt.
    /// `dead` is what is billed to it for processes that have ended, in nanoseconds.
    fn time(&mut self, seen: &OfSlice, dead: u64, charge: Option<&Charge>) -> bool {
        let Some(charge) = charge else {
            // It is shared in another way than by leases.
            self.account.is_frozen[1] = false;
            self.account.time = Time::default();
            return false;
        };
        let pays = self.account.time.pays();
        let step = self.account.time.look(&time::Look {
            at: monotonic(),
            used: &seen.used,
            dead,
            charged: charge.charged,
            share: charge.share,
            counts: charge.counts,
            is_open: charge.is_open,
        });
        let on_overuse = self.record.terms.on_overuse;
        match step {
            Step::Nothing => {}
            Step::Thaw => {
                self.account.is_frozen[1] = false;
                if !self.account.is_frozen[0] {
                    self.freezer.release(&self.record.id);
                }
            }
            Step::Freeze(_) | Step::Fails if on_overuse == OnOveruse::Report => {
                self.report(
                    1,
                    "its processes use the device past the gate, beyond its share".into(),
                );
            }
            Step::Freeze(_) => self.freeze(1, seen),
            Step::Fails if on_overuse == OnOveruse::End && !seen.used.is_empty() => {
                let using = seen.used.iter().map(|(id, _)| *id).collect();
                let why = "is ended: it uses the device on and on, though its slice is frozen";
                self.end_these(using, why);
            }
            Step::Fails => self.report(
                1,
                "it is frozen, and its processes use the device on and on".into(),
            ),
        }
        // A slice that pays is frozen several times a second: that is told once.
        match (pays, self.account.time.pays(), step) {
            (false, true, Step::Freeze(owed)) if on_overuse != OnOveruse::Report => {
                self.supervisor.freezes.fetch_add(1, Relaxed);
                let ms = owed / 1_000_000;
                let message = format!(
                    "its processes used {ms} ms of the device beyond its share, past the gate: they stand still until that \
                     is paid back"
                );
                self.tell(EventKind::Frozen, None, message);
            }
            (true, false, _) => {
                self.account.is_told[1] = false;
                if on_overuse != OnOveruse::Report {
                    let message = "it has paid back the time that it took, and took no more since";
                    self.tell(EventKind::Thawed, None, message.into());
                }
            }
            _ => {}
        }
        self.account.time.is_watched()
    }

    fn accounted(&self, pid: u32) -> Bytes {
        let mut processes = self.record.processes.iter();
        let known = processes.find(|process| process.pid == pid);
        known.map_or(Bytes(0), |process| process.memory_used_bytes)
    }

    fn end(&mut self, target: Target, beyond: Bytes, processes: &[memory::Held]) {
        let limit = self.account.limit;
        let why =
            format!("is ended: its slice held {beyond} beyond its limit of {limit} for more than a second");
        match target {
            Target::One(id) => self.end_these(vec![id], &why),
            Target::Holders(ids) => self.end_these(ids, &why),
            Target::All => {
                // What is stopped starts no other.
                let using: Vec<ProcessId> = processes.iter().map(|held| held.id).collect();
                self.freezer.stop(self.record, self.register, self.slices, &using);
                // A killed process is there for a moment more.
                let mut ended: HashSet<ProcessId> = HashSet::new();
                for _ in 0..ROUNDS {
                    let mut all = self.register.members(self.record, self.slices);
                    all.extend(
                        using
                            .iter()
                            .filter(|id| !all.contains(id))
                            .copied()
                            .collect::<Vec<_>>(),
                    );
                    all.retain(|id| ended.insert(*id) && procs::start_ticks(id.pid) == Some(id.start_ticks));
                    if all.is_empty() {
                        break;
                    }
                    self.end_these(all, &why);
                }
                self.freezer.release(&self.record.id);
            }
        }
    }

    /// Ends these processes. The event comes first: a `divvy run` that waits for one of them asks as soon as that ends.
    fn end_these(&mut self, ids: Vec<ProcessId>, why: &str) {
        self.account.memory.note_end(ids.iter().copied(), monotonic());
        for id in ids {
            // One that has become another user's is told of as one that does not end.
            let may = self
                .register
                .get(id)
                .is_some_and(|vouched| vouched.may_be_signalled(id));
            if !may {
                continue;
            }
            let message = format!("process {} ({}) {why}", id.pid, procs::command(id.pid));
            self.tell(EventKind::OveruseEnded, Some(id), message);
            let ended = self
                .register
                .get(id)
                .is_some_and(|vouched| vouched.signal(id, Signal::KILL));
            if ended {
                self.supervisor.ended.fetch_add(1, Relaxed);
            }
        }
    }

    /// Stops its processes, and those that came since the last look.
    fn freeze(&mut self, reason: usize, seen: &OfSlice) {
        self.account.is_frozen[reason] = true;
        let using: Vec<ProcessId> = seen.used.iter().map(|(id, _)| *id).collect();
        self.freezer.stop(self.record, self.register, self.slices, &using);
    }

    /// Reports once that it has too much memory, or time.
    fn report(&mut self, which: usize, message: String) {
        if !std::mem::replace(&mut self.account.is_told[which], true) {
            self.tell(EventKind::OveruseReported, None, message);
        }
    }

    /// Reports once that the driver gives no figure of one of its processes.
    fn note_blind(&mut self, is_blind: bool) {
        if is_blind && !std::mem::replace(&mut self.account.is_blind, true) {
            let message = "the device's driver does not say what its processes hold: they are not supervised";
            self.tell(EventKind::OveruseReported, None, message.into());
        }
    }

    fn tell(&self, kind: EventKind, id: Option<ProcessId>, message: String) {
        let journal = &self.supervisor.journal;
        if journal.may_log(self.record.uid) {
            tracing::warn!(slice = self.record.name, kind = kind.name(), "{message}");
        }
        let run = id.and_then(|id| self.register.get(id)?.run);
        journal.tell_run(kind, self.record, run, message);
    }
}
