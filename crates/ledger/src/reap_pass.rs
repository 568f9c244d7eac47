//! One reap pass: which processes it has asked the system about, and how much more it may do. Tenants can write
//! anything into their ledger, and an agent that looks at it has other slices to serve. So a pass does a bounded amount
//! of work whatever the page says, and the next one continues.

use std::os::fd::BorrowedFd;

use core::sync::atomic::Ordering::Acquire;

use crate::accounting::SLOTS;
use crate::layout::LedgerPage;
use crate::liveness;
use crate::shared::claim;

/// Dead processes that one pass handles. Each takes microseconds, or tens of them if a tenant makes it as expensive as
/// possible.
pub(crate) const DEATHS: u32 = 128;
/// Importers of shared allocations that one pass checks. On an honest page each allocation has a living one, met twice
/// at most; each dead importer is met once.
const STEPS: u32 = 16 * SLOTS as u32;

/// The state of one pass.
pub(crate) struct ReapPass<'fd> {
    fd: BorrowedFd<'fd>,
    asked: [u64; SLOTS / 64],
    deaths: u32,
    steps: u32,
    short: bool,
}

impl<'fd> ReapPass<'fd> {
    /// `fd` is a descriptor whose description no other thread uses for locks at this time.
    pub fn new(fd: BorrowedFd<'fd>) -> Self {
        Self {
            fd,
            asked: [0; SLOTS / 64],
            deaths: DEATHS,
            steps: STEPS,
            short: false,
        }
    }

    /// Whether one more dead process may be handled.
    pub fn may_reap(&mut self) -> bool {
        take_one(&mut self.deaths)
    }

    /// Whether the pass ran out of budget and assumed a process alive without checking.
    pub fn fell_short(&self) -> bool {
        self.short
    }

    /// Whether `importer`, which imports something according to the page, may be alive. The caller does not hold its
    /// lock. A process counts as dead only if the system says so at this call: it may be a newcomer.
    pub fn may_live(&mut self, page: &LedgerPage, importer: usize) -> bool {
        if !take_one(&mut self.steps) {
            self.short = true;
            return true;
        }
        // A process has its slot noted before it opens anything.
        if importer >= page.slots_in_use() || page.slots.0[importer].claimed.load(Acquire) == claim::FREE {
            return false;
        }
        let (word, bit) = (importer / 64, 1 << (importer % 64));
        if self.asked[word] & bit != 0 {
            // It lived; or it was removed, and its bit was set again since; or the page lies.
            return true;
        }
        if self.deaths == 0 {
            self.short = true;
            return true;
        }
        self.asked[word] |= bit;
        // If the question fails, nothing is closed.
        if !liveness::try_own(self.fd, importer).unwrap_or(false) {
            return true;
        }
        self.deaths -= 1;
        page.closes_all(importer);
        // If the system refuses, closing the descriptor gives the lock up.
        let _given_up = liveness::disown(self.fd, importer);
        false
    }
}

fn take_one(of: &mut u32) -> bool {
    let any = *of > 0;
    *of = of.saturating_sub(1);
    any
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use core::sync::atomic::Ordering::Relaxed;
    use core::time::Duration;

    use super::*;
    use crate::layout::SHARED_WORDS;
    use crate::liveness::CALLS;
    use crate::shared::{HOLDER_BITS, Residual};
    use crate::{Backing, Effort, Ledger, Slot, SlotOwner, ledger};

    /// How many questions a pass may ask: for each slot whether its process lives and whether its importer does, each
    /// with the release of the lock; and the turn.
    const MOST: usize = 4 * SLOTS + 2;

    /// A page with the largest possible claims: each slot is claimed, and each allocation is shared by all and charged
    /// to `owner`.
    fn overwrite(page: &LedgerPage, owner: impl Fn(usize) -> usize) {
        page.high_water.store(u32::MAX, Relaxed);
        for slot in &page.slots.0 {
            slot.claimed.store(claim::TAKEN, Relaxed);
        }
        for place in 0..SHARED_WORDS {
            let word = (place as u64 + 1) << 24 | (owner(place) as u64) << HOLDER_BITS | 2;
            page.shared[place].store(word, Relaxed);
            page.shared_residuals[place].store(1, Relaxed);
            page.shared_importers[place]
                .iter()
                .for_each(|importers| importers.store(u64::MAX, Relaxed));
        }
    }

    fn asked(work: impl FnOnce()) -> usize {
        let before = CALLS.get();
        work();
        CALLS.get() - before
    }

    #[test]
    fn a_page_written_over_costs_a_look_a_bounded_number_of_questions() {
        let ledger = Ledger::create().expect("a ledger");
        let fd = ledger.share().expect("/proc");
        let tenants_map = ledger::map(&fd).expect("a ledger");
        let page = tenants_map.page();
        for owner in [|place| place, |place| SLOTS - 1 - place, |_| 0, |place| place % 7] {
            for _ in 0..20 {
                overwrite(page, owner);
                let calls = asked(|| {
                    let reaped = ledger.reap().expect("a look");
                    assert!(reaped.processes <= DEATHS, "{reaped:?}");
                });
                assert!(calls <= MOST, "{calls} questions");
            }
            overwrite(page, owner);
            // No process lives, and a full reap finds that out.
            ledger.reap_all().expect("it ends");
            let left = page
                .slots
                .0
                .iter()
                .filter(|slot| slot.claimed.load(Relaxed) != claim::FREE);
            assert_eq!(left.count(), 0);
        }
    }

    #[test]
    fn a_living_importer_is_asked_once_for_all_that_the_dead_paid() {
        let ledger = Ledger::create().expect("a ledger");
        let claim = || {
            let fd = ledger.share().expect("/proc");
            Slot::claim(fd, Backing::Sealed, SlotOwner::default()).expect("a slot")
        };
        let (owners, importer): (Vec<Slot>, Slot) = ((0..8).map(|_| claim()).collect(), claim());
        for (number, owner) in owners.iter().enumerate() {
            owner.reserve(64 * 512, 1 << 40).expect("it fits");
            for place in number * 64..(number + 1) * 64 {
                let word = (place as u64 + 1) << 24 | (owner.index() as u64) << HOLDER_BITS | 2;
                owner.shared().expect("ours")[place].store(word, Relaxed);
                owner.note_shared(place, Residual::whole(512));
                importer.note_open(place, true);
            }
        }
        drop(owners);
        let calls = asked(|| assert_eq!(ledger.reap().expect("a look").processes, 8));
        assert_eq!(ledger.total_used(), 512 * 512);
        // The turn; the eight slots, each locked and unlocked; the importer, as a process and as an importer.
        assert_eq!(calls, 2 + 8 * 2 + 2);
        drop(importer);
        ledger.reap_all().expect("a look");
        assert_eq!((ledger.total_used(), ledger.processes().count()), (0, 0));
    }

    #[test]
    fn a_crowd_that_lives_costs_a_look_so_many_questions_and_hides_no_death() {
        const CROWD: usize = 1000;
        let ledger = Ledger::create().expect("a ledger");
        let mut crowd: Vec<Slot> = (0..CROWD)
            .map(|_| {
                let fd = ledger.share().expect("/proc");
                Slot::claim(fd, Backing::Sealed, SlotOwner::default()).expect("a slot")
            })
            .collect();
        let look = || {
            let mut effort = Effort::new(64, Duration::MAX);
            let mut reaped = None;
            let calls = asked(|| reaped = ledger.reap_within(&mut effort).ok());
            (calls, reaped.expect("a look"))
        };
        for _ in 0..3 * CROWD / 64 {
            let (calls, reaped) = look();
            // The turn, taken and given up.
            assert!(calls <= 64 + 2, "{calls} questions");
            assert_eq!(reaped.processes, 0);
        }
        // A process in the middle dies: it is found one round later at most.
        drop(crowd.remove(CROWD / 2));
        let found = (0..=CROWD / 64 + 1).map(|_| look().1.processes).sum::<u32>();
        assert_eq!(found, 1);
        let unfinished = (0..=CROWD / 64).filter(|_| look().1.unfinished).count();
        assert!(unfinished < CROWD / 64 + 1, "a round ends");
    }

    #[test]
    fn a_turn_that_is_held_for_ever_keeps_no_look_waiting() {
        let ledger = Ledger::create().expect("a ledger");
        let theirs = ledger.share().expect("/proc");
        let held = liveness::Turn::at_once(theirs.as_fd())
            .expect("asked")
            .expect("free");
        let fd = ledger.share().expect("/proc");
        drop(Slot::claim(fd, Backing::Sealed, SlotOwner::default()).expect("a slot"));
        let look = || {
            let mut reaped = None;
            let calls = asked(|| reaped = ledger.reap_within(&mut Effort::of_a_look()).ok());
            (calls, reaped.expect("a look"))
        };
        let mut looks = 0;
        loop {
            let (calls, reaped) = look();
            looks += 1;
            if reaped.processes == 1 {
                break;
            }
            assert_eq!(
                (calls, reaped.unfinished),
                (1, true),
                "asked once, and left: {looks} {reaped:?}"
            );
            assert!(looks < 100, "the dead are never found");
        }
        assert!(looks > 1, "its holder may be at work");
        drop(held);
    }

    #[test]
    fn a_look_that_is_too_short_goes_on_at_the_next() {
        let ledger = Ledger::create().expect("a ledger");
        let slots: Vec<Slot> = (0..2 * DEATHS + 3)
            .map(|_| {
                let fd = ledger.share().expect("/proc");
                let slot = Slot::claim(fd, Backing::Sealed, SlotOwner::default()).expect("a slot");
                slot.reserve(512, 1 << 40).expect("it fits");
                slot
            })
            .collect();
        drop(slots);
        let looks: Vec<_> = (0..3)
            .map(|_| ledger.reap().expect("a look"))
            .map(|reaped| (reaped.processes, reaped.unfinished))
            .collect();
        assert_eq!(looks, [(DEATHS, true), (DEATHS, true), (3, false)]);
        assert_eq!(ledger.total_used(), 0);
    }

    #[test]
    fn a_process_that_opens_again_after_it_was_struck_out_may_live() {
        let ledger = Ledger::create().expect("a ledger");
        let fd = ledger.share().expect("/proc");
        let map = ledger::map(&fd).expect("a ledger");
        let page = map.page();
        overwrite(page, |_| 0);
        let mut pass = ReapPass::new(fd.as_fd());
        assert!(!pass.may_live(page, 5), "no process has its lock");
        assert_eq!(
            page.shared_importers[9][0].load(Relaxed) & 1 << 5,
            0,
            "struck out everywhere"
        );
        // A newcomer takes the slot, and counts on the owner: no earlier answer applies to it.
        assert!(pass.may_live(page, 5));
        page.slots.0[6].claimed.store(claim::FREE, Relaxed);
        assert!(!pass.may_live(page, 6));
    }
}
