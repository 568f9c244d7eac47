//! The device pointers that this process is charged for.
//!
//! 64 shards, each a lock and a [`Table`]. Beside its lock each shard keeps its newest pointers, so that an allocation
//! that is freed soon never touches the table. Its cost stays flat whatever the number of live pointers, while a table
//! of 100,000 no longer fits a core's cache.

use core::sync::atomic::{AtomicU32, Ordering};

use divvy_ledger::private::SpinLock;
use zerocopy::FromZeros;

use crate::owner::{CODE_BITS, Extent, Owned, Owner};
use crate::table::{Entry, Exhausted, Table, hash};
use crate::units::UNIT;

const SHARDS: usize = 64;

/// The entry of a live pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Bytes charged for it: a multiple of 512.
    pub bytes: u64,
    /// The owner of the charge.
    pub owner: Owner,
    /// Distinguishes two successive allocations at the same address.
    pub stamp: u32,
}

impl Charge {
    /// The allocation at `pointer` that has this charge.
    #[inline]
    #[must_use]
    pub fn at(self, pointer: u64) -> Owned {
        let Self { bytes, owner, .. } = self;
        Owned {
            owner,
            extent: Extent { pointer, bytes },
        }
    }
}

/// A map from device pointers, never 0, to their charges.
pub struct PointerMap {
    shards: [Shard; SHARDS],
    stamp: AtomicU32,
}

/// How many of its newest pointers a shard keeps beside its lock: as many as fit the two cache lines that are fetched
/// anyway.
const RECENT: usize = 6;

/// Alone on its cache lines, since neighbours would slow each other down.
#[repr(align(128))]
struct Shard(SpinLock<Contents>);

struct Contents {
    /// Which of the recent ones goes to the table next.
    oldest: u8,
    table: Table<Pointer>,
    recent: [Pointer; RECENT],
}

const _: () = assert!(size_of::<Shard>() == 128);

#[repr(C)]
#[derive(Clone, Copy, FromZeros)]
struct Pointer {
    /// 0 marks a free entry.
    pointer: u64,
    /// Bytes, owner and stamp: see [`pack`].
    charge: u64,
}

impl Entry for Pointer {
    #[inline]
    fn key(&self) -> u64 {
        self.pointer
    }
}

const FREE: Pointer = Pointer {
    pointer: 0,
    charge: 0,
};

const STAMP_BITS: u32 = 14;

impl Default for PointerMap {
    fn default() -> Self {
        Self::new()
    }
}

impl PointerMap {
    /// An empty map. Takes no memory before the first insertion.
    pub const fn new() -> Self {
        Self {
            shards: [const {
                Shard(SpinLock::new(Contents {
                    oldest: 0,
                    table: Table::new(),
                    recent: [FREE; RECENT],
                }))
            }; SHARDS],
            stamp: AtomicU32::new(0),
        }
    }

    /// Records the owner of an allocation's charge. Returns the charge of an older allocation at the same address: the
    /// driver reuses an address only after a free, which the limiter did not see.
    ///
    /// # Errors
    /// [`Exhausted`]; nothing is changed then.
    #[inline]
    pub fn insert(&self, owned: Owned) -> Result<Option<Charge>, Exhausted> {
        let Extent { pointer, bytes } = owned.extent;
        // The stamp need only differ between neighbours in time, so losing an increment to a race does no harm.
        let stamp = self.stamp.load(Ordering::Relaxed).wrapping_add(1);
        self.stamp.store(stamp, Ordering::Relaxed);
        let entry = Pointer {
            pointer,
            charge: pack(bytes, owned.owner, stamp),
        };
        let mut shard = self.shard(hash(pointer)).0.lock();
        if let Some(same) = shard.recent.iter_mut().find(|recent| recent.pointer == pointer) {
            return Ok(Some(unpack(core::mem::replace(same, entry).charge)));
        }
        if let Some(free) = shard.recent.iter_mut().find(|recent| recent.pointer == 0) {
            *free = entry;
            return Ok(None);
        }
        let oldest = usize::from(shard.oldest) % RECENT;
        let moved = shard.recent[oldest];
        let place = shard.table.place_for(moved.pointer)?;
        let void = shard.table.put(place, moved);
        shard.recent[oldest] = entry;
        shard.oldest = (oldest as u8 + 1) % RECENT as u8;
        Ok(void.map(|entry| unpack(entry.charge)))
    }

    /// Removes `pointer`; returns its entry.
    #[inline]
    pub fn take(&self, pointer: u64) -> Option<Charge> {
        self.take_if(pointer, |_| true)
    }

    /// Removes `pointer` if `wanted` accepts its entry.
    #[inline]
    pub fn take_if(&self, pointer: u64, wanted: impl FnOnce(Charge) -> bool) -> Option<Charge> {
        if pointer == 0 {
            return None;
        }
        let mut shard = self.shard(hash(pointer)).0.lock();
        if let Some(recent) = shard.recent.iter_mut().find(|recent| recent.pointer == pointer) {
            let charge = unpack(recent.charge);
            return wanted(charge).then(|| {
                *recent = FREE;
                charge
            });
        }
        let place = shard.table.find(pointer)?;
        let charge = unpack(shard.table.get(place).charge);
        wanted(charge).then(|| {
            shard.table.remove(place);
            charge
        })
    }

    /// The entry of `pointer`.
    pub fn get(&self, pointer: u64) -> Option<Charge> {
        let mut found = None;
        self.take_if(pointer, |charge| {
            found = Some(charge);
            false
        });
        found
    }

    /// Every pointer known at about this moment. This allocates, so it is not on a fast path.
    pub fn snapshot(&self) -> Vec<(u64, Charge)> {
        let mut all = Vec::new();
        for Shard(shard) in &self.shards {
            // The memory is allocated before the lock is taken, so that no allocation happens under it.
            let expected = shard.lock().table.len() + RECENT + 64;
            all.reserve(expected);
            let shard = shard.lock();
            for entry in shard.recent.iter().copied().chain(shard.table.iter()) {
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

/// A charge is in whole units, and a ledger holds no more than 38 bits of them.
fn pack(bytes: u64, owner: Owner, stamp: u32) -> u64 {
    debug_assert!(bytes.is_multiple_of(UNIT) && bytes / UNIT < 1 << 38);
    let units = bytes / UNIT;
    (units << CODE_BITS | u64::from(owner.code())) << STAMP_BITS | u64::from(stamp) & ((1 << STAMP_BITS) - 1)
}

fn unpack(charge: u64) -> Charge {
    Charge {
        bytes: (charge >> (STAMP_BITS + CODE_BITS)) * UNIT,
        owner: Owner::of_code((charge >> STAMP_BITS) as u16 & ((1 << CODE_BITS) - 1)),
        stamp: (charge & ((1 << STAMP_BITS) - 1)) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn insert(map: &PointerMap, pointer: u64, bytes: u64) -> Result<Option<Charge>, Exhausted> {
        let extent = Extent { pointer, bytes };
        let owner = Owner::Spilled(63);
        map.insert(Owned { owner, extent })
    }

    #[test]
    fn it_agrees_with_a_reference_over_many_operations() {
        let map = PointerMap::new();
        let mut reference: HashMap<u64, u64> = HashMap::new();
        let mut random: u64 = 88172645463325252;
        for step in 0..400_000u64 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // Few enough addresses to repeat, aligned as a driver's are.
            let pointer = 0x7f00_0000_0000 + (random >> 40) % 30_000 * 512;
            let bytes = (random >> 20 & 0xfff) * 512;
            // A driver hands out no live address.
            if random & 3 < 2 && !reference.contains_key(&pointer) {
                assert_eq!(insert(&map, pointer, bytes), Ok(None), "step {step}");
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
            assert_eq!(insert(&map, pointer, 1024), Ok(None));
        }
        let mut void = 0;
        for pointer in all() {
            void += u64::from(insert(&map, pointer, 2048).expect("memory is there").is_some());
        }
        // The newest pointers of each shard may not have met their old charges yet.
        assert!(void >= 5_000 - (SHARDS * RECENT) as u64, "{void}");
        for pointer in all() {
            assert_eq!(map.take(pointer).map(|charge| charge.bytes), Some(2048));
        }
    }

    #[test]
    fn stamps_tell_two_allocations_at_one_address_apart() {
        let map = PointerMap::new();
        insert(&map, 512, 1024).expect("memory is there");
        let (_, first) = map.snapshot()[0];
        assert_eq!((first.bytes, first.owner), (1024, Owner::Spilled(63)));
        map.take(512);
        insert(&map, 512, 1024).expect("memory is there");
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
                        insert(map, pointer, round * 512).expect("memory is there");
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
