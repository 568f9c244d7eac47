//! The agent's rounds: looks at the processes of each slice for ways past the limiter that only show from outside, as in
//! a program that never calls CUDA. Each is counted once; under a strict policy the program is ended, for nothing else
//! keeps it to its share.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use divvy_ledger::Bypass;
use divvy_model::{Isolation, Policy, SliceRecord};
use rustix::process::Signal;

use super::scan;
use crate::change::members;
use crate::daemon::Daemon;
use crate::procs;
use crate::stage::DropIns;

/// A process, by its number and when it began: so it is never another.
type Known = (u32, u64, Bypass);

/// What was found on earlier rounds.
#[derive(Debug, Default)]
pub struct Auditor {
    found: Mutex<HashSet<Known>>,
}

impl Auditor {
    /// One round over all slices.
    pub fn look(&self, daemon: &Daemon) {
        let emulated = DropIns::find()
            .ok()
            .and_then(|found| found.emulated.cuda.canonicalize().ok());
        let drivers: Vec<_> = emulated.iter().map(std::path::PathBuf::as_path).collect();
        let mut seen = HashSet::new();
        for slice in daemon.slices() {
            if slice.isolation == Isolation::Env || slice.whole {
                continue;
            }
            for pid in members(&slice) {
                let Some(began) = procs::start_ticks(pid) else {
                    continue;
                };
                for bypass in scan::of_process(pid, &drivers) {
                    self.deal_with(daemon, &slice, (pid, began, bypass));
                    seen.insert((pid, began, bypass));
                }
            }
        }
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }

    /// The first time: counts it, and asks the program to end where the policy is strict. From the second time on it
    /// has not listened.
    fn deal_with(&self, daemon: &Daemon, slice: &SliceRecord, known: Known) {
        let (pid, _, bypass) = known;
        let again = self
            .found
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(&known);
        if !again {
            tracing::warn!(slice = slice.name, pid, %bypass, policy = ?slice.policy, "a process passes the limiter");
            daemon.count(&slice.id, bypass);
        }
        if slice.policy == Policy::Strict {
            let signal = if again { Signal::KILL } else { Signal::TERM };
            // It may have ended by itself meanwhile.
            let _gone = procs::signal(pid, slice.uid, signal);
        }
    }
}

impl Daemon {
    fn count(&self, id: &str, bypass: Bypass) {
        let mut book = self.book();
        book.bypass_total += 1;
        let pages = book.slices.get(id).and_then(|slice| slice.pages.as_ref());
        if let Some(first) = pages.and_then(|pages| pages.first()) {
            first.ledger.count(bypass);
        }
    }
}
