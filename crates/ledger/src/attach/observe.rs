//! The observer's half: a look at what a slice may use and uses, without a place in it.
//!
//! For tools that show a slice and compute nothing. The keeper hands an observer both pages for reading only, and
//! nothing of them is kept: neither descriptor nor mapping outlives the look.

use core::time::Duration;
use std::os::fd::AsFd;
use std::path::Path;

use super::channel::{self, Deadline};
use super::error::AttachError;
use super::wire::Kind;
use crate::grant::GrantView;
use crate::layout::{LEDGER_BYTES, LEDGER_MAGIC, LedgerPage};
use crate::ledger::{self, Backing};
use crate::mapping::{Access, Mapping};
use crate::terms::Terms;

/// How long a look may take. Many processes may be asking the keeper at once.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// One of a slice's accounts at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Which of the slice's accounts this is, from 0.
    pub account: u32,
    /// How many the slice has: one for each of its devices.
    pub accounts: u32,
    /// UUID of the device, as the driver below reports it; zeros where the account pays for any.
    pub device_uuid: [u8; 16],
    /// Device memory that the slice may use, in bytes.
    pub memory_limit_bytes: u64,
    /// What living processes hold and what the driver itself holds for the slice, in bytes. May be above a limit that
    /// was lowered.
    pub memory_used_bytes: u64,
    /// The rest of the grant.
    pub terms: Terms,
    /// The living processes, in order of their ids.
    pub processes: Vec<ObservedProcess>,
    /// The observer's own id in the keeper's pid namespace, 0 where it has none there: what a process in a container
    /// cannot find out by itself.
    pub observer_pid: u32,
}

/// One process of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedProcess {
    /// Its id, as far as can be told in the observer's own pid namespace.
    pub pid: u32,
    /// Device memory that it holds, in bytes.
    pub used_bytes: u64,
}

/// Looks at account `account` of the slice whose keeper listens on `path` (the value of `DIVVY_SLICE`).
///
/// # Errors
/// [`AttachError`].
pub fn observe(path: &Path, account: u32) -> Result<Observed, AttachError> {
    let deadline = Deadline::after(LOOK_LIMIT);
    let socket = channel::connect(path, deadline)?;
    let (reply, fds) = channel::ask(socket.as_fd(), Kind::Observe, account, None, deadline)?;
    let (grant, ledger) = fds.ok_or(AttachError::Protocol)?;
    let grant = GrantView::map(grant.as_fd())?;
    Backing::Sealed.check(&ledger)?;
    let mapping = Mapping::<LedgerPage>::new(ledger.as_fd(), Access::Read, "mmap of a ledger to look at")?;
    let page = mapping.page();
    page.header.check("ledger", LEDGER_MAGIC, LEDGER_BYTES)?;

    // A process knows itself by its id in its own namespace, and the keeper by the id in the keeper's. Where the keeper
    // sees the observer under the id that the observer has, the two share a namespace.
    let own_pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    let keepers_namespace = reply.pid == own_pid;
    let total = ledger::total(page);
    let mut held_by_dead = 0_u64;
    let mut processes = Vec::new();
    for process in ledger::processes(page, ledger.as_fd()) {
        if process.alive {
            let known_by = if keepers_namespace && process.host_pid != 0 {
                process.host_pid
            } else {
                process.pid
            };
            // What cannot be is not told as if it were: nobody has such a number, or more than all have together.
            if ledger::is_process_id(known_by) {
                processes.push(ObservedProcess {
                    pid: known_by,
                    used_bytes: process.used_bytes.min(total),
                });
            }
        } else {
            // The next reservation that runs short returns it: it is free already.
            held_by_dead = held_by_dead.saturating_add(process.used_bytes);
        }
    }
    processes.sort_unstable_by_key(|process| process.pid);
    Ok(Observed {
        account: grant.account(),
        accounts: grant.accounts(),
        device_uuid: grant.device_uuid(),
        memory_limit_bytes: grant.memory_limit_bytes(),
        memory_used_bytes: total
            .saturating_sub(held_by_dead)
            .saturating_add(grant.overhead_bytes()),
        terms: grant.terms(),
        processes,
        observer_pid: reply.pid,
    })
}
