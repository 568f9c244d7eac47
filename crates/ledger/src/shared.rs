//! Allocations that several processes of a slice hold and one pays for: who pays, who has them open, and what stays
//! charged when the payer dies.
//!
//! A word is `key (40 bits) | process slot of who pays (11) | holders (13)`. Beside it stand the bytes that are paid, and a
//! bit for each process that has the allocation open and does not pay. A payer that dies while such a process lives keeps
//! its place, and of its bytes those of the shared allocations, until nobody living has them: its holders need not look.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::fence;

use crate::accounting::{SLOTS, UNIT};
use crate::layout::{LedgerPage, SHARED_WORDS};
use crate::roll::Roll;
use crate::slot::Slot;

/// Bits of a word that count the holders.
pub const HOLDER_BITS: u32 = 13;
/// Bits of a word that say whose process slot pays.
pub const SLOT_BITS: u32 = 11;
const _: () = assert!(SLOTS == 1 << SLOT_BITS);

/// Values of a process slot's `claimed`.
pub(crate) mod claim {
    /// Nobody has the place.
    pub const FREE: u32 = 0;
    /// A process has it, or had it when it died.
    pub const TAKEN: u32 = 1;
    /// Its process is dead, and others have what it paid for.
    pub const REMAINS: u32 = 2;
    /// A reaper is about to free it: nobody may count on its payment any more.
    pub const LEAVING: u32 = 3;
}

/// The process slot that pays by this word.
#[must_use]
pub const fn payer_of(word: u64) -> usize {
    (word >> HOLDER_BITS) as usize & (SLOTS - 1)
}

fn bit(slot: usize) -> (usize, u64) {
    (slot / 64 % (SLOTS / 64), 1 << (slot % 64))
}

impl LedgerPage {
    /// Units of a dead process's that stay charged, because others have what it paid for. The caller owns its slot.
    fn remains(&self, roll: &mut Roll<'_>, slot: usize) -> u64 {
        let mut units = 0_u64;
        for (place, word) in self.shared.iter().enumerate() {
            let word = word.load(Acquire);
            if word != 0 && payer_of(word) == slot && self.is_open(roll, place, slot) {
                units = units.saturating_add(self.shared_bytes[place].load(Acquire).div_ceil(UNIT));
            }
        }
        units
    }

    /// Whether a living process other than `payer`'s has the allocation of this place open, as far as this look can tell.
    fn is_open(&self, roll: &mut Roll<'_>, place: usize, payer: usize) -> bool {
        self.shared_guests[place].iter().enumerate().any(|(at, word)| {
            let mut guests = word.load(SeqCst);
            while guests != 0 {
                let guest = at * 64 + guests.trailing_zeros() as usize;
                guests &= guests - 1;
                if guest != payer && roll.may_live(self, guest) {
                    return true;
                }
            }
            false
        })
    }

    /// A process has died: it has nothing open. The caller owns its slot.
    pub(crate) fn closes_all(&self, slot: usize) {
        let (at, bit) = bit(slot);
        for place in 0..SHARED_WORDS {
            // Untouched places have no memory behind them.
            let used = self.shared_bytes[place].load(Relaxed) != 0 || self.shared[place].load(Relaxed) != 0;
            if used && self.shared_guests[place][at].load(Relaxed) & bit != 0 {
                self.shared_guests[place][at].fetch_and(!bit, SeqCst);
            }
        }
    }

    /// Of the dead process in `slot`, units that stay charged; 0 when the place may be freed, on which from here on nobody
    /// counts. The caller owns the slot.
    pub(crate) fn buries(&self, roll: &mut Roll<'_>, slot: usize) -> u64 {
        let claimed = &self.slots.0[slot].claimed;
        self.closes_all(slot);
        let mut units = self.remains(roll, slot);
        if units == 0 {
            // Who opens now either finds the payer leaving, and pays, or is found here.
            claimed.store(claim::LEAVING, SeqCst);
            fence(SeqCst);
            units = self.remains(roll, slot);
        }
        if units != 0 {
            claimed.store(claim::REMAINS, Release);
            return units;
        }
        // The next process in this place pays for none of it.
        for word in &self.shared {
            let now = word.load(Acquire);
            if now != 0 && payer_of(now) == slot {
                // Who enters another allocation meanwhile has taken the place.
                let _cleared = word.compare_exchange(now, 0, AcqRel, Relaxed);
            }
        }
        0
    }
}

impl Slot {
    /// Notes what the allocation at `place` of [`Slot::shared`] is worth, in bytes: as much stays charged should its payer
    /// die. Nothing is noted in a forked child.
    pub fn note_shared(&self, place: usize, bytes: u64) {
        if let Some(page) = self.page() {
            page.shared_bytes[place % SHARED_WORDS].store(bytes, Release);
        }
    }

    /// Notes whether this process has the allocation at `place` of [`Slot::shared`] open and does not pay for it. To be
    /// noted before it counts on the payer ([`Slot::is_claimed`]). Nothing is noted in a forked child.
    pub fn note_open(&self, place: usize, open: bool) {
        let Some(page) = self.page() else { return };
        let (at, bit) = bit(self.index());
        let word = &page.shared_guests[place % SHARED_WORDS][at];
        if open {
            word.fetch_or(bit, SeqCst);
        } else {
            word.fetch_and(!bit, SeqCst);
        }
        fence(SeqCst);
    }

    /// Whether another process has the allocation at `place` open, as the page says; one that died has until it is
    /// reaped. False in a forked child.
    #[must_use]
    pub fn is_open_elsewhere(&self, place: usize) -> bool {
        let Some(page) = self.page() else { return false };
        let (own, bit) = bit(self.index());
        let words = page.shared_guests[place % SHARED_WORDS].iter().enumerate();
        words.fold(0, |all, (at, word)| {
            let guests = word.load(SeqCst);
            all | if at == own { guests & !bit } else { guests }
        }) != 0
    }
}
