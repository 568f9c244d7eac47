//! A slice in the agent's hands: its record, its pages, its page server and the runs that joined it.

use std::collections::HashMap;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use divvy_ledger::Refusals;
use divvy_ledger::attach::Pages;
use divvy_model::{
    Bytes, ComputeTerms, Condition, DeviceRecord, DeviceShare, Fault, Isolation, LifetimeAnchor,
    ProcessRecord, RunRecord, SliceRecord, SliceState, WorkerRecord,
};

use crate::decide::admission::Hold;
use crate::decide::held::HeldMode;
use crate::decide::overhead::{Audited, Seen, Why};
use crate::life::anchor::OpenAnchor;
use crate::life::known::Known;
use crate::life::lives::Lives;
use crate::life::pages::{self, Bounds, Usage};
use crate::life::programs::named;
use crate::system::allowance::Allowance;
use crate::system::in_slice::in_slice;
use crate::system::procs;
use crate::system::watched::Watched;

/// A slice the agent looks after.
#[derive(Debug)]
pub struct Slice {
    /// The stored record. Usage in it is stale; [`Slice::shown`] has the present one.
    pub record: SliceRecord,
    /// Its pages, an account for each of its devices, once its page server has them.
    pub pages: Option<Arc<Vec<Pages>>>,
    /// The fault of its pages, if any.
    pub damage: Option<Fault>,
    /// The reason why its pages could not be recalled from its page server so far, if so. They are asked for again.
    pub missing: Option<Fault>,
    /// Its part of compute among the others, once that was computed.
    pub terms: Option<divvy_arbiter::Terms>,
    /// For a slice without pages: the processes that use it, and when they were looked for.
    found: Option<(Vec<Watched>, Instant)>,
    /// Whether the last look for those could not see all: nothing is given up for what it did not see.
    blind: bool,
    /// The state on each of its devices, in order.
    accounts: Vec<Account>,
    /// The known processes in its ledgers.
    known: Known,
    /// The processor time that looks at its pages may cost.
    allowance: Allowance,
    page_server: Option<Watched>,
    /// The page server of a lasting slice that this agent started: our child, to be reaped.
    child: Option<Child>,
    /// The process that starts its workers, as in the record.
    worker: Option<Watched>,
    /// Its lifetime anchor, as in the record.
    anchor: Option<OpenAnchor>,
    /// The `divvy run`s that joined, as in the record.
    runs: Vec<(Watched, RunRecord)>,
}

/// The state of a slice on one of its devices.
#[derive(Debug, Default)]
struct Account {
    /// The device's memory: no honest ledger says more.
    device_memory: Bytes,
    /// The slice's memory there when its pages were last read.
    last_used: Bytes,
    /// The auditor's finding there.
    found_beyond: Audited,
    /// Which of its processes live.
    lives: Lives,
    /// How many refused allocations were reported.
    refusals_told: u64,
}

/// The state of a lasting slice before a join.
pub enum Need {
    /// The slice can be joined.
    Nothing,
    /// The slice needs a page server, for these pages or for new ones.
    PageServer(Option<Arc<Vec<Pages>>>),
    /// Its pages cannot be reached now, and must not be given up yet.
    Backoff(Fault),
}

impl Slice {
    /// A slice whose page server is the process `page_server`, on devices of so much memory. Where a device is missing,
    /// no ledger may exceed the slice's share of it.
    #[must_use]
    pub fn new(record: SliceRecord, page_server: Option<u32>, devices: &[DeviceRecord]) -> Self {
        let account = |share: &DeviceShare| {
            let mut here = devices.iter();
            let device = here.find(|device| device.uuid == share.device_uuid);
            Account {
                device_memory: device.map_or(share.memory_limit_bytes, |device| device.memory_total_bytes),
                ..Account::default()
            }
        };
        let accounts = record.shares.iter().map(account).collect();
        let mut slice = Self {
            record,
            pages: None,
            damage: None,
            missing: None,
            terms: None,
            found: None,
            blind: false,
            accounts,
            known: Known::default(),
            allowance: Allowance::default(),
            page_server: None,
            child: None,
            worker: None,
            anchor: None,
            runs: Vec::new(),
        };
        slice.go_with(slice.record.lifetime_anchor.clone());
        slice.keep_by(page_server);
        slice.worker = slice
            .record
            .worker
            .as_ref()
            .and_then(|worker| Watched::again(worker.pid, worker.start_ticks));
        let runs = std::mem::take(&mut slice.record.runs);
        let living = runs
            .into_iter()
            .filter_map(|run| Some((Watched::again(run.pid, run.start_ticks)?, run)));
        slice.runs = living.collect();
        slice
    }

    /// Sets its lifetime anchor.
    pub fn go_with(&mut self, anchor: Option<LifetimeAnchor>) {
        self.anchor = anchor.as_ref().map(OpenAnchor::of);
        self.record.lifetime_anchor = anchor;
    }

    /// Whether its lifetime anchor is gone.
    #[must_use]
    pub fn has_lost_anchor(&self) -> bool {
        self.record.lasting && self.anchor.as_ref().is_some_and(OpenAnchor::is_gone)
    }

    /// Sets its page server, a process that lives.
    pub fn set_page_server(&mut self, page_server: Option<u32>) {
        self.record.page_server_start_ticks = 0;
        self.keep_by(page_server);
    }

    /// Sets its page server: a process that lives, or that of the record, which may have ended since.
    fn keep_by(&mut self, page_server: Option<u32>) {
        self.record.page_server_pid = page_server;
        self.page_server = page_server.and_then(|pid| match self.record.page_server_start_ticks {
            0 => {
                let watched = Watched::new(pid);
                self.record.page_server_start_ticks = procs::start_ticks(pid).unwrap_or(0);
                Some(watched)
            }
            began => Watched::again(pid, began),
        });
    }

    /// Sets a child of ours as its page server. The earlier page server is told to end.
    pub fn set_own_page_server(&mut self, child: Child) {
        self.end_page_server();
        self.set_page_server(Some(child.id()));
        self.child = Some(child);
    }

    /// Whether its programs need workers, and no process that starts them lives.
    #[must_use]
    pub fn lacks_worker(&self) -> bool {
        self.record.worker.is_some() && !self.worker.as_ref().is_some_and(Watched::is_alive)
    }

    /// Sets the process that starts its workers, one that lives. The earlier one is ended with the workers that it has.
    pub fn set_worker(&mut self, worker: WorkerRecord) {
        self.end_worker();
        self.worker = Watched::again(worker.pid, worker.start_ticks);
        self.record.worker = Some(worker);
    }

    /// Ends the process that starts its workers, and with it those. Where the system refuses that, it ends by itself as
    /// soon as its socket is gone.
    pub fn end_worker(&mut self) {
        if let (Some(process), Some(worker)) = (self.worker.take(), &self.record.worker) {
            // It is the agent's own, and root's until it has become the slice's user.
            if !process.signal_as(false, worker.uid, rustix::process::Signal::KILL) {
                process.signal(rustix::process::Signal::KILL);
            }
        }
    }

    /// Takes a `divvy run` off those that joined.
    pub fn leave(&mut self, pid: u32) {
        self.runs.retain(|(watched, _)| watched.pid() != pid);
    }

    /// Ends the page server of a lasting slice, which no other process would end.
    pub fn end_page_server(&mut self) {
        if let Some(page_server) = self.page_server.take() {
            page_server.signal(rustix::process::Signal::TERM);
        }
        if let Some(mut child) = self.child.take() {
            // It ends at once, because it handles no signal. Where it is stopped, only this signal ends it.
            let _ended = child.kill();
            let _reaped = child.wait();
        }
    }

    /// Kills its `divvy run`s as its user, and no longer counts them: neither those that joined, nor the one that is the
    /// page server of a slice that does not last.
    pub fn end_runs(&mut self) {
        let uid = self.record.uid;
        for (run, _) in self.runs.drain(..) {
            run.signal_as(false, uid, rustix::process::Signal::KILL);
        }
        if !self.record.lasting {
            if let Some(run) = &self.page_server {
                run.signal_as(false, uid, rustix::process::Signal::KILL);
            }
            self.set_page_server(None);
        }
    }

    /// Decides what a lasting slice needs before it can be joined. Lost or damaged pages are given up as soon as no
    /// process uses them. The fault is shown until a page server has other pages, because that start may fail too.
    pub fn need(&mut self) -> Need {
        if let Some(fault) = self.missing.clone().or_else(|| self.damage.clone()) {
            let may_answer = self.missing.is_some() && self.is_kept();
            if may_answer || self.may_be_in_use() {
                return Need::Backoff(fault);
            }
            self.pages = None;
        }
        match &self.pages {
            Some(_) if self.is_kept() => Need::Nothing,
            pages => Need::PageServer(pages.clone()),
        }
    }

    /// Takes the pages that its new page server has, in place of lost or damaged ones.
    pub fn renew(&mut self, pages: Arc<Vec<Pages>>) {
        if self.missing.take().is_some() || self.damage.take().is_some() {
            self.found = None;
            self.blind = false;
        }
        self.damage = None;
        self.pages = Some(pages);
        self.write_grants();
    }

    /// Notes a `divvy run` that joins; one that has ended does not.
    pub fn join(&mut self, run: RunRecord) {
        // The tasks of one step join as one.
        let is_here =
            |(_, here): &(Watched, RunRecord)| here.pid == run.pid && here.start_ticks == run.start_ticks;
        if self.runs.iter().any(is_here) {
            return;
        }
        let watched = Watched::again(run.pid, run.start_ticks);
        self.runs.extend(watched.map(|watched| (watched, run)));
    }

    /// Takes the auditor's finding on the device at `place`. Memory beyond the ledger is taken off the free space.
    pub fn audited(&mut self, place: usize, seen: Seen, why: Why) {
        let Some(account) = self.accounts.get_mut(place) else {
            return;
        };
        let before = account.found_beyond;
        let found = before.next(seen, why);
        account.found_beyond = found;
        if found.overuse && !before.overuse {
            tracing::warn!(
                slice = self.record.name,
                measured = seen.measured.0,
                accounted = seen.accounted[1].0,
                "overuse: the device says that the slice's processes hold more than they account for"
            );
        }
        if let Some(pages) = self.pages_at(place) {
            pages.grant.set_overhead_bytes(found.overhead.0);
        }
    }

    /// How many looks its processes have asked for on the device at `place`.
    #[must_use]
    pub fn looks_asked(&self, place: usize) -> u32 {
        self.pages_at(place).map_or(0, |pages| pages.ledger.looks_asked())
    }

    /// Tells its processes that the auditor has looked, after this many requests. Where no thread listens to its
    /// doorbell they are told nothing, and do not ask.
    pub fn note_look(&self, place: usize, asked: u32) {
        if let Some(pages) = self.pages_at(place).filter(|_| self.terms.is_some()) {
            pages.grant.note_look(asked);
        }
    }

    fn pages_at(&self, place: usize) -> Option<&Pages> {
        self.pages.as_ref()?.get(place)
    }

    /// The memory that the driver shows for its processes on the device at `place`, beside its ledger's figure.
    #[must_use]
    pub fn overhead(&self, place: usize) -> Bytes {
        self.accounts
            .get(place)
            .map_or(Bytes(0), |account| account.found_beyond.overhead)
    }

    /// Whether process `pid` is a `divvy run` of this slice.
    #[must_use]
    pub fn is_run_by(&self, pid: u32) -> bool {
        let keeps = !self.record.lasting && self.record.page_server_pid == Some(pid);
        keeps || self.runs.iter().any(|(watched, _)| watched.pid() == pid)
    }

    /// The living `divvy run`s that joined.
    pub fn living_runs(&mut self) -> Vec<RunRecord> {
        self.runs.retain(|(watched, _)| watched.is_alive());
        self.runs.iter().map(|(_, run)| run.clone()).collect()
    }

    /// Writes its grants into its pages: its limits less what is lent to nested slices, and its terms.
    pub fn write_grants(&self) {
        let pages = self.pages.iter().flat_map(|pages| pages.iter());
        for (pages, share) in pages.zip(self.record.shares.iter()) {
            pages.grant.set_memory_limit_bytes(share.granted().0);
            let mut terms = pages::terms(&self.record, share);
            if let Some(compute) = &self.terms {
                terms.compute = pages::compute_terms(compute);
            }
            pages.grant.set_terms(&terms);
        }
    }

    /// The record in its stored form.
    pub fn stored_form(&mut self) -> SliceRecord {
        let mut record = self.record.clone();
        record.runs = self.living_runs();
        record
    }

    /// Whether its page server lives.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.page_server.as_ref().is_some_and(Watched::is_alive)
    }

    /// The present figures in its pages for each of its devices, in order. Where some are damaged, the slice counts as
    /// if it used its whole limit.
    pub fn usages(&mut self) -> Vec<Usage> {
        let mut allowance = self.allowance;
        let asks = allowance.is_left(Instant::now());
        let usages = allowance.charge(|| self.usages_by(asks));
        self.allowance = allowance;
        usages
    }

    /// [`Slice::usages`]; where the system is not to be asked, its last answers are used.
    fn usages_by(&mut self, asks: bool) -> Vec<Usage> {
        let shares = self.record.shares.clone();
        let Some(pages) = self.pages.clone() else {
            let usage = self.usage_without_pages(asks);
            let nothing = usage == Usage::default();
            let of = |share: &DeviceShare| Usage {
                used: match nothing {
                    true => Bytes(0),
                    false => share.memory_limit_bytes,
                },
                ..usage.clone()
            };
            return shares.iter().map(of).collect();
        };
        let read: Result<Vec<Usage>, Fault> = pages
            .iter()
            .zip(&mut self.accounts)
            .zip(shares.iter())
            .map(|((pages, account), share)| {
                let bounds = Bounds {
                    device_memory: account.device_memory,
                    spill_limit: share.spill_limit_bytes,
                };
                let look = pages::Look {
                    known: &mut self.known,
                    lives: &mut account.lives,
                    asks,
                };
                pages::usage(pages, bounds, look)
            })
            .collect();
        match (read, &self.damage) {
            (Ok(usages), None) => {
                for (account, usage) in self.accounts.iter_mut().zip(&usages) {
                    account.last_used = usage.used;
                }
                usages
            }
            (outcome, damage) => {
                if let (Err(fault), None) = (outcome, damage) {
                    tracing::error!(slice = self.record.name, code = %fault.code, "{fault}: {}", fault.causes.join(": "));
                    self.damage = Some(fault);
                }
                // No number of that page is believed: the system tells which processes use the slice.
                let found = self.found_processes(asks);
                let of = |share: &DeviceShare| Usage {
                    used: share.memory_limit_bytes,
                    processes: found.clone(),
                    unknown: true,
                    ..Usage::default()
                };
                shares.iter().map(of).collect()
            }
        }
    }

    /// The allocations that were refused since the last call, in words.
    pub fn new_refusals(&mut self) -> Vec<String> {
        let (Some(pages), None) = (self.pages.clone(), &self.damage) else {
            return Vec::new();
        };
        let mut told = Vec::new();
        for ((pages, account), share) in pages
            .iter()
            .zip(&mut self.accounts)
            .zip(self.record.shares.iter())
        {
            let now = pages.ledger.refusals();
            // A tenant can write any number; one that goes back says nothing.
            let more = now.count.saturating_sub(account.refusals_told);
            account.refusals_told = now.count;
            if more > 0 {
                told.push(refusals_in_words(
                    more,
                    Refusals {
                        newest_pid: named(&self.record, now.newest_pid),
                        ..now
                    },
                    share,
                    Bytes(pages.ledger.total_used()),
                ));
            }
        }
        told
    }

    /// The processes in its pages, each with its memory on all devices together.
    pub fn processes(&mut self) -> Vec<ProcessRecord> {
        together(self.usages())
    }

    /// Whether processes use it. Where that cannot be known, they may.
    pub fn may_be_in_use(&mut self) -> bool {
        !self.processes().is_empty() || self.blind
    }

    /// A slice that waits for its first pages holds nothing. One whose pages cannot be recalled may hold its whole
    /// limit, as long as a process that uses it lives.
    fn usage_without_pages(&mut self, asks: bool) -> Usage {
        if self.missing.is_none() && self.damage.is_none() {
            return Usage::default();
        }
        Usage {
            processes: self.found_processes(asks),
            unknown: true,
            ..Usage::default()
        }
    }

    /// The processes that use it by the system's account, for a slice without readable pages.
    fn found_processes(&mut self, asks: bool) -> Vec<ProcessRecord> {
        const FRESH: Duration = Duration::from_secs(1);
        let kept = self.is_kept();
        let known = self.found.take().and_then(|(mut found, looked)| {
            found.retain(Watched::is_alive);
            // A look through all processes takes a while, so it is not made at each tick, but always before a slice
            // ends.
            let fresh = (looked.elapsed() < FRESH || !asks) && (kept || !found.is_empty());
            fresh.then_some((found, looked))
        });
        let (found, looked) = known.unwrap_or_else(|| {
            let found = in_slice(self.record.device_uid(), &self.record.id);
            if let (Err(error), false) = (&found, self.blind) {
                tracing::error!(slice = self.record.name, %error, "cannot look for the slice's processes");
            }
            self.blind = found.is_err();
            (found.unwrap_or_default(), Instant::now())
        });
        let processes = found.iter().map(Watched::pid).map(of_unknown_use).collect();
        self.found = Some((found, looked));
        processes
    }

    /// Takes its pages from the page server that gave them back.
    pub fn take_back(&mut self, pages: Vec<Pages>) {
        self.pages = Some(Arc::new(pages));
        // A resize may have come in between.
        self.write_grants();
        self.missing = None;
        self.found = None;
        self.blind = false;
        let page_server = self.record.page_server_pid.unwrap_or(0);
        tracing::info!(slice = self.record.name, page_server, "slice taken back");
    }

    /// The record with its present usage.
    pub fn shown(&mut self) -> SliceRecord {
        let usages = self.usages();
        let unknown = usages.iter().any(|usage| usage.unknown);
        let mut record = self.record.clone();
        for ((share, usage), account) in record.shares.iter_mut().zip(&usages).zip(&self.accounts) {
            share.memory_used_bytes = usage.used;
            share.memory_peak_bytes = usage.peak;
            share.refused_allocations = usage.refusals.count;
            share.memory_spilled_bytes = usage.spilled;
            share.memory_overhead_bytes = account.found_beyond.overhead;
        }
        let over = |share: &DeviceShare| {
            let counted = share
                .memory_used_bytes
                .0
                .saturating_add(share.memory_overhead_bytes.0);
            Bytes(counted) > share.granted()
        };
        if !unknown && record.shares.iter().any(over) {
            record.conditions.push(Condition::OverLimit);
        }
        let spills = |share: &DeviceShare| !share.memory_spilled_bytes.is_zero();
        if record.shares.iter().any(spills) {
            record.conditions.push(Condition::Spilled);
        }
        for doubt in usages.iter().flat_map(|usage| &usage.doubts) {
            if !record.warnings.contains(doubt) {
                record.warnings.push(doubt.clone());
            }
        }
        record.processes = together(usages);
        record.runs = self.living_runs();
        record.state = match record.state {
            SliceState::Running
                if record.lasting && record.runs.is_empty() && record.processes.is_empty() =>
            {
                SliceState::Idle
            }
            // A lasting slice's page server is replaced in a moment.
            SliceState::Running if !record.lasting && !self.is_kept() => SliceState::Orphaned,
            state => state,
        };
        record.usage_unknown = unknown;
        if let Some(pages) = self.pages.as_ref().filter(|_| !unknown) {
            crate::lookout::bypass::tell(&mut record, pages);
        }
        if self.accounts.iter().any(|account| account.found_beyond.overuse) {
            record.conditions.push(Condition::Overuse);
        }
        for trouble in self.damage.iter().chain(&self.missing) {
            record
                .warnings
                .push(format!("{trouble}: {}", trouble.causes.join(": ")));
            record.trouble.get_or_insert_with(|| trouble.clone());
        }
        record
    }

    /// Its compute terms, where a gate enforces them.
    #[must_use]
    pub fn promised_compute(&self) -> ComputeTerms {
        match self.record.terms.isolation {
            Isolation::Env => ComputeTerms::default(),
            _ => self.record.terms.compute,
        }
    }

    /// Its memory on each of its devices, by UUID.
    #[must_use]
    pub fn holds(&self) -> Vec<(String, Hold)> {
        let hold = |share: &DeviceShare| {
            let hold = self.hold_on(&share.device_uuid)?;
            Some((share.device_uuid.clone(), hold))
        };
        self.record.shares.iter().filter_map(hold).collect()
    }

    /// Its memory on a device, if it has a share there. That is its limit, or its last known use where it was resized
    /// below that. The `env` isolation level limits nothing and promises nothing: its programs count as unmanaged.
    #[must_use]
    pub fn hold_on(&self, device_uuid: &str) -> Option<Hold> {
        let place = self.record.shares.place_of(device_uuid)?;
        let share = self.record.shares.on(device_uuid)?;
        let promised = self.record.terms.isolation != Isolation::Env || self.record.terms.whole;
        let or_nothing = |bytes: Bytes| if promised { bytes } else { Bytes(0) };
        let last_used = self.accounts.get(place).map_or(0, |account| account.last_used.0);
        let used = Bytes(last_used.saturating_add(share.memory_lent_bytes.0));
        Some(Hold {
            id: self.record.id.clone(),
            name: self.record.name.clone(),
            uid: self.record.uid,
            whole: self.record.terms.whole,
            limit: or_nothing(share.memory_limit_bytes.max(used)),
            compute: self.promised_compute(),
            mode: promised.then(|| HeldMode::of(&self.record)),
        })
    }
}

/// The processes of all devices, each once.
pub(crate) fn together(usages: Vec<Usage>) -> Vec<ProcessRecord> {
    let mut all: Vec<ProcessRecord> = Vec::new();
    // A tenant may have thousands of processes in its ledger.
    let mut places: HashMap<u32, usize> = HashMap::new();
    for process in usages.into_iter().flat_map(|usage| usage.processes) {
        let place = *places.entry(process.pid).or_insert(all.len());
        let Some(known) = all.get_mut(place) else {
            all.push(process);
            continue;
        };
        let sum = |a: Bytes, b: Bytes| Bytes(a.0.saturating_add(b.0));
        known.memory_used_bytes = sum(known.memory_used_bytes, process.memory_used_bytes);
        known.memory_spilled_bytes = sum(known.memory_spilled_bytes, process.memory_spilled_bytes);
    }
    all
}

fn of_unknown_use(pid: u32) -> ProcessRecord {
    ProcessRecord {
        pid,
        command: procs::command(pid),
        memory_used_bytes: Bytes(0),
        memory_spilled_bytes: Bytes(0),
    }
}

/// `2 GiB was refused to process 4711: the slice holds 900 MiB of 1 GiB`.
fn refusals_in_words(count: u64, newest: Refusals, share: &DeviceShare, held: Bytes) -> String {
    let whose = match newest.newest_pid {
        0 => String::new(),
        pid => format!(" to process {pid}"),
    };
    let others = match count {
        1 => String::new(),
        _ => format!(", and {} more", count - 1),
    };
    format!(
        "an allocation of {} was refused{whose}{others}: the slice holds {held} of {}",
        Bytes(newest.newest_bytes),
        share.granted()
    )
}
