//! Slices whose time is over: programs are ended, and lasting slices are deleted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use divvy_model::SliceRecord;
use rustix::process::Signal;

use crate::api::events::EventKind;
use crate::decide::life::{Expiry, expiry, idled_out};
use crate::journal::Journal;
use crate::life::anchor::unix_seconds;
use crate::life::ending::Endings;
use crate::life::slice::Slice;
use crate::state::Shared;

/// Ends slices by the clock.
pub(crate) struct Expiries {
    pub state: Shared,
    pub journal: Arc<Journal>,
    pub endings: Arc<Endings>,
    pub seen: Mutex<Seen>,
}

/// What earlier looks saw, by slice. A new agent knows none of it: slices have that much longer.
#[derive(Default)]
pub(crate) struct Seen {
    /// When programs were asked to end.
    asked: HashMap<String, Instant>,
    /// Since when nothing runs in a lasting slice.
    idle: HashMap<String, Instant>,
}

impl Expiries {
    /// Ends what is due.
    pub fn look(&self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = unix_seconds();
        let mut due: Vec<(SliceRecord, Expiry)> = Vec::new();
        let mut state = self.state.lock();
        seen.asked.retain(|id, _| state.slices.contains_key(id));
        seen.idle.retain(|id, _| state.slices.contains_key(id));
        let mut idle = Vec::new();
        for (id, slice) in &mut state.slices {
            let asked = seen.asked.get(id).map(Instant::elapsed);
            if let Some(what) = expiry(&slice.record, now, asked) {
                due.push((slice.shown(), what));
                continue;
            }
            // The host's clock was set back: its programs are to be asked again.
            seen.asked.remove(id);
            if slice.record.terms.idle_ttl_s == 0 || !is_idle(slice) {
                seen.idle.remove(id);
                continue;
            }
            let since = seen.idle.entry(id.clone()).or_insert_with(Instant::now);
            if idled_out(&slice.record, since.elapsed()) {
                idle.push(id.clone());
            }
        }
        for id in idle {
            let deleted = self.endings.delete(
                &mut state,
                &id,
                "nothing has run in it for as long as it may be idle",
            );
            if deleted.is_err() {
                // A program has come since, or a container has it: it was not idle. That look costs too much to be made
                // each second.
                seen.idle.remove(&id);
            }
        }
        drop(state);
        for (slice, what) in due {
            self.end(&slice, what, &mut seen);
        }
    }

    fn end(&self, slice: &SliceRecord, what: Expiry, seen: &mut Seen) {
        let signal = match what {
            Expiry::Wait => None,
            Expiry::Ask => Some(Signal::TERM),
            Expiry::Kill | Expiry::TakeBack => Some(Signal::KILL),
        };
        if what == Expiry::Ask {
            seen.asked.insert(slice.id.clone(), Instant::now());
            let message = format!(
                "its {} s are over: its programs are asked to end",
                slice.terms.ttl_s
            );
            self.journal.tell(EventKind::SliceExpired, slice, message);
        }
        let mut left = true;
        if let Some(signal) = signal {
            match self.endings.signal(slice, slice.uid, signal) {
                Ok(signalled) => left = !signalled.is_empty(),
                Err(fault) => tracing::warn!(slice = slice.name, code = %fault.code, "{fault}"),
            }
        }
        // A `divvy run` ends with its program, unless it was stopped, or is another program that speaks as one.
        if what == Expiry::TakeBack || (what == Expiry::Kill && !left) {
            self.endings.take_back(&slice.id);
        }
        if slice.lasting {
            // While programs end, it is busy: the next look tries again.
            let _busy = self
                .endings
                .delete(&mut self.state.lock(), &slice.id, "its time is over");
        }
    }
}

fn is_idle(slice: &mut Slice) -> bool {
    slice.living_runs().is_empty() && !slice.may_be_in_use()
}
