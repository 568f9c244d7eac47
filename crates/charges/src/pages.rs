//! The pages of a device that allocations hold without filling them.
//!
//! A driver takes memory from its device in pages and lets allocations share them: a page is held as long as any
//! allocation lies in it. Pages that an allocation covers completely are its own and need no entry. Pages that it
//! covers in part have an entry here, with the number of allocations in the page.

use divvy_ledger::private::SpinLock;
use zerocopy::FromZeros;

use crate::owner::{CODE_BITS, Extent, Owned};
use crate::table::{Entry, Exhausted, Table, hash};
use crate::units::{begin_of_page, rounded_to};

const SHARDS: usize = 16;
/// In smaller pages the bits below the address cannot hold an owner.
pub(crate) const LEAST_PAGE: u64 = 1 << CODE_BITS;

/// The pages that are held in part, by owner.
pub struct PageMap {
    shards: [Shard; SHARDS],
}

#[repr(align(64))]
struct Shard(SpinLock<Table<Page>>);

#[repr(C)]
#[derive(Clone, Copy, FromZeros)]
struct Page {
    /// See [`PageKey`]; 0 marks a free entry. No driver uses page 0.
    key: u64,
    /// Allocations in the page.
    live: u64,
}

impl Entry for Page {
    #[inline]
    fn key(&self) -> u64 {
        self.key
    }
}

/// A page of an owner: its address, and the owner's code in the bits below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PageKey(u64);

/// The pages that an allocation lies in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    /// Bytes of pages that it covers whole.
    pub whole: u64,
    /// The pages that it covers in part.
    pub shared: [Option<PageKey>; 2],
}

impl Parts {
    /// The pages of an allocation, of `page` bytes each, a power of two and at least [`LEAST_PAGE`].
    #[inline]
    pub fn of(owned: Owned, page: u64) -> Self {
        let Extent { pointer, bytes } = owned.extent;
        let end = pointer.saturating_add(bytes);
        let (first, last) = (begin_of_page(pointer, page), begin_of_page(end, page));
        let code = u64::from(owned.owner.code());
        let key = |base: u64, covered: bool| covered.then_some(PageKey(base | code));
        if first == last {
            return Self {
                whole: 0,
                shared: [key(first, pointer < end), None],
            };
        }
        let whole = rounded_to(pointer, page);
        Self {
            whole: last - whole,
            shared: [key(first, pointer < whole), key(last, last < end)],
        }
    }

    /// The pages that it covers in part.
    pub fn keys(self) -> impl Iterator<Item = PageKey> {
        self.shared.into_iter().flatten()
    }
}

impl Default for PageMap {
    fn default() -> Self {
        Self::new()
    }
}

impl PageMap {
    /// No page is held.
    pub const fn new() -> Self {
        Self {
            shards: [const { Shard(SpinLock::new(Table::new())) }; SHARDS],
        }
    }

    /// Adds an allocation. Returns how many more bytes of pages its owner holds now.
    ///
    /// # Errors
    /// [`Exhausted`]; nothing is changed then.
    #[inline]
    pub fn enter(&self, owned: Owned, page: u64) -> Result<u64, Exhausted> {
        let parts = Parts::of(owned, page);
        let mut more = parts.whole;
        for (at, key) in parts.shared.iter().enumerate() {
            let Some(key) = *key else { continue };
            match self.enter_part(key) {
                Ok(fresh) => more += if fresh { page } else { 0 },
                Err(exhausted) => {
                    for entered in parts.shared[..at].iter().flatten() {
                        self.leave_part(*entered);
                    }
                    return Err(exhausted);
                }
            }
        }
        Ok(more)
    }

    /// Removes an allocation that was added with the same arguments. Returns how many bytes of pages its owner no
    /// longer holds.
    #[inline]
    pub fn leave(&self, owned: Owned, page: u64) -> u64 {
        let parts = Parts::of(owned, page);
        let mut less = parts.whole;
        for key in parts.shared {
            if let Some(key) = key
                && self.leave_part(key)
            {
                less += page;
            }
        }
        less
    }

    /// Adds an allocation to a page. Returns whether the page was not held before.
    ///
    /// # Errors
    /// [`Exhausted`]; nothing is changed then.
    #[inline]
    pub(crate) fn enter_part(&self, PageKey(key): PageKey) -> Result<bool, Exhausted> {
        let mut table = self.shard(key).0.lock();
        let place = table.place_for(key)?;
        let page = table.at(place);
        page.live += 1;
        let fresh = page.key == 0;
        page.key = key;
        if fresh {
            table.count_one();
        }
        Ok(fresh)
    }

    /// Removes one. Returns whether the page is no longer held.
    #[inline]
    pub(crate) fn leave_part(&self, PageKey(key): PageKey) -> bool {
        let mut table = self.shard(key).0.lock();
        let Some(place) = table.find(key) else {
            return false;
        };
        let page = table.at(place);
        page.live -= 1;
        let is_empty = page.live == 0;
        if is_empty {
            table.remove(place);
        }
        is_empty
    }

    /// Whether any allocation is in it.
    pub(crate) fn holds_part(&self, PageKey(key): PageKey) -> bool {
        self.shard(key).0.lock().find(key).is_some()
    }

    fn shard(&self, key: u64) -> &Shard {
        &self.shards[(hash(key) >> 60) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::Owner;
    use std::collections::{BTreeMap, BTreeSet};

    const PAGE: u64 = 2 << 20;
    const BASE: u64 = 0x7f00_0000_0000;

    fn owned(index: u8, pointer: u64, bytes: u64) -> Owned {
        let owner = Owner::Account(index);
        let extent = Extent { pointer, bytes };
        Owned { owner, extent }
    }

    #[test]
    fn an_allocation_is_whole_pages_and_two_parts_at_most() {
        let pages = PageMap::new();
        let at = |address, bytes| owned(3, BASE + address, bytes);
        let enter = |address, bytes| pages.enter(at(address, bytes), PAGE).expect("memory is there");
        assert_eq!(enter(0, 4 * PAGE), 4 * PAGE, "pages of its own");
        assert_eq!(enter(4 * PAGE, 512), PAGE);
        assert_eq!(enter(5 * PAGE - 512, 512), 0, "the same page's end");
        assert_eq!(enter(5 * PAGE - 1024, 1024), 0);
        assert_eq!(enter(5 * PAGE, PAGE + 512), 2 * PAGE);
        assert_eq!(
            enter(6 * PAGE + 512, 2 * PAGE),
            2 * PAGE,
            "from the middle of one to the middle of another"
        );
        let leave = |address, bytes| pages.leave(at(address, bytes), PAGE);
        assert_eq!(leave(6 * PAGE + 512, 2 * PAGE), 2 * PAGE);
        assert_eq!(leave(5 * PAGE, PAGE + 512), 2 * PAGE);
        assert_eq!(leave(5 * PAGE - 1024, 1024), 0);
        assert_eq!(leave(4 * PAGE, 512), 0);
        assert_eq!(leave(5 * PAGE - 512, 512), PAGE);
        assert_eq!(leave(5 * PAGE - 512, 512), 0, "it is not there");
        assert_eq!(leave(0, 4 * PAGE), 4 * PAGE);
    }

    #[test]
    fn it_agrees_with_a_reference_over_many_operations() {
        let pages = PageMap::new();
        let mut live: Vec<(u8, u64, u64)> = Vec::new();
        let mut random: u64 = 88_172_645_463_325_252;
        let mut held: BTreeMap<u8, u64> = BTreeMap::new();
        for step in 0..20_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let (owner, address) = (
                (random % 3) as u8,
                BASE + (random >> 20) % (200 * PAGE) / 512 * 512,
            );
            let bytes = [512, 4096, PAGE - 512, PAGE, PAGE + 512, 5 * PAGE][(random >> 50) as usize % 6];
            let now = held.entry(owner).or_default();
            if random & 64 == 0 || live.len() < 50 {
                // Real allocations never overlap; here they may, and still share pages.
                let inner: u64 = Parts::of(owned(owner, address, bytes), PAGE).whole;
                *now += pages
                    .enter(owned(owner, address, bytes), PAGE)
                    .expect("memory is there");
                *now -= inner;
                live.push((owner, address, bytes));
            } else {
                let (owner, address, bytes) = live.swap_remove((random >> 8) as usize % live.len());
                let now = held.entry(owner).or_default();
                *now += Parts::of(owned(owner, address, bytes), PAGE).whole;
                *now -= pages.leave(owned(owner, address, bytes), PAGE);
            }
            if step % 500 == 0 {
                for owner in 0..3 {
                    let parts: BTreeSet<PageKey> = live
                        .iter()
                        .filter(|(of, ..)| *of == owner)
                        .flat_map(|(of, address, bytes)| Parts::of(owned(*of, *address, *bytes), PAGE).keys())
                        .collect();
                    let expected = parts.len() as u64 * PAGE;
                    assert_eq!(held.get(&owner).copied().unwrap_or(0), expected, "step {step}");
                }
            }
        }
    }
}
