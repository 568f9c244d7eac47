//! Which device pointer was charged how much.
//!
//! 64 shards of open addressing with linear probing, in memory from mmap: the program's own allocator is not ours to
//! call from inside its allocations. Beside its lock each shard keeps its newest pointers, so that an allocation that is
//! freed again soon never touches the table: its cost stays flat whatever the number of live pointers, while a table of
//! 100,000 no longer fits a core's cache.

use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

const SHARDS: usize = 64;
/// Entries of a shard's first table: one page.
const FIRST_CAPACITY: u32 = 256;

/// What is known of a live pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Bytes charged for it: a multiple of 512.
    pub bytes: u64,
    /// Who was charged: see the books.
    pub payer: u16,
    /// Tells two allocations at the same address, one after the other, apart.
    pub stamp: u32,
}

/// No memory for a larger table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted;

/// A map from device pointers, never 0, to what was charged for them.
pub struct PointerMap {
    shards: [Shard; SHARDS],
    stamp: AtomicU32,
}

/// Newest pointers that a shard keeps beside its lock: what fits the two cache lines that are fetched anyway.
const RECENT: usize = 6;

/// Alone on its cache lines, or neighbours would slow each other down.
#[repr(align(128))]
struct Shard {
    locked: AtomicBool,
    contents: UnsafeCell<Contents>,
}

// SAFETY: the contents are touched only between `lock` and the guard's drop.
unsafe impl Sync for Shard {}

struct Contents {
    /// Which of the recent ones goes to the table next.
    oldest: u8,
    table: Table,
    recent: [Entry; RECENT],
}

const _: () = assert!(size_of::<Shard>() == 128);

struct Table {
    /// `capacity` entries, all zero where free; dangling while `capacity` is 0.
    entries: NonNull<Entry>,
    /// A power of two, or 0 before the first insertion.
    capacity: u32,
    live: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    /// 0 marks a free place.
    pointer: u64,
    /// Bytes, payer and stamp: see [`pack`].
    charge: u64,
}

const FREE: Entry = Entry {
    pointer: 0,
    charge: 0,
};

/// Bytes of one unit of a charge, as the ledger counts them; its 38 bits of units are what fits the rest of a word.
const UNIT: u64 = divvy_ledger::accounting::UNIT;
const STAMP_BITS: u32 = 14;
const PAYER_BITS: u32 = 12;

/// Payers are numbered below this.
pub const PAYERS: u16 = 1 << PAYER_BITS;

impl Default for PointerMap {
    fn default() -> Self {
        Self::new()
    }
}

impl PointerMap {
    /// An empty map. Takes no memory until something is inserted.
    pub const fn new() -> Self {
        Self {
            shards: [const {
                Shard {
                    locked: AtomicBool::new(false),
                    contents: UnsafeCell::new(Contents {
                        oldest: 0,
                        table: Table {
                            entries: NonNull::dangling(),
                            capacity: 0,
                            live: 0,
                        },
                        recent: [FREE; RECENT],
                    }),
                }
            }; SHARDS],
            stamp: AtomicU32::new(0),
        }
    }

    /// Notes that `pointer` was charged to `payer` with `bytes`. Answers a charge that is found void by that, and forgotten: an address
    /// that the driver hands out again was freed in a way that we did not see.
    ///
    /// # Errors
    /// [`Exhausted`]; nothing is changed then.
    #[inline]
    pub fn insert(&self, pointer: u64, bytes: u64, payer: u16) -> Result<Option<Charge>, Exhausted> {
        // The stamp need only differ between neighbours in time, so losing an increment to a race is no harm.
        let stamp = self.stamp.load(Ordering::Relaxed).wrapping_add(1);
        self.stamp.store(stamp, Ordering::Relaxed);
        let entry = Entry {
            pointer,
            charge: pack(bytes, payer, stamp),
        };
        let mut shard = self.shard(hash(pointer)).lock();
        if let Some(same) = shard.recent.iter_mut().find(|recent| recent.pointer == pointer) {
            return Ok(Some(unpack(core::mem::replace(same, entry).charge)));
        }
        if let Some(free) = shard.recent.iter_mut().find(|recent| recent.pointer == 0) {
            *free = entry;
            return Ok(None);
        }
        let oldest = usize::from(shard.oldest) % RECENT;
        let moved = shard.recent[oldest];
        let void = shard.table.insert(moved)?;
        shard.recent[oldest] = entry;
        shard.oldest = (oldest as u8 + 1) % RECENT as u8;
        Ok(void.map(|entry| unpack(entry.charge)))
    }

    /// Forgets `pointer`; answers what was known of it.
    #[inline]
    pub fn take(&self, pointer: u64) -> Option<Charge> {
        self.take_if(pointer, |_| true)
    }

    /// Forgets `pointer` if `wanted` says so of what is known of it.
    #[inline]
    pub fn take_if(&self, pointer: u64, wanted: impl FnOnce(Charge) -> bool) -> Option<Charge> {
        if pointer == 0 {
            return None;
        }
        let hash = hash(pointer);
        let mut shard = self.shard(hash).lock();
        if let Some(recent) = shard.recent.iter_mut().find(|recent| recent.pointer == pointer) {
            let charge = unpack(recent.charge);
            return wanted(charge).then(|| {
                *recent = FREE;
                charge
            });
        }
        shard.table.take_if(pointer, hash, wanted)
    }

    /// Every pointer known at about this moment. Not on any fast path: it allocates.
    pub fn snapshot(&self) -> Vec<(u64, Charge)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            // Room is made before the lock is taken, so that no allocation happens under it.
            let expected = shard.lock().table.live as usize + RECENT + 64;
            all.reserve(expected);
            let shard = shard.lock();
            let table = (0..shard.table.capacity as usize).map(|place| shard.table.read(place));
            for entry in shard.recent.iter().copied().chain(table) {
                if entry.pointer != 0 && all.len() < all.capacity() {
                    all.push((entry.pointer, unpack(entry.charge)));
                }
            }
        }
        all
    }

    fn shard(&self, hash: u64) -> &Shard {
        &self.shards[(hash >> 58) as usize]
    }
}

/// Spreads pointers, which end in zeros, over shards (top bits) and places (the bits below).
#[inline]
fn hash(pointer: u64) -> u64 {
    let mixed = pointer.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// What is reserved is rounded up to whole units, and a ledger holds no more than 38 bits of them.
fn pack(bytes: u64, payer: u16, stamp: u32) -> u64 {
    debug_assert!(bytes.is_multiple_of(UNIT) && bytes / UNIT < 1 << 38 && payer < PAYERS);
    let units = bytes / UNIT;
    (units << PAYER_BITS | u64::from(payer)) << STAMP_BITS | u64::from(stamp) & ((1 << STAMP_BITS) - 1)
}

fn unpack(charge: u64) -> Charge {
    Charge {
        bytes: (charge >> (STAMP_BITS + PAYER_BITS)) * UNIT,
        payer: (charge >> STAMP_BITS) as u16 & (PAYERS - 1),
        stamp: (charge & ((1 << STAMP_BITS) - 1)) as u32,
    }
}

struct Guard<'a>(&'a Shard);

impl Shard {
    #[inline]
    fn lock(&self) -> Guard<'_> {
        while self
            .locked
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            self.wait();
        }
        Guard(self)
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..64 {
            if !self.locked.load(Ordering::Relaxed) {
                return;
            }
            core::hint::spin_loop();
        }
        // Held for tens of nanoseconds, or its holder was put off the processor: then it needs ours.
        rustix::thread::sched_yield();
    }
}

impl core::ops::Deref for Guard<'_> {
    type Target = Contents;

    #[inline]
    fn deref(&self) -> &Contents {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.0.contents.get() }
    }
}

impl core::ops::DerefMut for Guard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Contents {
        // SAFETY: the guard holds the lock, and is borrowed mutably.
        unsafe { &mut *self.0.contents.get() }
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.locked.store(false, Ordering::Release);
    }
}

impl Table {
    #[inline]
    fn read(&self, place: usize) -> Entry {
        debug_assert!(place < self.capacity as usize);
        // SAFETY: `place` is below `capacity`: it comes from a loop up to it or was masked by `capacity - 1`.
        unsafe { self.entries.add(place).read() }
    }

    #[inline]
    fn write(&mut self, place: usize, entry: Entry) {
        debug_assert!(place < self.capacity as usize);
        // SAFETY: as in `read`.
        unsafe { self.entries.add(place).write(entry) };
    }

    /// Puts `entry` in; answers the one of the same pointer that it replaces.
    #[inline]
    fn insert(&mut self, entry: Entry) -> Result<Option<Entry>, Exhausted> {
        if self.live >= self.capacity / 2 {
            self.grow()?;
        }
        let place = self.place_of(entry.pointer, hash(entry.pointer));
        let old = self.read(place);
        self.write(place, entry);
        if old.pointer == entry.pointer {
            return Ok(Some(old));
        }
        self.live += 1;
        Ok(None)
    }

    #[inline]
    fn take_if(&mut self, pointer: u64, hash: u64, wanted: impl FnOnce(Charge) -> bool) -> Option<Charge> {
        if self.capacity == 0 {
            return None;
        }
        let place = self.place_of(pointer, hash);
        let found = self.read(place);
        if found.pointer != pointer || !wanted(unpack(found.charge)) {
            return None;
        }
        self.free(place);
        Some(unpack(found.charge))
    }

    /// Where `pointer` is, or the free place where it would go. There is always a free place.
    #[inline]
    fn place_of(&self, pointer: u64, hash: u64) -> usize {
        let mask = self.capacity as usize - 1;
        let mut place = hash as usize & mask;
        loop {
            let found = self.read(place).pointer;
            if found == pointer || found == 0 {
                return place;
            }
            place = (place + 1) & mask;
        }
    }

    /// Frees a place, moving back what had to pass over it: no tombstones, so lookups stay short for ever.
    fn free(&mut self, mut hole: usize) {
        let mask = self.capacity as usize - 1;
        let mut place = hole;
        loop {
            place = (place + 1) & mask;
            let entry = self.read(place);
            if entry.pointer == 0 {
                break;
            }
            let home = hash(entry.pointer) as usize & mask;
            // May the entry move to the hole without getting in front of its home?
            if (place.wrapping_sub(home) & mask) >= (place.wrapping_sub(hole) & mask) {
                self.write(hole, entry);
                hole = place;
            }
        }
        self.write(
            hole,
            Entry {
                pointer: 0,
                charge: 0,
            },
        );
        self.live -= 1;
    }

    #[cold]
    fn grow(&mut self) -> Result<(), Exhausted> {
        let capacity = if self.capacity == 0 {
            FIRST_CAPACITY
        } else {
            self.capacity * 2
        };
        let mut larger = Table {
            entries: map_entries(capacity)?,
            capacity,
            live: self.live,
        };
        for place in 0..self.capacity as usize {
            let entry = self.read(place);
            if entry.pointer != 0 {
                let to = larger.place_of(entry.pointer, hash(entry.pointer));
                larger.write(to, entry);
            }
        }
        core::mem::swap(self, &mut larger);
        // `larger` is now the old table, and unmaps itself.
        Ok(())
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if self.capacity != 0 {
            // SAFETY: the range is what `map_entries` mapped for this capacity, and nobody else has it.
            let _unmapped = unsafe {
                rustix::mm::munmap(
                    self.entries.as_ptr().cast(),
                    self.capacity as usize * size_of::<Entry>(),
                )
            };
        }
    }
}

fn map_entries(capacity: u32) -> Result<NonNull<Entry>, Exhausted> {
    // SAFETY: a fresh anonymous mapping overlaps nothing.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(
            core::ptr::null_mut(),
            capacity as usize * size_of::<Entry>(),
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    let mapped = mapped.map_err(|_| Exhausted)?;
    NonNull::new(mapped.cast()).ok_or(Exhausted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn it_agrees_with_a_reference_over_many_operations() {
        let map = PointerMap::new();
        let mut reference: HashMap<u64, u64> = HashMap::new();
        let mut random: u64 = 88172645463325252;
        for step in 0..400_000u64 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // Few enough addresses to meet again, aligned as a driver's are.
            let pointer = 0x7f00_0000_0000 + (random >> 40) % 30_000 * 512;
            let bytes = (random >> 20 & 0xfff) * 512;
            // A driver hands out no address that is live.
            if random & 3 < 2 && !reference.contains_key(&pointer) {
                assert_eq!(map.insert(pointer, bytes, 3), Ok(None), "step {step}");
                reference.insert(pointer, bytes);
            } else {
                let old = map.take(pointer);
                assert_eq!(old.map(|o| o.bytes), reference.remove(&pointer), "step {step}");
            }
        }
        let mut left: Vec<_> = map.snapshot().into_iter().map(|(p, c)| (p, c.bytes)).collect();
        let mut expected: Vec<_> = reference.into_iter().collect();
        left.sort_unstable();
        expected.sort_unstable();
        assert_eq!(left, expected);
    }

    #[test]
    fn an_address_handed_out_again_voids_its_old_charge() {
        let map = PointerMap::new();
        let all = || (1..=5_000u64).map(|n| n * 512);
        for pointer in all() {
            assert_eq!(map.insert(pointer, 1024, 0), Ok(None));
        }
        let mut void = 0;
        for pointer in all() {
            void += u64::from(map.insert(pointer, 2048, 0).expect("memory is there").is_some());
        }
        // The newest of each shard may not have met their old charges yet.
        assert!(void >= 5_000 - (SHARDS * RECENT) as u64, "{void}");
        for pointer in all() {
            assert_eq!(map.take(pointer).map(|charge| charge.bytes), Some(2048));
        }
    }

    #[test]
    fn stamps_tell_two_allocations_at_one_address_apart() {
        let map = PointerMap::new();
        map.insert(512, 1024, PAYERS - 1).expect("memory is there");
        let (_, first) = map.snapshot()[0];
        assert_eq!((first.bytes, first.payer), (1024, PAYERS - 1));
        map.take(512);
        map.insert(512, 1024, PAYERS - 1).expect("memory is there");
        assert_eq!(map.take_if(512, |charge| charge == first), None);
        assert!(map.take(512).is_some());
        assert_eq!(map.take(512), None);
        assert_eq!(map.take(0), None);
    }

    #[test]
    fn threads_do_not_lose_each_others_pointers() {
        let map = PointerMap::new();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let map = &map;
                scope.spawn(move || {
                    for round in 0..20_000u64 {
                        let pointer = (thread << 40) + (round % 3_000 + 1) * 512;
                        map.insert(pointer, round * 512, 1).expect("memory is there");
                        if round % 3 != 0 {
                            assert_eq!(map.take(pointer).map(|c| c.bytes), Some(round * 512));
                        }
                    }
                });
            }
        });
        for (pointer, _) in map.snapshot() {
            assert!(map.take(pointer).is_some());
        }
        assert!(map.snapshot().is_empty());
    }
}
