//! A slice in the agent's hands: its record, its pages, who keeps it and who joined it.

use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use divvy_ledger::attach::Pages;
use divvy_model::{Bytes, Condition, Fault, Isolation, ProcessRecord, RunRecord, SliceRecord, SliceState};

use crate::admission::Hold;
use crate::audit::Audited;
use crate::pages::{self, Usage};
use crate::procs;
use crate::watched::Watched;

/// A slice the agent looks after.
#[derive(Debug)]
pub struct Slice {
    /// What is stored; usage in it is stale, [`Slice::shown`] has the present one.
    pub record: SliceRecord,
    /// Its pages, once its keeper has them.
    pub pages: Option<Arc<Pages>>,
    /// What is wrong with its pages, if anything.
    pub damage: Option<Fault>,
    /// Why its pages could not be had back from its keeper so far, if so. They are asked for again.
    pub missing: Option<Fault>,
    /// Without pages: the processes that use it all the same, and when they were looked for.
    found: Option<(Vec<Watched>, Instant)>,
    /// The memory of its device: no honest ledger says more.
    device_memory: Bytes,
    keeper: Option<Watched>,
    /// The keeper as our child, to be reaped: that of a lasting slice, where this agent started it.
    child: Option<Child>,
    /// The `divvy run`s that joined, as in the record.
    runs: Vec<(Watched, RunRecord)>,
    /// What it held when its pages were last read.
    last_used: Bytes,
    /// What the auditor found.
    found_beyond: Audited,
}

/// What a lasting slice lacks.
pub enum Need {
    /// It can be joined.
    Nothing,
    /// A keeper, for these pages or for new ones.
    Keeper(Option<Arc<Pages>>),
    /// Its pages cannot be had now, and must not be given up yet.
    Patience(Fault),
}

impl Slice {
    /// A slice whose keeper is `keeper`, on a device of so much memory.
    #[must_use]
    pub fn new(record: SliceRecord, keeper: Option<u32>, device_memory: Bytes) -> Self {
        let mut slice = Self {
            record,
            pages: None,
            damage: None,
            missing: None,
            found: None,
            device_memory,
            keeper: None,
            child: None,
            runs: Vec::new(),
            last_used: Bytes(0),
            found_beyond: Audited::default(),
        };
        slice.set_keeper(keeper);
        let runs = std::mem::take(&mut slice.record.runs);
        let living = runs
            .into_iter()
            .filter_map(|run| Some((Watched::again(run.pid, run.start_ticks)?, run)));
        slice.runs = living.collect();
        slice
    }

    /// Sets who keeps it.
    pub fn set_keeper(&mut self, keeper: Option<u32>) {
        self.keeper = keeper.map(Watched::new);
        self.record.keeper_pid = keeper;
    }

    /// Sets a child of ours as its keeper. Who kept it before is told to go.
    pub fn set_own_keeper(&mut self, child: Child) {
        self.end_keeper();
        self.set_keeper(Some(child.id()));
        self.child = Some(child);
    }

    /// Ends the keeper of a lasting slice, which nobody else would.
    pub fn end_keeper(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.signal(rustix::process::Signal::TERM);
        }
        if let Some(mut child) = self.child.take() {
            // It ends at once: it handles no signal. Where it is stopped, nothing but this ends it.
            let _ended = child.kill();
            let _reaped = child.wait();
        }
    }

    /// What a lasting slice lacks before it can be joined. Pages that are lost or damaged are given up as soon as
    /// nobody uses them.
    pub fn need(&mut self) -> Need {
        if let Some(fault) = self.missing.clone().or_else(|| self.damage.clone()) {
            let may_answer = self.missing.is_some() && self.is_kept();
            if may_answer || !self.usage().processes.is_empty() {
                return Need::Patience(fault);
            }
            self.missing = None;
            self.damage = None;
            self.found = None;
            self.pages = None;
        }
        match &self.pages {
            Some(_) if self.is_kept() => Need::Nothing,
            pages => Need::Keeper(pages.clone()),
        }
    }

    /// Notes a `divvy run` that joins, and lives.
    pub fn join(&mut self, run: RunRecord) {
        self.runs.push((Watched::new(run.pid), run));
    }

    /// What the auditor saw: `measured` by the device, `accounted` in the ledger. What is beyond is taken off the room
    /// that is left.
    pub fn audited(&mut self, measured: Bytes, accounted: Bytes, contexts: Bytes) {
        let before = self.found_beyond;
        self.found_beyond = before.next(measured, accounted, contexts);
        if self.found_beyond.overuse && !before.overuse {
            tracing::warn!(
                slice = self.record.name,
                measured = measured.0,
                accounted = accounted.0,
                "overuse: the device says that the slice's processes hold more than they account for"
            );
        }
        if let Some(pages) = &self.pages {
            pages.grant.set_overhead_bytes(self.found_beyond.overhead.0);
        }
    }

    /// What the driver holds for its processes beside what its ledger says.
    #[must_use]
    pub fn overhead(&self) -> Bytes {
        self.found_beyond.overhead
    }

    /// Whether process `pid` is a `divvy run` of this slice.
    #[must_use]
    pub fn is_run_by(&self, pid: u32) -> bool {
        let keeps = !self.record.lasting && self.record.keeper_pid == Some(pid);
        keeps || self.runs.iter().any(|(watched, _)| watched.pid() == pid)
    }

    /// The `divvy run`s that joined and live.
    pub fn living_runs(&mut self) -> Vec<RunRecord> {
        self.runs.retain(|(watched, _)| watched.is_alive());
        self.runs.iter().map(|(_, run)| run.clone()).collect()
    }

    /// What its page is to say: its limit less what is lent to slices nested in it.
    #[must_use]
    pub fn granted(&self) -> Bytes {
        let lent = self.record.memory_lent_bytes;
        Bytes(self.record.memory_limit_bytes.0.saturating_sub(lent.0))
    }

    /// Makes its page say that.
    pub fn write_grant(&self) {
        if let Some(pages) = &self.pages {
            pages.grant.set_memory_limit_bytes(self.granted().0);
        }
    }

    /// The record as it is to be stored.
    pub fn stored_form(&mut self) -> SliceRecord {
        let mut record = self.record.clone();
        record.runs = self.living_runs();
        record
    }

    /// Whether its keeper lives.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.keeper.as_ref().is_some_and(Watched::is_alive)
    }

    /// What its pages say now. Damaged pages are counted as if the slice used all it may.
    pub fn usage(&mut self) -> Usage {
        let Some(pages) = &self.pages else {
            return self.usage_without_pages();
        };
        match pages::usage(pages, self.device_memory) {
            Ok(usage) if self.damage.is_none() => {
                self.last_used = usage.used;
                usage
            }
            outcome => {
                if let (Err(fault), None) = (&outcome, &self.damage) {
                    tracing::error!(slice = self.record.name, code = %fault.code, "{fault}: {}", fault.causes.join(": "));
                    self.damage = Some(fault.clone());
                }
                let living = pages.ledger.processes().filter(|process| process.alive);
                let processes = living.map(|process| process.host_pid).map(of_unknown_use);
                Usage {
                    used: self.record.memory_limit_bytes,
                    processes: processes.collect(),
                    unknown: true,
                }
            }
        }
    }

    /// A slice that waits for its first pages holds nothing. One whose pages cannot be had may hold all it may, as
    /// long as a process that uses it lives.
    fn usage_without_pages(&mut self) -> Usage {
        const FRESH: Duration = Duration::from_secs(1);
        if self.missing.is_none() && self.damage.is_none() {
            return Usage::default();
        }
        let kept = self.is_kept();
        let known = self.found.take().and_then(|(mut found, looked)| {
            found.retain(Watched::is_alive);
            // Looking through all processes takes a while, so not at each tick; but before a slice ends.
            let fresh = looked.elapsed() < FRESH && (kept || !found.is_empty());
            fresh.then_some((found, looked))
        });
        let look = || (procs::in_slice(self.record.uid, &self.record.id), Instant::now());
        let (found, looked) = known.unwrap_or_else(look);
        let processes = found.iter().map(Watched::pid).map(of_unknown_use).collect();
        self.found = Some((found, looked));
        Usage {
            used: self.record.memory_limit_bytes,
            processes,
            unknown: true,
        }
    }

    /// Takes its pages from the keeper that gave them back.
    pub fn take_back(&mut self, pages: Pages, keeper: u32) {
        self.pages = Some(Arc::new(pages));
        // A resize may have come in between.
        self.write_grant();
        self.missing = None;
        self.found = None;
        self.set_keeper(Some(keeper));
        tracing::info!(slice = self.record.name, keeper, "slice taken back");
    }

    /// The record with its present usage.
    pub fn shown(&mut self) -> SliceRecord {
        let usage = self.usage();
        let mut record = self.record.clone();
        record.memory_used_bytes = usage.used;
        record.processes = usage.processes;
        record.runs = self.living_runs();
        record.state = match record.state {
            SliceState::Running
                if record.lasting && record.runs.is_empty() && record.processes.is_empty() =>
            {
                SliceState::Idle
            }
            // A lasting slice's keeper is replaced in a moment.
            SliceState::Running if !record.lasting && !self.is_kept() => SliceState::Orphaned,
            state => state,
        };
        record.usage_unknown = usage.unknown;
        record.memory_overhead_bytes = self.found_beyond.overhead;
        let counted = usage.used.0.saturating_add(self.found_beyond.overhead.0);
        if !usage.unknown && Bytes(counted) > self.granted() {
            record.conditions.push(Condition::OverLimit);
        }
        if let Some(pages) = self.pages.as_ref().filter(|_| !usage.unknown) {
            crate::bypass::tell(&mut record, pages);
        }
        if self.found_beyond.overuse {
            record.conditions.push(Condition::Overuse);
        }
        for damage in self.damage.iter().chain(&self.missing) {
            record
                .warnings
                .push(format!("{damage}: {}", damage.causes.join(": ")));
        }
        record
    }

    /// What it holds of its device: its limit, or what it used when last looked at where it was resized below that.
    /// The `env` rung limits nothing, so it is promised nothing: what its programs use is counted with everybody
    /// else's.
    #[must_use]
    pub fn hold(&self) -> Hold {
        let promised = self.record.isolation != Isolation::Env || self.record.whole;
        let or_nothing = |bytes: Bytes| if promised { bytes } else { Bytes(0) };
        let used = Bytes(self.last_used.0.saturating_add(self.record.memory_lent_bytes.0));
        Hold {
            name: self.record.name.clone(),
            uid: self.record.uid,
            whole: self.record.whole,
            limit: or_nothing(self.record.memory_limit_bytes.max(used)),
        }
    }
}

fn of_unknown_use(pid: u32) -> ProcessRecord {
    ProcessRecord {
        pid,
        command: procs::command(pid),
        memory_used_bytes: Bytes(0),
    }
}
