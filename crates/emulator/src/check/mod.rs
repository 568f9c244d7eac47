//! `divvy emulate check`: looks for what is wrong with a program's memory accesses, barriers and order, while it runs.
//!
//! A process is checked where `DIVVY_CHECK` names a folder for what is found (docs/adr/0070). Elsewhere [`on`] is None,
//! modules are parsed without watching, and nothing here runs.
//!
//! - `findings`: one record a place, and the file they go to
//! - `memory`: allocations, what of them was written, and what was freed
//! - `race`: the last accesses to a word, and whether they came before
//! - `strands`: which launches come before which
//! - `identity`: a launch as findings name it
//! - `launch`: what a kernel does, as the engine tells it; `barrier`: who came to its barriers
//! - `state`: what is known of it while it runs; `report`: what is wrong with it, in words
//! - `leaks`: what is there when the process ends

mod barrier;
mod bits;
mod findings;
mod identity;
mod launch;
mod leaks;
mod memory;
mod race;
mod report;
mod state;
mod strands;

use crate::memory::allocation::{Allocation, Kind as Made};
use divvy_device::exec::task;
pub use findings::quoted;
use findings::{Finding, Findings, Kind, Owner};
use identity::Identity;
pub use launch::Launched;
use memory::{Memory, Outside, made_by};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use strands::{Strands, Stream};

/// The folder that findings are written to.
const FOLDER: &str = "DIVVY_CHECK";
/// Bytes behind each allocation that belong to none, so that what goes past its end is noticed.
const MARGIN: u64 = 4096;

static CHECKER: OnceLock<Option<Checker>> = OnceLock::new();

/// What checks this process.
pub struct Checker {
    findings: Findings,
    memory: Mutex<Memory>,
    /// Launches that run.
    running: AtomicU32,
    /// The next era of cells.
    era: AtomicU32,
    /// The order of all work.
    pub strands: Strands,
    /// Launches whose accesses are remembered, by number.
    launches: Mutex<HashMap<u32, Arc<Identity>>>,
}

/// The checker, where this process is checked and `cuInit` was called.
pub fn on() -> Option<&'static Checker> {
    CHECKER.get()?.as_ref()
}

/// At `cuInit`: whether this process is to be checked.
pub fn begin() {
    CHECKER.get_or_init(|| {
        let folder = PathBuf::from(std::env::var_os(FOLDER).filter(|folder| !folder.is_empty())?);
        // A set-id program writes to no folder that its caller names.
        if divvy_device::log::is_secure() {
            return None;
        }
        leaks::at_end();
        let findings = Findings::new(folder);
        findings.begin();
        Some(Checker {
            findings,
            memory: Mutex::default(),
            running: AtomicU32::new(0),
            era: AtomicU32::new(1),
            strands: Strands::default(),
            launches: Mutex::default(),
        })
    });
    if let Some(checker) = on() {
        task::observe(&checker.strands);
    }
}

/// The next task that this thread submits is a launch in a stream. Its number; 0 where nothing is checked.
pub fn launch(stream: Stream) -> u32 {
    on().map_or(0, |checker| checker.strands.launch(stream))
}

/// Bytes that an allocation is larger than was asked for.
pub fn margin() -> u64 {
    on().map_or(0, |_| MARGIN)
}

impl Checker {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn launches(&self) -> MutexGuard<'_, HashMap<u32, Arc<Identity>>> {
        self.launches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_era(&self) -> u32 {
        self.era.fetch_add(1, Ordering::Relaxed)
    }

    /// Memory that kernels may touch from now on.
    pub fn allocated(&self, allocation: &Allocation) {
        self.memory().allocated(allocation);
    }

    /// What a program calls the memory at this address.
    pub fn name(&self, base: u64, name: String) {
        self.memory().name(base, name);
    }

    /// Memory that no kernel may touch any more.
    pub fn freed(&self, allocation: &Arc<Allocation>) {
        self.memory().freed(allocation);
    }

    /// Lets freed memory go that was held to find its uses; true where there was any.
    pub fn let_all_go(&self) -> bool {
        self.memory().let_all_go()
    }

    /// The host has written device memory.
    pub fn written(&self, address: u64, bytes: u64) {
        self.memory().written(address, bytes);
    }

    /// Bytes were copied.
    pub fn copied(&self, to: u64, from: u64, bytes: u64) {
        self.memory().copied(to, from, bytes);
    }

    /// A kernel has got memory of its heap.
    pub fn given(&self, address: u64, bytes: u64) {
        self.memory().forget(address, bytes);
    }

    /// Other processes may write the allocation at this address.
    pub fn all_written(&self, address: u64) {
        self.memory().all_written(address);
    }

    /// A free of what is no allocation's beginning.
    pub fn bad_free(&self, pointer: u64, inside: Option<&Allocation>) {
        let outside = self.memory().outside(pointer);
        let message = match (inside, &outside) {
            (Some(allocation), _) if allocation.base == pointer => format!(
                "cuMemFree of {pointer:#x}, which {} made: it has a call of its own for that",
                made_by(allocation.kind)
            ),
            (Some(allocation), _) => format!(
                "cuMemFree of {pointer:#x}, which is {} bytes behind the begin of an allocation of {} bytes",
                pointer - allocation.base,
                allocation.bytes
            ),
            (None, Outside::Freed(owner)) => format!(
                "cuMemFree of {pointer:#x}, an allocation of {} bytes made by {} that was freed before",
                owner.bytes, owner.made_by
            ),
            _ => format!("cuMemFree of {pointer:#x}, which is no allocation"),
        };
        self.of_host(Kind::InvalidFree, pointer, message, owner_of(&outside));
    }

    /// A copy or a fill by the host of device memory that is not all there.
    pub fn bad_copy(&self, address: u64, bytes: u64, inside: Option<&Allocation>) {
        let outside = self.memory().outside(address);
        let (message, owner) = match inside {
            Some(allocation) => (
                format!(
                    "copy or fill of {bytes} bytes at {address:#x}: {} bytes past the end of {}",
                    (address + bytes).saturating_sub(allocation.base + allocation.bytes),
                    an_allocation(&of(allocation))
                ),
                Some(of(allocation)),
            ),
            None => (
                format!(
                    "copy or fill of {bytes} bytes at {address:#x}{}",
                    where_is(&outside)
                ),
                owner_of(&outside),
            ),
        };
        let kind = match outside {
            Outside::Freed(_) if inside.is_none() => Kind::UseAfterFree,
            _ => Kind::InvalidCopy,
        };
        self.of_host(kind, address, message, owner);
    }

    fn of_host(&self, kind: Kind, address: u64, message: String, allocation: Option<Owner>) {
        let finding = || Finding {
            kind,
            message,
            kernel: None,
            site: None,
            other: None,
            allocation,
        };
        self.findings.add(finding, kind, (None, 0, 0, Some(address)), 1);
    }

    /// Notes what the process did not give back.
    fn leaked(&self, number: u64, message: String, allocation: Option<Owner>) {
        self.of_host(Kind::Leak, number, message, allocation);
    }

    /// A context ends with memory that the program did not free.
    pub fn left_in_context(&self, allocations: &[Arc<Allocation>]) {
        for allocation in allocations
            .iter()
            .filter(|allocation| is_the_programs(allocation))
        {
            let owner = of(allocation);
            self.leaked(
                allocation.buffer_id,
                format!(
                    "{} was not freed before its context was destroyed",
                    an_allocation(&owner)
                ),
                Some(owner),
            );
        }
    }
}

/// Memory that a program has to free.
fn is_the_programs(allocation: &Allocation) -> bool {
    matches!(
        allocation.kind,
        Made::Device
            | Made::Pooled { .. }
            | Made::Managed
            | Made::Host { .. }
            | Made::Imported { .. }
            | Made::Graph
    )
}

fn of(allocation: &Allocation) -> Owner {
    Owner {
        address: allocation.base,
        bytes: allocation.bytes,
        made_by: made_by(allocation.kind).to_owned(),
    }
}

fn owner_of(outside: &Outside) -> Option<Owner> {
    match outside {
        Outside::Freed(owner) | Outside::Past(owner, _) | Outside::Before(owner, _) => Some(owner.clone()),
        Outside::Null | Outside::Nowhere => None,
    }
}

/// `an allocation of 4096 bytes made by cuMemAlloc`.
fn an_allocation(owner: &Owner) -> String {
    let by = &owner.made_by;
    match by.starts_with("the ") {
        true => format!("{by} of {} bytes", owner.bytes),
        false => format!("an allocation of {} bytes made by {by}", owner.bytes),
    }
}

/// Where an address is that no allocation holds.
fn where_is(outside: &Outside) -> String {
    match outside {
        Outside::Null => ": a null pointer".into(),
        Outside::Freed(owner) => format!(": in {} that has been freed", an_allocation(owner)),
        Outside::Past(owner, by) => format!(": {by} bytes past the end of {}", an_allocation(owner)),
        Outside::Before(owner, by) => format!(": {by} bytes before {}", an_allocation(owner)),
        Outside::Nowhere => ": no allocation is near".into(),
    }
}
