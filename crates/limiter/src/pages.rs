//! Which pages of a device are held by allocations that do not fill them.
//!
//! A driver takes memory from its device in pages and lets allocations share them: a page is held for as long as any
//! allocation lies in it. Pages that an allocation covers whole are its own and need no entry; those that it covers in
//! part have one here, with the number of allocations in the page.
//!
//! Shards of open addressing in memory from mmap, as in [`crate::map`], and for the same reason.

use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use crate::map::Exhausted;

const SHARDS: usize = 16;
/// Entries of a shard's first table.
const FIRST_CAPACITY: usize = 256;

/// The pages that are held in part, by who paid for them.
pub struct PageMap {
    shards: [Shard; SHARDS],
}

#[repr(align(64))]
struct Shard {
    locked: AtomicBool,
    table: UnsafeCell<Table>,
}

// SAFETY: the table is touched only between `lock` and `unlock`.
unsafe impl Sync for Shard {}

struct Table {
    /// `capacity` entries, all zero where free; dangling while `capacity` is 0.
    entries: NonNull<Entry>,
    /// A power of two, or 0 before the first insertion.
    capacity: usize,
    held: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    /// Address of the page, and who pays in the bits below; 0 marks a free place. Page 0 is no driver's.
    key: u64,
    /// Allocations in the page.
    live: u64,
}

/// Splits an allocation into bytes of whole pages and the keys of at most two pages that it covers in part. `page` and
/// `payer` as for [`PageMap::enter`].
pub(crate) fn split(payer: u16, page: u64, address: u64, bytes: u64) -> (u64, [Option<u64>; 2]) {
    let end = address.saturating_add(bytes);
    let (first, last) = (address / page * page, end / page * page);
    let key = |base: u64, covered: bool| covered.then_some(base | u64::from(payer));
    if first == last {
        return (0, [key(first, address < end), None]);
    }
    let whole = address.next_multiple_of(page);
    (last - whole, [key(first, address < whole), key(last, last < end)])
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
            shards: [const {
                Shard {
                    locked: AtomicBool::new(false),
                    table: UnsafeCell::new(Table {
                        entries: NonNull::dangling(),
                        capacity: 0,
                        held: 0,
                    }),
                }
            }; SHARDS],
        }
    }

    /// An allocation of `bytes` at `address`, in pages of `page` bytes, a power of two above every payer. Answers how
    /// many bytes of pages `payer` holds more by that.
    ///
    /// # Errors
    /// [`Exhausted`]; nothing is changed then.
    #[inline]
    pub fn enter(&self, payer: u16, page: u64, address: u64, bytes: u64) -> Result<u64, Exhausted> {
        let (mut more, parts) = split(payer, page, address, bytes);
        for (at, part) in parts.iter().enumerate() {
            let Some(key) = *part else { continue };
            match self.shard(key).with(|table| table.enter(key)) {
                Ok(true) => more += page,
                Ok(false) => {}
                Err(exhausted) => {
                    for entered in parts[..at].iter().flatten() {
                        self.shard(*entered).with(|table| table.leave(*entered));
                    }
                    return Err(exhausted);
                }
            }
        }
        Ok(more)
    }

    /// The end of an allocation that was entered with the same arguments. Answers how many bytes of pages `payer` holds
    /// less by that.
    #[inline]
    pub fn leave(&self, payer: u16, page: u64, address: u64, bytes: u64) -> u64 {
        let (mut less, parts) = split(payer, page, address, bytes);
        for key in parts.into_iter().flatten() {
            if self.shard(key).with(|table| table.leave(key)) {
                less += page;
            }
        }
        less
    }

    /// One allocation more in the page of a key that [`split`] has given. Answers whether it was not held before.
    ///
    /// # Errors
    /// [`Exhausted`]; nothing is changed then.
    pub(crate) fn enter_part(&self, key: u64) -> Result<bool, Exhausted> {
        self.shard(key).with(|table| table.enter(key))
    }

    /// One less. Answers whether it is not held any more.
    pub(crate) fn leave_part(&self, key: u64) -> bool {
        self.shard(key).with(|table| table.leave(key))
    }

    /// Whether any allocation is in it.
    pub(crate) fn holds_part(&self, key: u64) -> bool {
        self.shard(key).with(|table| table.holds(key))
    }

    fn shard(&self, key: u64) -> &Shard {
        &self.shards[(hash(key) >> 60) as usize]
    }
}

#[inline]
fn hash(key: u64) -> u64 {
    let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl Shard {
    #[inline]
    fn with<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        while self
            .locked
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            self.wait();
        }
        // SAFETY: the lock is held; `change` does not panic, and nothing here is reached from within it.
        let answer = change(unsafe { &mut *self.table.get() });
        self.locked.store(false, Ordering::Release);
        answer
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..64 {
            if !self.locked.load(Ordering::Relaxed) {
                return;
            }
            core::hint::spin_loop();
        }
        rustix::thread::sched_yield();
    }
}

impl Table {
    #[inline]
    fn at(&mut self, place: usize) -> &mut Entry {
        debug_assert!(place < self.capacity);
        // SAFETY: `place` is below `capacity`: it comes from a loop up to it or was masked by `capacity - 1`.
        unsafe { self.entries.add(place).as_mut() }
    }

    /// Answers whether the page was not held before.
    #[inline]
    fn enter(&mut self, key: u64) -> Result<bool, Exhausted> {
        if self.held >= self.capacity / 2 {
            self.grow()?;
        }
        let place = self.place_of(key);
        let entry = self.at(place);
        let fresh = entry.key == 0;
        entry.key = key;
        entry.live += 1;
        self.held += usize::from(fresh);
        Ok(fresh)
    }

    /// Answers whether the page is not held any more.
    #[inline]
    fn leave(&mut self, key: u64) -> bool {
        if self.capacity == 0 {
            return false;
        }
        let place = self.place_of(key);
        let entry = self.at(place);
        if entry.key == 0 {
            return false;
        }
        entry.live -= 1;
        let empty = entry.live == 0;
        if empty {
            self.free(place);
        }
        empty
    }

    fn holds(&mut self, key: u64) -> bool {
        if self.capacity == 0 {
            return false;
        }
        let place = self.place_of(key);
        self.at(place).key != 0
    }

    /// Where `key` is, or the free place where it would go. There is always a free place.
    #[inline]
    fn place_of(&mut self, key: u64) -> usize {
        let mask = self.capacity - 1;
        let mut place = hash(key) as usize & mask;
        loop {
            let found = self.at(place).key;
            if found == key || found == 0 {
                return place;
            }
            place = (place + 1) & mask;
        }
    }

    /// Frees a place, moving back what had to pass over it.
    fn free(&mut self, mut hole: usize) {
        let mask = self.capacity - 1;
        let mut place = hole;
        loop {
            place = (place + 1) & mask;
            let entry = *self.at(place);
            if entry.key == 0 {
                break;
            }
            let home = hash(entry.key) as usize & mask;
            if (place.wrapping_sub(home) & mask) >= (place.wrapping_sub(hole) & mask) {
                *self.at(hole) = entry;
                hole = place;
            }
        }
        *self.at(hole) = Entry { key: 0, live: 0 };
        self.held -= 1;
    }

    #[cold]
    fn grow(&mut self) -> Result<(), Exhausted> {
        let capacity = (self.capacity * 2).max(FIRST_CAPACITY);
        let mut larger = Table {
            entries: map_entries(capacity)?,
            capacity,
            held: self.held,
        };
        for place in 0..self.capacity {
            let entry = *self.at(place);
            if entry.key != 0 {
                let to = larger.place_of(entry.key);
                *larger.at(to) = entry;
            }
        }
        core::mem::swap(self, &mut larger);
        Ok(())
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if self.capacity != 0 {
            // SAFETY: the range is what `map_entries` mapped for this capacity, and nobody else has it.
            let _unmapped = unsafe {
                rustix::mm::munmap(self.entries.as_ptr().cast(), self.capacity * size_of::<Entry>())
            };
        }
    }
}

fn map_entries(capacity: usize) -> Result<NonNull<Entry>, Exhausted> {
    // SAFETY: a fresh anonymous mapping overlaps nothing.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(
            core::ptr::null_mut(),
            capacity * size_of::<Entry>(),
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    NonNull::new(mapped.map_err(|_| Exhausted)?.cast()).ok_or(Exhausted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    const PAGE: u64 = 2 << 20;
    const BASE: u64 = 0x7f00_0000_0000;

    #[test]
    fn an_allocation_is_whole_pages_and_two_parts_at_most() {
        let pages = PageMap::new();
        let enter = |address, bytes| {
            pages
                .enter(3, PAGE, BASE + address, bytes)
                .expect("memory is there")
        };
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
        let leave = |address, bytes| pages.leave(3, PAGE, BASE + address, bytes);
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
        let mut live: Vec<(u16, u64, u64)> = Vec::new();
        let mut random: u64 = 88_172_645_463_325_252;
        let mut held: BTreeMap<u16, u64> = BTreeMap::new();
        for step in 0..20_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let (payer, address) = (
                (random % 3) as u16,
                BASE + (random >> 20) % (200 * PAGE) / 512 * 512,
            );
            let bytes = [512, 4096, PAGE - 512, PAGE, PAGE + 512, 5 * PAGE][(random >> 50) as usize % 6];
            let now = held.entry(payer).or_default();
            if random & 64 == 0 || live.len() < 50 {
                // Allocations never overlap; here they may, and share pages all the same.
                let inner: u64 = split(payer, PAGE, address, bytes).0;
                *now += pages.enter(payer, PAGE, address, bytes).expect("memory is there");
                *now -= inner;
                live.push((payer, address, bytes));
            } else {
                let (payer, address, bytes) = live.swap_remove((random >> 8) as usize % live.len());
                let now = held.entry(payer).or_default();
                *now += split(payer, PAGE, address, bytes).0;
                *now -= pages.leave(payer, PAGE, address, bytes);
            }
            if step % 500 == 0 {
                for payer in 0..3 {
                    let parts: BTreeSet<u64> = live
                        .iter()
                        .filter(|(of, ..)| *of == payer)
                        .flat_map(|(of, address, bytes)| split(*of, PAGE, *address, *bytes).1)
                        .flatten()
                        .collect();
                    let expected = parts.len() as u64 * PAGE;
                    assert_eq!(held.get(&payer).copied().unwrap_or(0), expected, "step {step}");
                }
            }
        }
    }
}
