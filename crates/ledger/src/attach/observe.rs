//! The observer's half: reads what a slice may use and uses, without a slot in it.
//!
//! For tools that show a slice and compute nothing. The page server gives an observer both pages read-only. The
//! observer keeps neither descriptor nor mapping afterwards.

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

/// How long an observation may take. Many processes may use the page server at once.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// One of a slice's accounts at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Which of the slice's accounts this is, from 0.
    pub account: u32,
    /// How many accounts the slice has: one for each of its devices.
    pub accounts: u32,
    /// UUID of the device, as the driver below reports it; zeros if the account covers any device.
    pub device_uuid: [u8; 16],
    /// Device memory that the slice may use, in bytes.
    pub memory_limit_bytes: u64,
    /// What living processes hold and what the driver itself holds for the slice, in bytes. It may be above a limit
    /// that was lowered.
    pub memory_used_bytes: u64,
    /// The rest of the grant.
    pub terms: Terms,
    /// The living processes, in order of their ids.
    pub processes: Vec<ObservedProcess>,
    /// The observer's own id in the page server's pid namespace, or 0 if it has none there. A process in a container
    /// cannot find this out by itself.
    pub observer_pid: u32,
}

/// One process of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedProcess {
    /// Its id, in the observer's own pid namespace if that can be told.
    pub pid: u32,
    /// Device memory that it holds, in bytes.
    pub used_bytes: u64,
}

/// Reads account `account` of the slice whose page server listens on `path` (the value of `DIVVY_SLICE`).
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

    // A process knows its own id in its own namespace, and the page server knows that id in the server's. If both ids
    // of the observer agree, the two share a namespace.
    let own_pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    let page_servers_namespace = reply.pid == own_pid;
    let total = ledger::total(page);
    let mut held_by_dead = 0_u64;
    let mut processes = Vec::new();
    for process in ledger::processes(page, ledger.as_fd()) {
        if process.alive {
            let known_by = if page_servers_namespace && process.host_pid != 0 {
                process.host_pid
            } else {
                process.pid
            };
            // Impossible values are not reported: no process has such an id, and none holds more than all have
            // together.
            if ledger::is_process_id(known_by) {
                processes.push(ObservedProcess {
                    pid: known_by,
                    used_bytes: process.used_bytes.min(total),
                });
            }
        } else {
            // The next reservation that runs short returns it, so it counts as free already.
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
