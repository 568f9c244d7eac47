//! Processes that the supervisor has stopped, and how they go on.
//!
//! A user may press Ctrl-Z while a process is stopped by us. The kernel keeps that signal, and SIGCONT would discard it, so
//! it is sent again behind that. SIGSTOP cannot be told from our own: one that a user sends meanwhile is lost.

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::decide::supervise::ProcessId;
use crate::files::kernel;
use crate::life::records;
use crate::start::rundir::RunDir;
use crate::system::watched::Watched;

/// A process that was stopped, as it is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stopped {
    pub pid: u32,
    pub start_ticks: u64,
    /// The slice's user.
    pub uid: u32,
    pub in_container: bool,
}

impl Stopped {
    /// Which process it is.
    pub fn id(&self) -> ProcessId {
        ProcessId {
            pid: self.pid,
            start_ticks: self.start_ticks,
        }
    }

    /// Whether this is the process.
    pub fn is(&self, id: ProcessId) -> bool {
        (self.pid, self.start_ticks) == (id.pid, id.start_ticks)
    }

    /// Lets it go on, if it is the process that was stopped: whatever user it has become since.
    pub fn release(&self) {
        if let Some(process) = Watched::again(self.pid, self.start_ticks) {
            let user_stops_it = has_pending_stop(self.pid);
            process.go_on(self.in_container, self.uid);
            if user_stops_it {
                process.signal_as(self.in_container, self.uid, Signal::TSTP);
            }
        }
    }
}

/// Whether a terminal's stop waits for the process, as the kernel has it.
fn has_pending_stop(pid: u32) -> bool {
    const TSTP: u64 = 1 << (Signal::TSTP.as_raw() - 1);
    let status = kernel::text(pid, "status").unwrap_or_default();
    let pending = status.lines().filter_map(|line| {
        let of_group = line.strip_prefix("ShdPnd:");
        of_group.or_else(|| line.strip_prefix("SigPnd:"))
    });
    pending
        .filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .any(|mask| mask & TSTP != 0)
}

/// Lets all go on that an agent which has died stopped: the watchdog's work. The list stays where another agent has
/// written one meanwhile.
pub(super) fn release_left(run: &RunDir) {
    let left = records::stored_frozen::<Stopped>(run);
    left.iter().rev().for_each(Stopped::release);
    if !left.is_empty() && records::stored_frozen::<Stopped>(run) == left {
        let _next_agent_releases_again = records::store_frozen::<Stopped>(run, &[]);
    }
}
