//! The processes that this helper has stopped for its agent. They go on where the agent hangs up without having said so:
//! an agent that is killed leaves none stopped.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::Signal;

use crate::request::Process;

/// As many are remembered. An agent that stops more has the next agent let the oldest go on.
const MOST: usize = 16 << 10;

static STOPPED: Mutex<Vec<Process>> = Mutex::new(Vec::new());

fn stopped() -> MutexGuard<'static, Vec<Process>> {
    STOPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes a signal that was sent.
pub(crate) fn note(process: &Process, sent: Signal) {
    if ![Signal::STOP, Signal::CONT, Signal::KILL].contains(&sent) {
        return;
    }
    let mut stopped = stopped();
    stopped.retain(|other| (other.pid, other.start_ticks) != (process.pid, process.start_ticks));
    if sent == Signal::STOP {
        if stopped.len() == MOST {
            stopped.remove(0);
        }
        stopped.push(*process);
    }
}

/// The noted processes, oldest first. None is noted any more.
pub(crate) fn take() -> Vec<Process> {
    std::mem::take(&mut *stopped())
}
