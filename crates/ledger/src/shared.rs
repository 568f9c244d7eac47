//! Allocations that several processes of a slice hold and one pays for: who pays, who has them open, and what stays
//! charged when the payer dies.
//!
//! A word is `key (40 bits) | process slot of who pays (11) | holders (13)`. Beside it stand what is paid for ([`Worth`]),
//! and a bit for each process that has the allocation open and does not pay. A payer that dies while such a process lives
//! keeps its place, and of its bytes those of the shared allocations, until nobody living has them: its holders need not
//! look.
//!
//! A payer that lives and has let go says so beside the word, and sleeps until it is called ([`Slot::wait_call`]): by a
//! process that leaves, by whoever finds that one which had it open is dead, and by whoever needs room. Only it takes the
//! bytes out of its own records. Nobody is called in vain and nobody missed: who leaves strikes itself out before it looks
//! whether the payer has let go, and the payer says that it has before it looks who is left.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::fence;
use core::time::Duration;

use rustix::thread::futex;

use crate::accounting::{SLOTS, UNIT};
use crate::layout::{LedgerPage, SHARED_WORDS};
use crate::roll::Roll;
use crate::slot::Slot;
use crate::worth::{LET_GO, Sum};
pub use crate::worth::{PAGE_NUMBERS, Worth};

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
        let mut sum = Sum::new();
        for (place, word) in self.shared.iter().enumerate() {
            let word = word.load(Acquire);
            if word != 0 && payer_of(word) == slot && self.is_open(roll, place, slot) {
                sum.add(Worth::of_word(self.shared_worth[place].load(Acquire)));
            }
        }
        sum.bytes().div_ceil(UNIT)
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
            let used = self.shared_worth[place].load(Relaxed) != 0 || self.shared[place].load(Relaxed) != 0;
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

    /// The place's allocation, if its payer has let go of it and nobody has it open, as far as the page says: who pays,
    /// and for how many bytes.
    fn let_go_by_all(&self, place: usize) -> Option<(usize, u64)> {
        let worth = self.shared_worth[place].load(SeqCst);
        let word = self.shared[place].load(SeqCst);
        let guests = &self.shared_guests[place];
        let left = worth & LET_GO != 0 && word != 0 && guests.iter().all(|guests| guests.load(SeqCst) == 0);
        left.then(|| (payer_of(word), Worth::of_word(worth).bytes()))
    }

    /// Has whoever pays for what everybody has let go of look. Answers bytes that come back by that.
    pub(crate) fn call_payers(&self) -> u64 {
        // Where nobody ever has, untouched words have no memory behind them.
        if self.bell.let_go.load(Acquire) == 0 {
            return 0;
        }
        let (mut called, mut all) = ([0_u64; SLOTS / 64], 0_u64);
        for (payer, bytes) in (0..SHARED_WORDS).filter_map(|place| self.let_go_by_all(place)) {
            let (at, bit) = bit(payer);
            if self.slots.0[payer].claimed.load(Acquire) == claim::TAKEN {
                all = all.saturating_add(bytes);
                if called[at] & bit == 0 {
                    called[at] |= bit;
                    self.call(payer);
                }
            }
        }
        all
    }

    fn call(&self, slot: usize) {
        let calls = &self.slots.0[slot].calls;
        calls.fetch_add(1, SeqCst);
        // Nobody waiting is not an error.
        let _woken = futex::wake(calls, futex::Flags::empty(), i32::MAX as u32);
    }
}

impl Slot {
    /// Notes what the allocation at `place` of [`Slot::shared`] is worth: as much stays charged should its payer die.
    /// Nothing is noted in a forked child.
    pub fn note_shared(&self, place: usize, worth: Worth) {
        if let Some(page) = self.page() {
            page.shared_worth[place % SHARED_WORDS].store(worth.to_word(), Release);
        }
    }

    /// Notes that this process, which pays for the allocation at `place`, has let go of it: it is called when it may be
    /// that nobody has it open any more. To be noted before it looks whether anybody has. Nothing is noted in a forked
    /// child.
    pub fn note_let_go(&self, place: usize) {
        if let Some(page) = self.page() {
            page.bell.let_go.store(1, Release);
            page.shared_worth[place % SHARED_WORDS].fetch_or(LET_GO, SeqCst);
            fence(SeqCst);
        }
    }

    /// How often this process was called: what [`Slot::wait_call`] compares with. 0 in a forked child.
    #[must_use]
    pub fn calls(&self) -> u32 {
        self.page()
            .map_or(0, |page| page.slots.0[self.index()].calls.load(SeqCst))
    }

    /// Waits until this process is called anew, or for `limit`. In a forked child it does not wait.
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

    /// Has those look that pay for what everybody has let go of. Answers bytes that come back by that, soon; 0 in a
    /// forked child.
    #[must_use]
    pub fn call_payers(&self) -> u64 {
        self.page().map_or(0, LedgerPage::call_payers)
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
        if !open && let Some((payer, _)) = page.let_go_by_all(place % SHARED_WORDS) {
            page.call(payer);
        }
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
