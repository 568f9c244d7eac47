//! One process's slot in a ledger.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::time::Duration;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::accounting::{self, Denied, SLOTS, UNIT};
use crate::bypass::Bypass;
use crate::copies::CopyPath;
use crate::error::{PageError, ReserveError};
use crate::fork::OwnMapping;
use crate::layout::{ActivityLine, LedgerPage, SHARED_WORDS};
use crate::ledger::{self, Backing};
use crate::liveness;
use crate::reap_pass::ReapPass;
use crate::shared::claim;
use crate::thrash::Thrash;

/// What a process reports about itself, for display.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlotOwner {
    /// Its id in the page server's pid namespace, or 0 if it is not known.
    pub host_pid: u32,
}

/// A process's slot in a ledger. It lasts until the process dies, calls exec or drops the slot, and no longer.
///
/// A forked child has none, whatever it inherited: its calls return [`ReserveError::Forked`].
#[derive(Debug)]
pub struct Slot {
    page: OwnMapping<LedgerPage>,
    index: usize,
}

impl Slot {
    /// Takes a slot in the ledger at `fd`, which must be an open file description of its own (see
    /// [`crate::Ledger::open`]). The descriptor is closed before this returns; the mapping keeps the slot.
    ///
    /// # Errors
    /// [`PageError::NoFreeSlot`] when living processes have all slots; otherwise what is wrong with the page, or the
    /// system's reason.
    pub fn claim(fd: OwnedFd, backing: Backing, owner: SlotOwner) -> Result<Self, PageError> {
        backing.check(&fd)?;
        // Hidden from children before any byte is locked: a child with the mapping would keep the lock.
        let page = OwnMapping::new(ledger::map(&fd)?)?;
        let Some(ledger) = page.get() else {
            return Err(PageError::Corrupted { page: "ledger" });
        };
        let mut pass = ReapPass::new(fd.as_fd());
        // Unclaimed slots first; then the slots of dead processes, whose bytes are returned first.
        for claimed in [false, true] {
            for index in 0..SLOTS {
                if (ledger.slots.0[index].claimed.load(Acquire) != 0) == claimed
                    && liveness::try_own(fd.as_fd(), index).map_err(ledger::lock_error)?
                {
                    if claimed && ledger.reap_dead(&mut pass, index) != 0 {
                        // Other processes still hold memory that this slot is charged for.
                        liveness::disown(fd.as_fd(), index).map_err(ledger::lock_error)?;
                        continue;
                    }
                    move_in(ledger, index, owner)?;
                    return Ok(Self { page, index });
                }
            }
        }
        Err(PageError::NoFreeSlot)
    }

    /// Takes `bytes`, rounded up to whole units of 512, unless the total would pass `limit_bytes`.
    ///
    /// # Errors
    /// [`ReserveError::Refused`] exactly when it did not fit at one moment during the call.
    #[inline]
    pub fn reserve(&self, bytes: u64, limit_bytes: u64) -> Result<(), ReserveError> {
        let page = self.page.get().ok_or(ReserveError::Forked)?;
        accounting::reserve(
            page,
            self.index,
            thread_hint(),
            bytes.div_ceil(UNIT),
            limit_bytes / UNIT,
        )
        .map_err(|denied| refusal(denied, limit_bytes))?;
        page.note_peak();
        Ok(())
    }

    /// Notes that an allocation of `bytes` was refused to this process because it did not fit. Does nothing in a forked
    /// child.
    pub fn note_refusal(&self, bytes: u64) {
        if let Some(page) = self.page.get() {
            let pid = page.slots.0[self.index].host_pid.load(Relaxed);
            page.usage.note_refusal(bytes, pid);
        }
    }

    /// Gives back `bytes` that this process reserved in one call.
    ///
    /// # Errors
    /// [`ReserveError::Forked`] or [`ReserveError::Corrupted`]; nothing is given back then.
    #[inline]
    pub fn release(&self, bytes: u64) -> Result<(), ReserveError> {
        let page = self.page.get().ok_or(ReserveError::Forked)?;
        accounting::release(page, self.index, thread_hint(), bytes.div_ceil(UNIT))
            .map_err(|denied| refusal(denied, 0))?;
        page.usage.tell_waiters();
        Ok(())
    }

    /// [`Slot::reserve`] for memory beyond the share.
    ///
    /// # Errors
    /// As [`Slot::reserve`].
    pub fn reserve_spill(&self, bytes: u64, limit_bytes: u64) -> Result<(), ReserveError> {
        let page = self.page.get().ok_or(ReserveError::Forked)?;
        let units = bytes.div_ceil(UNIT);
        accounting::reserve(
            &page.spill(),
            self.index,
            thread_hint(),
            units,
            limit_bytes / UNIT,
        )
        .map_err(|denied| refusal(denied, limit_bytes))
    }

    /// [`Slot::release`] for memory beyond the share.
    ///
    /// # Errors
    /// As [`Slot::release`].
    pub fn release_spill(&self, bytes: u64) -> Result<(), ReserveError> {
        let page = self.page.get().ok_or(ReserveError::Forked)?;
        accounting::release(&page.spill(), self.index, thread_hint(), bytes.div_ceil(UNIT))
            .map_err(|denied| refusal(denied, 0))?;
        // A process that waits for memory would also accept it beyond the share.
        page.usage.tell_waiters();
        Ok(())
    }

    /// Bytes beyond the share that all processes hold, or `None` in a forked child.
    #[must_use]
    pub fn total_spilled(&self) -> Option<u64> {
        self.page
            .get()
            .map(|page| accounting::total(&page.spill()) * UNIT)
    }

    /// Bytes beyond the share that this process holds, or `None` in a forked child.
    #[must_use]
    pub fn spilled(&self) -> Option<u64> {
        self.page
            .get()
            .map(|page| ledger::bytes_spilled(page, self.index))
    }

    /// Counts a use of the device past the limiter. Nothing is counted in a forked child.
    pub fn count(&self, bypass: Bypass) {
        if let Some(page) = self.page.get() {
            page.count(bypass);
        }
    }

    /// Counts bytes that were copied for a program without a device. Nothing is counted in a forked child.
    pub fn count_copied(&self, path: CopyPath, bytes: u64) {
        if let Some(page) = self.page.get() {
            page.count_copied(path, bytes);
        }
    }

    /// What the slice's processes have found out about thrashing; `None` in a forked child.
    #[must_use]
    pub fn thrash(&self) -> Option<Thrash> {
        self.page.get().map(|page| page.thrash.read())
    }

    /// Notes how much of the memory that kernels could touch lies beyond the share, in parts of 10,000, and whether
    /// that makes the device thrash. Does nothing in a forked child.
    pub fn note_thrash(&self, pressure: u32, thrashing: bool) {
        if let Some(page) = self.page.get() {
            page.thrash.note(pressure, thrashing);
        }
    }

    /// This process's activity record, for it to write; `None` in a forked child.
    #[inline]
    #[must_use]
    pub fn activity(&self) -> Option<&ActivityLine> {
        self.page.get().map(|page| &page.activities.0[self.index])
    }

    /// Calls the agent, because something has changed that it should look at. Does nothing in a forked child.
    pub fn ring(&self) {
        if let Some(page) = self.page.get() {
            page.ring();
        }
    }

    /// How many processes of the slice have launched anything, as the page says; 0 in a forked child.
    #[must_use]
    pub fn launching(&self) -> usize {
        self.page.get().map_or(0, |page| {
            page.activities().filter(|activity| activity.launched > 0).count()
        })
    }

    /// Whether a process has the slot of this number, as the page says; false in a forked child. This is a hint. For a
    /// dead process it stays true until it is reaped, and as long as other processes have its shared memory open.
    #[must_use]
    pub fn is_claimed(&self, index: usize) -> bool {
        let page = self.page.get();
        page.is_some_and(|page| {
            let claimed = page.slots.0[index % accounting::SLOTS].claimed.load(Acquire);
            matches!(claimed, claim::TAKEN | claim::REMAINS)
        })
    }

    /// The words in which the slice's processes tell each other of shared allocations; `None` in a forked child. They
    /// are all zero at first: see [`crate::shared`]. Any process may write any value.
    #[must_use]
    pub fn shared(&self) -> Option<&[AtomicU64; SHARED_WORDS]> {
        self.page.get().map(|page| &page.shared)
    }

    /// The page, for this crate's own use of it.
    pub(crate) fn page(&self) -> Option<&LedgerPage> {
        self.page.get()
    }

    /// Bytes in use by all processes, or `None` in a forked child.
    #[inline]
    #[must_use]
    pub fn total_used(&self) -> Option<u64> {
        self.page.get().map(|page| accounting::total(page) * UNIT)
    }

    /// Bytes that this process holds, or `None` in a forked child.
    #[must_use]
    pub fn used(&self) -> Option<u64> {
        self.page.get().map(|page| ledger::bytes_held(page, self.index))
    }

    /// The generation of the newest grant, or `None` in a forked child.
    #[inline]
    #[must_use]
    pub fn grant_generation(&self) -> Option<u32> {
        self.page.get().map(|page| page.grant_generation.load(Relaxed))
    }

    /// How long ago a dead process's bytes were last returned to the ledger; `None` if never, and in a forked child.
    #[must_use]
    pub fn since_return(&self) -> Option<Duration> {
        self.page.get().and_then(LedgerPage::since_return)
    }

    /// Whether this process is the one that took the slot.
    #[inline]
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.page.get().is_some()
    }

    /// The slot's number in the ledger.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }
}

/// Prepares a slot whose lock this process has: what a dead process left is returned first.
fn move_in(ledger: &LedgerPage, index: usize, owner: SlotOwner) -> Result<(), PageError> {
    let corrupted = |_| PageError::Corrupted { page: "ledger" };
    let spilled = accounting::reclaim(&ledger.spill(), index).map_err(corrupted)?;
    if accounting::reclaim(ledger, index).map_err(corrupted)? != 0 || spilled != 0 {
        ledger.note_return();
    }
    let place = &ledger.slots.0[index];
    place.waiting_since_ns.store(0, Relaxed);
    ledger.activities.0[index].clear();
    place.pid.store(
        rustix::process::getpid().as_raw_nonzero().get().unsigned_abs(),
        Relaxed,
    );
    place.host_pid.store(owner.host_pid, Relaxed);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64);
    place.claimed_at_ns.store(now, Relaxed);
    ledger.high_water.fetch_max(index as u32 + 1, AcqRel);
    place.claimed.store(claim::TAKEN, Release);
    Ok(())
}

fn refusal(denied: Denied, limit_bytes: u64) -> ReserveError {
    match denied {
        Denied::Full { used } => ReserveError::Refused {
            limit_bytes,
            used_bytes: used * UNIT,
        },
        Denied::Corrupted => ReserveError::Corrupted,
    }
}

/// A value that differs between threads, without thread-local storage. In a library that is loaded late, the first
/// access to thread-local storage may allocate.
#[inline]
fn thread_hint() -> usize {
    // SAFETY: always callable, and changes nothing.
    let thread = unsafe { libc::pthread_self() } as u64;
    // Thread descriptors are aligned and far apart: a multiplication moves the differing bits to the top.
    ((thread >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}
