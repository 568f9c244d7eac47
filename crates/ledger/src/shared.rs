//! Allocations that several processes of a slice hold: one process, the owner, is charged, and the others are
//! importers. A residual charge stays when the owner dies.
//!
//! A word is `key (40 bits) | process slot of the owner (11) | holders (13)`. Beside it stand its residual charge
//! ([`Residual`]), and a bit for each process that imports the allocation. An owner that dies while an importer lives
//! keeps its slot. The bytes of its shared allocations stay charged there until no living process imports them. So
//! importers need not check the owner.
//!
//! A living owner that has let go notes that beside the word, and sleeps until it is called ([`Slot::wait_call`]). It
//! is called by a process that leaves, by one that finds an importer dead, and by one that needs memory. Only the owner
//! takes the bytes out of its own records. No call is missed: an importer clears its bit before it checks whether the
//! owner has let go. The owner notes that it has let go before it checks which importers are left.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::fence;
use core::time::Duration;

use rustix::thread::futex;

use crate::accounting::{SLOTS, UNIT};
use crate::layout::{LedgerPage, SHARED_WORDS};
use crate::reap_pass::ReapPass;
use crate::residual::{LET_GO, Sum};
pub use crate::residual::{PAGE_NUMBERS, Residual};
use crate::slot::Slot;

/// Bits of a word that count the holders.
pub const HOLDER_BITS: u32 = 13;
/// Bits of a word that name the owner's process slot.
pub const SLOT_BITS: u32 = 11;
const _: () = assert!(SLOTS == 1 << SLOT_BITS);

/// Values of a process slot's `claimed`.
pub(crate) mod claim {
    /// No process has the slot.
    pub const FREE: u32 = 0;
    /// A process has it, or had it when it died.
    pub const TAKEN: u32 = 1;
    /// Its process is dead, and importers still have its memory open.
    pub const REMAINS: u32 = 2;
    /// A reaper is about to free it: importers may no longer count on it as owner.
    pub const LEAVING: u32 = 3;
}

/// The owner's process slot in this word.
#[must_use]
pub const fn owner_of(word: u64) -> usize {
    (word >> HOLDER_BITS) as usize & (SLOTS - 1)
}

fn bit(slot: usize) -> (usize, u64) {
    (slot / 64 % (SLOTS / 64), 1 << (slot % 64))
}

impl LedgerPage {
    /// Units of a dead process that stay charged, because importers have its memory open. The caller owns its slot.
    fn remains(&self, pass: &mut ReapPass<'_>, slot: usize) -> u64 {
        let mut sum = Sum::new();
        for (place, word) in self.shared.iter().enumerate() {
            let word = word.load(Acquire);
            if word != 0 && owner_of(word) == slot && self.is_open(pass, place, slot) {
                sum.add(Residual::of_word(self.shared_residuals[place].load(Acquire)));
            }
        }
        sum.bytes().div_ceil(UNIT)
    }

    /// Whether a living process other than `owner` imports the allocation in this entry, as far as this pass can tell.
    fn is_open(&self, pass: &mut ReapPass<'_>, place: usize, owner: usize) -> bool {
        self.shared_importers[place].iter().enumerate().any(|(at, word)| {
            let mut importers = word.load(SeqCst);
            while importers != 0 {
                let importer = at * 64 + importers.trailing_zeros() as usize;
                importers &= importers - 1;
                if importer != owner && pass.may_live(self, importer) {
                    return true;
                }
            }
            false
        })
    }

    /// A process has died: it no longer imports anything. The caller owns its slot.
    pub(crate) fn closes_all(&self, slot: usize) {
        let (at, bit) = bit(slot);
        for place in 0..SHARED_WORDS {
            // Untouched entries have no memory behind them.
            let used =
                self.shared_residuals[place].load(Relaxed) != 0 || self.shared[place].load(Relaxed) != 0;
            if used && self.shared_importers[place][at].load(Relaxed) & bit != 0 {
                self.shared_importers[place][at].fetch_and(!bit, SeqCst);
            }
        }
    }

    /// Units of the dead process in `slot` that stay charged. If the result is 0, the slot may be freed, and from here
    /// on no importer counts on it. The caller owns the slot.
    pub(crate) fn reap_dead(&self, pass: &mut ReapPass<'_>, slot: usize) -> u64 {
        let claimed = &self.slots.0[slot].claimed;
        self.closes_all(slot);
        let mut units = self.remains(pass, slot);
        if units == 0 {
            // A process that imports it now either finds the owner leaving, and becomes the owner, or is found here.
            claimed.store(claim::LEAVING, SeqCst);
            fence(SeqCst);
            units = self.remains(pass, slot);
        }
        if units != 0 {
            claimed.store(claim::REMAINS, Release);
            return units;
        }
        // The next process in this slot is not charged for any of it.
        for word in &self.shared {
            let now = word.load(Acquire);
            if now != 0 && owner_of(now) == slot {
                // A process that enters another allocation meanwhile has taken the entry.
                let _cleared = word.compare_exchange(now, 0, AcqRel, Relaxed);
            }
        }
        0
    }

    /// The owner's slot and the bytes of an entry's allocation, if the owner has let go of it and no process imports
    /// it, as far as the page says.
    fn let_go_by_all(&self, place: usize) -> Option<(usize, u64)> {
        let residual = self.shared_residuals[place].load(SeqCst);
        let word = self.shared[place].load(SeqCst);
        let importers = &self.shared_importers[place];
        let left = residual & LET_GO != 0
            && word != 0
            && importers.iter().all(|importers| importers.load(SeqCst) == 0);
        left.then(|| (owner_of(word), Residual::of_word(residual).bytes()))
    }

    /// Calls the owners of allocations that all processes have let go of. Returns the bytes that this frees.
    pub(crate) fn call_owners(&self) -> u64 {
        // If no owner has ever let go, untouched words have no memory behind them.
        if self.doorbell.let_go.load(Acquire) == 0 {
            return 0;
        }
        let (mut called, mut all) = ([0_u64; SLOTS / 64], 0_u64);
        for (owner, bytes) in (0..SHARED_WORDS).filter_map(|place| self.let_go_by_all(place)) {
            let (at, bit) = bit(owner);
            if self.slots.0[owner].claimed.load(Acquire) == claim::TAKEN {
                all = all.saturating_add(bytes);
                if called[at] & bit == 0 {
                    called[at] |= bit;
                    self.call(owner);
                }
            }
        }
        all
    }

    fn call(&self, slot: usize) {
        let calls = &self.slots.0[slot].calls;
        calls.fetch_add(1, SeqCst);
        // It is not an error that none waits.
        let _woken = futex::wake(calls, futex::Flags::empty(), i32::MAX as u32);
    }
}

impl Slot {
    /// Notes the residual charge of the allocation at `place` of [`Slot::shared`]: it stays charged if its owner dies.
    /// Does nothing in a forked child.
    pub fn note_shared(&self, place: usize, residual: Residual) {
        if let Some(page) = self.page() {
            page.shared_residuals[place % SHARED_WORDS].store(residual.to_word(), Release);
        }
    }

    /// Notes that this process, the owner of the allocation at `place`, has let go of it. It is called when it may have
    /// no importer any more. This has to be noted before the process checks for importers. Does nothing in a forked
    /// child.
    pub fn note_let_go(&self, place: usize) {
        if let Some(page) = self.page() {
            page.doorbell.let_go.store(1, Release);
            page.shared_residuals[place % SHARED_WORDS].fetch_or(LET_GO, SeqCst);
            fence(SeqCst);
        }
    }

    /// How often this process was called, to compare with in [`Slot::wait_call`]. 0 in a forked child.
    #[must_use]
    pub fn calls(&self) -> u32 {
        self.page()
            .map_or(0, |page| page.slots.0[self.index()].calls.load(SeqCst))
    }

    /// Waits until this process is called again, or for `limit`. In a forked child it does not wait.
    pub fn wait_call(&self, seen: u32, limit: Duration) {
        let Some(page) = self.page() else { return };
        let limit = futex::Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()) as _,
        };
        let calls = &page.slots.0[self.index()].calls;
        // Woken, called before, or timed out: the caller looks in each case.
        let _why = futex::wait(calls, futex::Flags::empty(), seen, Some(&limit));
    }

    /// Calls the owners of allocations that all processes have let go of. Returns the bytes that this will free soon; 0
    /// in a forked child.
    #[must_use]
    pub fn call_owners(&self) -> u64 {
        self.page().map_or(0, LedgerPage::call_owners)
    }

    /// Notes whether this process imports the allocation at `place` of [`Slot::shared`]. This has to be noted before it
    /// counts on the owner ([`Slot::is_claimed`]). Does nothing in a forked child.
    pub fn note_open(&self, place: usize, open: bool) {
        let Some(page) = self.page() else { return };
        let (at, bit) = bit(self.index());
        let word = &page.shared_importers[place % SHARED_WORDS][at];
        if open {
            word.fetch_or(bit, SeqCst);
        } else {
            word.fetch_and(!bit, SeqCst);
        }
        fence(SeqCst);
        if !open && let Some((owner, _)) = page.let_go_by_all(place % SHARED_WORDS) {
            page.call(owner);
        }
    }

    /// Whether another process has the allocation at `place` open, as the page says. A dead process counts until it is
    /// reaped. False in a forked child.
    #[must_use]
    pub fn is_open_elsewhere(&self, place: usize) -> bool {
        let Some(page) = self.page() else { return false };
        let (own, bit) = bit(self.index());
        let words = page.shared_importers[place % SHARED_WORDS].iter().enumerate();
        words.fold(0, |all, (at, word)| {
            let importers = word.load(SeqCst);
            all | if at == own { importers & !bit } else { importers }
        }) != 0
    }
}
