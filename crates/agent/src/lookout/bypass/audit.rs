//! The agent's rounds. Each looks at the processes of each slice for ways past the limiter that only show from outside.
//! Examples are a program that never calls CUDA, and one that opens the driver below by its path. Each is counted once;
//! under a strict policy the program is ended, because nothing else limits it to its share.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use divvy_ledger::Bypass;
use divvy_model::{Bytes, Condition, Isolation, Policy, SliceRecord};
use rustix::process::Signal;

use super::{containers, scan};
use crate::admission::home::nearest_run;
use crate::api::events::EventKind;
use crate::holder::PageHolder;
use crate::journal::Journal;
use crate::launch::stage::DropIns;
use crate::life::anchors::LifetimeAnchors;
use crate::life::lists::Lists;
use crate::life::members::Members;
use crate::life::programs::is_worker;
use crate::lookout::audit::MemoryAudit;
use crate::start::rundir::RunDir;
use crate::state::Shared;
use crate::system::privilege;
use crate::system::procs;
use crate::system::watched::Watched;

/// A process, by its number and start time, so that it is never mistaken for another.
type Known = (u32, u64, Bypass);

/// The rounds, with the findings of earlier ones.
pub(crate) struct Auditor {
    pub run: RunDir,
    pub state: Shared,
    pub journal: Arc<Journal>,
    pub lists: Arc<Lists>,
    pub members: Arc<Members>,
    pub audit: Arc<MemoryAudit>,
    pub holder: Arc<PageHolder>,
    pub anchors: Arc<LifetimeAnchors>,
    pub found: Mutex<Found>,
    /// The evidence for which processes are in a container.
    pub evidence: Mutex<containers::Evidence>,
}

/// The findings of a round.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The number of consecutive rounds that found each process.
    processes: HashMap<Known, u32>,
    /// The slices that held more than they account for, by id.
    overusing: HashSet<String>,
}

/// A sign of a bypass in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    /// It has this library mapped, for as long as it lives.
    Mapped(Bypass),
    /// It has a device open in a container, and the limiter is not in it. A program that has just started may have
    /// inherited the open device, and may still load the limiter.
    Unlimited,
    /// It is on a device and in no ledger. It may be in the middle of an execve(2), so one look does not prove it.
    Unmanaged,
}

/// A process that passes the limiter.
struct Who {
    pid: u32,
    /// Its start time, so that no other process is signalled.
    began: u64,
    /// The `divvy run` that it is below.
    run: Option<u32>,
    /// It may belong to another user than the slice's.
    in_container: bool,
}

impl Auditor {
    /// One round over all slices. Returns whether another look is needed to make sure of something.
    pub fn look(&self) -> bool {
        let emulated = DropIns::find()
            .ok()
            .and_then(|found| found.emulated.cuda.canonicalize().ok());
        let drivers: Vec<_> = emulated.iter().map(std::path::PathBuf::as_path).collect();
        // The devices are read first: a process has its slot in a ledger before it is on a device.
        let holding = self.audit.holding(&self.state);
        let slices = self.lists.slices();
        let unlimited = |slice: &&SliceRecord| slice.terms.isolation == Isolation::Env || slice.terms.whole;
        let in_ledgers: HashSet<u32> = slices
            .iter()
            .flat_map(|slice| slice.processes.iter().map(|process| process.pid))
            .collect();
        let free: HashSet<u32> = slices
            .iter()
            .filter(unlimited)
            .flat_map(|slice| self.members.of(slice))
            .collect();
        let mut seen = Found::default();
        let mut unsure = false;
        for slice in slices.iter().filter(|slice| !unlimited(slice)) {
            let mut unmanaged = false;
            for pid in self.members.of(slice) {
                let Some(began) = procs::start_ticks(pid) else {
                    continue;
                };
                let mut sights: Vec<Sight> = match slice.terms.isolation {
                    // Whatever its programs load, they have no device; and the workers have the driver below.
                    Isolation::Enforced => Vec::new(),
                    _ => scan::of_process(pid, slice.uid, &drivers)
                        .into_iter()
                        .map(Sight::Mapped)
                        .collect(),
                };
                let is_unmanaged =
                    holding.contains(&pid) && !in_ledgers.contains(&pid) && !free.contains(&pid);
                if is_unmanaged
                    && !is_worker(slice, pid)
                    && !slice.usage_unknown
                    && !sights.contains(&Sight::Mapped(Bypass::ForeignLibcuda))
                {
                    sights.push(Sight::Unmanaged);
                }
                // A process in a nested slice is counted there, not here.
                if sights.is_empty() {
                    continue;
                }
                let run = nearest_run(&self.state.lock(), pid);
                if run.as_ref().is_some_and(|(id, _)| *id != slice.id) {
                    continue;
                }
                for sight in sights {
                    unmanaged |= sight == Sight::Unmanaged;
                    let known = (pid, began, sight.bypass());
                    let rounds = self.rounds(&known) + 1;
                    unsure |= rounds < sight.sure();
                    seen.processes.insert(known, rounds);
                    let run = run.as_ref().map(|(_, run)| *run);
                    let process = Who {
                        pid,
                        began,
                        run,
                        in_container: false,
                    };
                    self.deal_with(slice, &process, sight, rounds);
                }
            }
            if slice.conditions.contains(&Condition::Overuse) {
                let known = self.found().overusing.contains(&slice.id);
                // An unmanaged process is reported once that is sure.
                if !known && !unmanaged {
                    self.count_unexplained(slice);
                }
                if known || !unmanaged {
                    seen.overusing.insert(slice.id.clone());
                }
            }
        }
        let is_unmanaged = |pid: &u32| {
            let is_one = || slices.iter().any(|slice| is_worker(slice, *pid));
            holding.contains(pid) && !in_ledgers.contains(pid) && !is_one()
        };
        unsure |= self.look_into_containers(&slices, &is_unmanaged, &mut seen);
        *self.found() = seen;
        unsure
    }

    /// The programs of containers that are in no ledger. Returns the same as [`Self::look`].
    fn look_into_containers(
        &self,
        slices: &[SliceRecord],
        is_unmanaged: &dyn Fn(&u32) -> bool,
        seen: &mut Found,
    ) -> bool {
        let mut unsure = false;
        let pages = self.holder.page_files(slices);
        let found = {
            let mut evidence = self.evidence.lock().unwrap_or_else(PoisonError::into_inner);
            if self.anchors.opened.swap(false, Ordering::Relaxed) {
                evidence.look_again();
            }
            containers::look_into(&self.run, slices, &pages, &mut evidence)
        };
        unsure |= self
            .anchors
            .note_containers(&found.iter().map(|process| process.slice.clone()).collect());
        for containers::Process {
            slice: id,
            pid,
            unlimited,
        } in found
        {
            let slice = slices.iter().find(|slice| slice.id == id && !slice.terms.whole);
            let (Some(slice), Some(began)) = (slice, procs::start_ticks(pid)) else {
                continue;
            };
            let sight = match unlimited {
                true => Sight::Unlimited,
                // It may have the limiter, and have opened another driver all the same.
                false if is_unmanaged(&pid) && !slice.usage_unknown => Sight::Unmanaged,
                false => continue,
            };
            let known = (pid, began, sight.bypass());
            let rounds = self.rounds(&known) + 1;
            unsure |= rounds < sight.sure();
            // A container's process that was in its slice's ledger is handled already.
            if seen.processes.insert(known, rounds).is_none() {
                let process = Who {
                    pid,
                    began,
                    run: None,
                    in_container: true,
                };
                self.deal_with(slice, &process, sight, rounds);
            }
        }
        unsure
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rounds(&self, known: &Known) -> u32 {
        self.found().processes.get(known).copied().unwrap_or(0)
    }
}

impl Sight {
    fn bypass(self) -> Bypass {
        match self {
            Self::Mapped(bypass) => bypass,
            Self::Unlimited => Bypass::StaticProgram,
            Self::Unmanaged => Bypass::ForeignLibcuda,
        }
    }

    /// The number of rounds after which it is sure.
    fn sure(self) -> u32 {
        match self {
            Self::Mapped(_) => 1,
            Self::Unlimited | Self::Unmanaged => 2,
        }
    }

    fn in_words(self) -> &'static str {
        match self {
            Self::Unlimited => {
                "has a device open in a container, and the limiter is not in it: it is static, or of musl"
            }
            Self::Unmanaged => {
                "uses a device without being counted, as one does that opens the driver by its path"
            }
            Self::Mapped(Bypass::ForeignLibcuda) => {
                "has a libcuda open that the limiter does not stand before"
            }
            Self::Mapped(Bypass::OpenCl) => "has NVIDIA's OpenCL library open, which passes the limiter",
            Self::Mapped(Bypass::Graphics) => "has NVIDIA's graphics libraries open, which pass the limiter",
            Self::Mapped(Bypass::Codec) => "has NVIDIA's codec libraries open, which pass the limiter",
            Self::Mapped(_) => "passes the limiter",
        }
    }
}

impl Auditor {
    /// Acts as soon as it is sure: counts the bypass, and asks the program to end where the policy is strict. A program
    /// that still lives a round later is killed.
    fn deal_with(&self, slice: &SliceRecord, process: &Who, sight: Sight, rounds: u32) {
        if rounds < sight.sure() {
            return;
        }
        let Who { pid, run, .. } = *process;
        let strict = slice.terms.policy == Policy::Strict;
        let first = rounds == sight.sure();
        if first {
            let bypass = sight.bypass();
            if self.journal.may_log(slice.uid) {
                tracing::warn!(slice = slice.name, pid, %bypass, policy = ?slice.terms.policy, "a process passes the limiter");
            }
            self.count(&slice.id, bypass);
            let fate = if strict { ": it is ended" } else { "" };
            let message = format!(
                "process {pid} ({}) {}{fate}",
                procs::command(pid),
                sight.in_words()
            );
            // The event comes before the signal: the `divvy run` that waits for the program asks as soon as that has
            // ended.
            self.journal.tell_run(EventKind::Bypassed, slice, run, message);
        }
        if strict {
            let signal = if first { Signal::TERM } else { Signal::KILL };
            // The process may have ended by itself meanwhile.
            if let Some(pinned) = Watched::again(pid, process.began)
                && (process.in_container
                    || procs::owner(pid) == Some(slice.uid)
                    || privilege::may_signal(pid, slice.uid))
            {
                let _refused = pinned.signal_as(process.in_container, slice.uid, signal);
            }
        }
    }

    /// Memory that the drivers show for a slice and that none of its processes accounts for. The drivers do not say
    /// which process holds it, so no process is ended: the slice has that much less space.
    fn count_unexplained(&self, slice: &SliceRecord) {
        self.count(&slice.id, Bypass::UnexplainedMemory);
        let overhead = slice.shares.iter().fold(0, |sum: u64, share| {
            sum.saturating_add(share.memory_overhead_bytes.0)
        });
        let message = format!(
            "its processes hold {} more than they account for",
            Bytes(overhead)
        );
        self.journal.tell_run(EventKind::Bypassed, slice, None, message);
    }

    fn count(&self, id: &str, bypass: Bypass) {
        let mut state = self.state.lock();
        state.bypass_total += 1;
        let pages = state.slices.get(id).and_then(|slice| slice.pages.as_ref());
        if let Some(first) = pages.and_then(|pages| pages.first()) {
            first.ledger.count(bypass);
        }
    }
}
