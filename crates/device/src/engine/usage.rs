//! How busy an emulated device's engine is, and which processes keep it busy: read from its page, without touching a
//! driver.

use super::page::{Busy, Page, SAMPLES, write_slice};
use super::schedule::{DEFAULT_SLICE, LONG_SLICE, SHORT_SLICE};
use crate::error::HardwareError;
use crate::pages;
use crate::product::identity::Uuid;
use crate::run_directory::{make_folder, run_directory};
use divvy_ledger::PageError;
use rustix::io::Errno;
use std::path::Path;

/// What a process had of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessEngineUsage {
    /// Its id.
    pub pid: u32,
    /// Engine time it had since it first made a context, in nanoseconds.
    pub busy_ns: u64,
    history: Vec<(u64, u64)>,
}

/// What all processes had of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineUsage {
    /// The device clock, in nanoseconds.
    pub now_ns: u64,
    /// Engine time of all processes since the page was made, in nanoseconds: those that ended too.
    pub busy_ns: u64,
    /// Time in which it was idle because it was the turn of a process that is stopped, in nanoseconds.
    pub idle_wanted_ns: u64,
    /// Living processes that have, or had, a context.
    pub processes: Vec<ProcessEngineUsage>,
    history: Vec<(u64, u64)>,
}

/// Which processes kept a device's engine busy and for how long, exact to the nanosecond of the device clock. A device
/// without any use yet was idle.
///
/// # Errors
/// [`HardwareError`]: the run directory or the page cannot be read.
pub fn engine_usage(uuid: Uuid) -> Result<EngineUsage, HardwareError> {
    engine_usage_in(&run_directory(), uuid)
}

/// The same for a device of the run directory `directory`, whatever this process's own is.
///
/// # Errors
/// [`HardwareError`]: the page cannot be found or read.
pub fn engine_usage_in(directory: &Path, uuid: Uuid) -> Result<EngineUsage, HardwareError> {
    let file = pages::find(directory, uuid)?.engine;
    let page = match Page::look(&file) {
        Err(Errno::NOENT) => {
            return Ok(EngineUsage {
                now_ns: crate::clock::now_ns(),
                busy_ns: 0,
                idle_wanted_ns: 0,
                processes: Vec::new(),
                history: Vec::new(),
            });
        }
        looked => looked.map_err(|errno| failed(file.name(), errno))?,
    };
    let (now_ns, idle_wanted_ns, mut all) = page.busy();
    let dead = all.remove(0);
    let busy_ns = all
        .iter()
        .map(|one| one.busy)
        .fold(dead.busy, u64::saturating_add);
    let process = |one: Busy| ProcessEngineUsage {
        pid: one.pid,
        busy_ns: one.busy,
        history: one.samples,
    };
    Ok(EngineUsage {
        now_ns,
        busy_ns,
        idle_wanted_ns,
        processes: all.into_iter().map(process).collect(),
        history: dead.samples,
    })
}

fn failed(path: &Path, errno: Errno) -> HardwareError {
    let step = "reading of an engine page";
    HardwareError::Page(path.to_owned(), PageError::System { step, errno })
}

/// Sets how long a process keeps a device while others want it, by the driver's numbers (`nvidia-smi compute-policy
/// --set-timeslice`): 0 default, 1 short, 2 medium, 3 long. Other numbers are the default. The run directory exists.
///
/// # Errors
/// [`HardwareError`]: the page cannot be found or written.
pub fn set_time_slice(directory: &Path, uuid: Uuid, code: u32) -> Result<(), HardwareError> {
    let slice = match code {
        1 => SHORT_SLICE,
        3 => LONG_SLICE,
        _ => DEFAULT_SLICE,
    };
    make_folder(directory).map_err(|why| HardwareError::Directory(directory.to_owned(), why))?;
    let file = pages::find(directory, uuid)?.engine;
    write_slice(&file, slice).map_err(|errno| failed(file.name(), errno))
}

/// Busy time since `from`, by earlier readings and the one now.
fn since(history: &[(u64, u64)], now: (u64, u64), from: u64) -> u64 {
    let before = history.iter().rev().find(|(at, _)| *at <= from);
    let after = history.iter().find(|(at, _)| *at > from).unwrap_or(&now);
    let then = match before {
        Some(&(at, busy)) => {
            let gone = u128::from(from - at) * u128::from(after.1.saturating_sub(busy));
            busy.saturating_add((gone / u128::from(after.0.saturating_sub(at).max(1))) as u64)
        }
        // Older readings were overwritten; or there were none, because there was no process.
        None if history.len() == SAMPLES => after.1,
        None => 0,
    };
    now.1.saturating_sub(then)
}

impl ProcessEngineUsage {
    /// Engine time it had in the last `window_ns` before `now_ns`.
    pub fn recent(&self, now_ns: u64, window_ns: u64) -> u64 {
        since(
            &self.history,
            (now_ns, self.busy_ns),
            now_ns.saturating_sub(window_ns),
        )
        .min(window_ns)
    }
}

impl EngineUsage {
    /// Engine time of all processes in the last `window_ns`.
    pub fn recent(&self, window_ns: u64) -> u64 {
        let from = self.now_ns.saturating_sub(window_ns);
        since(&self.history, (self.now_ns, self.busy_ns), from).min(window_ns)
    }
}
