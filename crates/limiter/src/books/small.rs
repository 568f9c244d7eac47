//! Small things without an address that is told: arrays and modules' variables of up to half a page, which share pages with
//! each other and with small allocations.
//!
//! Where they lie is not known, but bounds hold wherever it is. Of `pages` pages that hold `objects` things of `bytes` in all,
//! the free bytes lie in at most `objects + pages` gaps, so one gap has at least their mean: what fits in there takes no
//! page more. And no page is held without one of them. So a thing takes a page unless it fits in the mean gap, and pages
//! go back when there are more of them than pieces. A page that small allocations leave may be held by one of these,
//! and is kept as theirs by the same bound.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use divvy_abi::CUresult;

use super::{POOLS, UNIT, grain, locked};
use crate::account::{self, Account};

/// What small things one account pays for.
struct Small {
    /// Pages that are charged for them.
    pages: u64,
    /// Things that are one allocation of the driver's, or several.
    objects: u64,
    /// The most allocations that they can be.
    pieces: u64,
    bytes: u64,
}

static SMALL: [Mutex<Small>; POOLS as usize] = [const {
    Mutex::new(Small {
        pages: 0,
        objects: 0,
        pieces: 0,
        bytes: 0,
    })
}; POOLS as usize];
/// How many there are, of all accounts.
static OBJECTS: AtomicU64 = AtomicU64::new(0);

fn of(account: Account) -> &'static Mutex<Small> {
    &SMALL[usize::from(account.index() % POOLS as u8)]
}

impl Small {
    fn takes_a_page(&self, page: u64, bytes: u64) -> bool {
        let free = (self.pages * page).saturating_sub(self.bytes);
        free < bytes * (self.objects + self.pages) || self.pages == 0
    }

    fn add(&mut self, bytes: u64, pieces: u64) {
        self.objects += 1;
        self.pieces += pieces;
        self.bytes += bytes;
    }

    /// Answers how many pages more there are than can be held.
    fn remove(&mut self, bytes: u64, pieces: u64) -> u64 {
        self.objects = self.objects.saturating_sub(1);
        self.pieces = self.pieces.saturating_sub(pieces);
        self.bytes = self.bytes.saturating_sub(bytes);
        let held = if self.objects == 0 { 0 } else { self.pieces };
        let back = self.pages.saturating_sub(held);
        self.pages -= back;
        back
    }
}

/// Whether something of so many bytes shares pages.
pub(crate) fn is(account: Account, bytes: u64) -> bool {
    let page = grain::settled_page(account);
    page > UNIT && (1..=page / 2).contains(&bytes)
}

/// Room for something of `bytes`, of at most `pieces` allocations.
///
/// # Errors
/// As [`account::reserve`].
pub(crate) fn enter(account: Account, bytes: u64, pieces: u64, what: &'static str) -> Result<(), CUresult> {
    // Nothing is to be had in a forked child.
    account::take(account, 0, what)?;
    let page = grain::settled_page(account);
    let mut small = locked(of(account));
    if small.takes_a_page(page, bytes) {
        if !account.try_reserve(page) {
            drop(small);
            account::take(account, page, what)?;
            small = locked(of(account));
        }
        small.pages += 1;
    }
    small.add(bytes, pieces);
    OBJECTS.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// What was entered so is gone.
pub(crate) fn leave(account: Account, bytes: u64, pieces: u64) {
    let back = locked(of(account)).remove(bytes, pieces);
    OBJECTS.fetch_sub(1, Ordering::Relaxed);
    if back > 0 {
        account.give_back(back * grain::settled_page(account));
    }
}

/// Of `bytes` of pages that an allocation of `size` has left, those that may be given back: one of these things may lie
/// in a page that was shared.
#[inline]
pub(crate) fn left(account: Account, size: u64, bytes: u64) -> u64 {
    if OBJECTS.load(Ordering::Relaxed) == 0 || bytes == 0 {
        return bytes;
    }
    left_by_some(account, size, bytes)
}

#[cold]
fn left_by_some(account: Account, size: u64, bytes: u64) -> u64 {
    if !is(account, size) {
        return bytes;
    }
    let page = grain::settled_page(account);
    let mut small = locked(of(account));
    let kept = (bytes / page).min(small.pieces.saturating_sub(small.pages));
    small.pages += kept;
    bytes - kept * page
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 2 << 20;

    #[test]
    fn pages_are_never_fewer_than_any_driver_can_need() {
        let mut small = Small {
            pages: 0,
            objects: 0,
            pieces: 0,
            bytes: 0,
        };
        // 128 KiB each, all but one in sixteen destroyed: a page for each that is left.
        let bytes = 128 << 10;
        for _ in 0..4096 {
            small.pages += u64::from(small.takes_a_page(PAGE, bytes));
            small.add(bytes, 1);
        }
        assert!((256..=600).contains(&small.pages), "{}", small.pages);
        let mut back = 0;
        for _ in 0..4096 - 256 {
            back += small.remove(bytes, 1);
        }
        assert!(small.pages >= 256, "{} and {back} back", small.pages);
        assert_eq!(small.objects, 256);
        // Half a page each: a gap of that size is not certain.
        assert!(small.takes_a_page(PAGE, PAGE / 2) || small.pages > 256);
        for _ in 0..256 {
            small.remove(bytes, 1);
        }
        assert_eq!((small.pages, small.bytes, small.pieces), (0, 0, 0));
        // Many tiny ones share pages.
        for _ in 0..1000 {
            small.pages += u64::from(small.takes_a_page(PAGE, 512));
            small.add(512, 1);
        }
        assert_eq!(small.pages, 1);
    }
}
