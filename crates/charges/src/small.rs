//! Small objects without a reported address: arrays and modules' variables of up to half a page. They share pages with
//! each other and with small allocations.
//!
//! Their positions are unknown, but bounds hold for all positions. If `pages` pages hold `objects` objects of `bytes`
//! in all, the free bytes lie in at most `objects + pages` gaps. So one gap has at least their mean size, and an object
//! that fits in there takes no additional page. No page is held without one of the objects. So an object takes a page
//! unless it fits in the mean gap, and pages are given back when there are more of them than allocations. A page that
//! small allocations leave may be held by one of the objects. It then counts as theirs by the same bound.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use divvy_abi::CUresult;

use crate::environment::{Account, Reserve};
use crate::lock::locked;
use crate::owner::ACCOUNTS;
use crate::units::UNIT;

/// The small objects of one account.
struct Small {
    /// Pages that are charged for them.
    pages: u64,
    /// How many there are. Each is one allocation of the driver's, or several.
    objects: u64,
    /// The most allocations that they can be.
    allocations: u64,
    bytes: u64,
}

/// The small objects of all accounts.
pub(crate) struct SmallObjects {
    by_account: [Mutex<Small>; ACCOUNTS as usize],
    count: AtomicU64,
}

/// Whether an object of so many bytes shares pages of `page` bytes.
#[inline]
pub(crate) fn is_small(page: u64, bytes: u64) -> bool {
    page > UNIT && (1..=page / 2).contains(&bytes)
}

impl Small {
    const NONE: Self = Self {
        pages: 0,
        objects: 0,
        allocations: 0,
        bytes: 0,
    };

    fn takes_a_page(&self, page: u64, bytes: u64) -> bool {
        let free = (self.pages * page).saturating_sub(self.bytes);
        free < bytes * (self.objects + self.pages) || self.pages == 0
    }

    fn add(&mut self, bytes: u64, allocations: u64) {
        self.objects += 1;
        self.allocations += allocations;
        self.bytes += bytes;
    }

    /// Returns by how many the pages exceed the most that can be held.
    fn remove(&mut self, bytes: u64, allocations: u64) -> u64 {
        self.objects = self.objects.saturating_sub(1);
        self.allocations = self.allocations.saturating_sub(allocations);
        self.bytes = self.bytes.saturating_sub(bytes);
        let held = if self.objects == 0 { 0 } else { self.allocations };
        let back = self.pages.saturating_sub(held);
        self.pages -= back;
        back
    }
}

impl SmallObjects {
    pub const fn new() -> Self {
        Self {
            by_account: [const { Mutex::new(Small::NONE) }; ACCOUNTS as usize],
            count: AtomicU64::new(0),
        }
    }

    fn of(&self, account: u8) -> &Mutex<Small> {
        &self.by_account[usize::from(account) % self.by_account.len()]
    }

    /// Reserves memory for an object of `bytes`, which is at most so many allocations, in pages of `page` bytes.
    ///
    /// # Errors
    /// As [`Reserve::take`].
    pub fn enter<A: Account>(
        &self,
        room: &impl Reserve<A>,
        account: A,
        page: u64,
        bytes: u64,
        allocations: u64,
        what: &'static str,
    ) -> Result<(), CUresult> {
        // A forked child gets no memory.
        room.take(account, 0, what)?;
        let mut small = locked(self.of(account.index()));
        if small.takes_a_page(page, bytes) {
            if !account.try_reserve(page) {
                drop(small);
                room.take(account, page, what)?;
                small = locked(self.of(account.index()));
            }
            small.pages += 1;
        }
        small.add(bytes, allocations);
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Removes an object that was added with these arguments.
    pub fn leave(&self, account: impl Account, page: u64, bytes: u64, allocations: u64) {
        let back = locked(self.of(account.index())).remove(bytes, allocations);
        self.count.fetch_sub(1, Ordering::Relaxed);
        if back > 0 {
            account.give_back(back * page);
        }
    }

    /// Of `bytes` of pages that an allocation of `size` has left, the bytes that may be given back: a small object may
    /// lie in a shared page.
    #[inline]
    pub fn left(&self, account: u8, page: u64, size: u64, bytes: u64) -> u64 {
        if self.count.load(Ordering::Relaxed) == 0 || bytes == 0 || !is_small(page, size) {
            return bytes;
        }
        self.left_by_some(account, page, bytes)
    }

    #[cold]
    fn left_by_some(&self, account: u8, page: u64, bytes: u64) -> u64 {
        let mut small = locked(self.of(account));
        let kept = (bytes / page).min(small.allocations.saturating_sub(small.pages));
        small.pages += kept;
        bytes - kept * page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 2 << 20;

    #[test]
    fn pages_are_never_fewer_than_any_driver_can_need() {
        let mut small = Small::NONE;
        // 128 KiB each, all but one in sixteen destroyed: one page for each remaining object.
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
        // Half a page each: a gap of that size is not guaranteed.
        assert!(small.takes_a_page(PAGE, PAGE / 2) || small.pages > 256);
        for _ in 0..256 {
            small.remove(bytes, 1);
        }
        assert_eq!((small.pages, small.bytes, small.allocations), (0, 0, 0));
        // Many tiny ones share pages.
        for _ in 0..1000 {
            small.pages += u64::from(small.takes_a_page(PAGE, 512));
            small.add(512, 1);
        }
        assert_eq!(small.pages, 1);
    }
}
