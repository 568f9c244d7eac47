//! A copy of a ledger file that another process may shorten: it is read, never mapped.
//!
//! A mapping faults if its file has been shortened, and the fault ends the program that reads it. The users of an
//! emulated device can write its file, and so can shorten it. A process that only inspects the file therefore reads it
//! into memory of its own.

use core::mem::{offset_of, size_of};
use std::os::fd::{AsFd, OwnedFd};

use crate::error::PageError;
use crate::layout::{LEDGER_BYTES, LEDGER_MAGIC, LedgerPage, ProcessSlot, Record};
use crate::ledger::{self, Process};
use crate::mapping::Mapping;
use crate::memfd;

/// A ledger's contents at one moment. No memory is returned and no process is reaped.
#[derive(Debug)]
pub struct Snapshot {
    mapping: Mapping<LedgerPage>,
    fd: OwnedFd,
}

impl Snapshot {
    /// Reads a ledger. `fd` is a descriptor through which no other code takes locks.
    ///
    /// # Errors
    /// [`PageError::Size`] for a file of another size, also if it is shortened meanwhile; [`PageError`] for a file that
    /// is no ledger of our version.
    pub fn read(fd: OwnedFd) -> Result<Self, PageError> {
        const SLOTS_AT: usize = offset_of!(LedgerPage, slots);
        memfd::require_size(fd.as_fd(), "ledger", LEDGER_BYTES)?;
        let mut mapping = Mapping::<LedgerPage>::private()?;
        mapping.read(fd.as_fd(), 0..SLOTS_AT, "ledger")?;
        let page = mapping.page();
        page.header.check("ledger", LEDGER_MAGIC, LEDGER_BYTES)?;
        let slots = page.slots_in_use();
        let parts = [
            (SLOTS_AT, size_of::<ProcessSlot>()),
            (
                offset_of!(LedgerPage, spilled),
                size_of::<[Record; crate::accounting::RECORDS_PER_SLOT]>(),
            ),
        ];
        for (start, each) in parts {
            mapping.read(fd.as_fd(), start..start + slots * each, "ledger")?;
        }
        Ok(Self { mapping, fd })
    }

    /// Bytes in use by all living processes.
    ///
    /// Memory of a dead process is subtracted: the next process that needs it takes it back.
    #[must_use]
    pub fn total_used(&self) -> u64 {
        let dead = self.processes().filter(|process| !process.alive);
        let held_by_dead = dead
            .map(|process| process.used_bytes)
            .fold(0, u64::saturating_add);
        ledger::total(self.mapping.page()).saturating_sub(held_by_dead)
    }

    /// The processes in the ledger, including dead ones that are not yet reaped. The kernel is asked now which ones
    /// live.
    pub fn processes(&self) -> impl Iterator<Item = Process> + '_ {
        ledger::processes(self.mapping.page(), self.fd.as_fd())
    }
}
