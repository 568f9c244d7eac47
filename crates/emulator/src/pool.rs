//! Memory pools: device memory kept for reuse, handed out and taken back in stream order.
//!
//! The manual wants an exported pointer freed by all its importers before the process that exported it frees it, and
//! leaves other orders open. Here such memory stays with its pool, reserved and handed out to no program, until the
//! last importer is gone or the pool is destroyed. Then it belongs to the importers alone.

use crate::handle::Handles;
use crate::memory::allocation::{Allocation, Kind};
use divvy_device::memory::charge::OutOfMemory;
use divvy_device::memory::file::MemoryFile;
use divvy_device::memory::heap::{Extent, Heap};
use divvy_device::product::identity::Uuid;
use divvy_device::shared::ownership::Id;
use divvy_device::shared::trailer::{self, Trailer};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A memory pool of one device.
pub struct MemoryPool {
    /// What the program holds.
    pub handle: u64,
    /// Ordinal of the device its memory is on.
    pub device: usize,
    /// CU_MEMPOOL_ATTR_REUSE_*, by attribute number from 1: remembered, and true of what we do anyway.
    pub reuse: [AtomicI32; 3],
    /// cuMemPoolDestroy was called: nothing is kept any more.
    destroyed: AtomicBool,
    /// Access that cuMemPoolSetAccess gave, CU_MEM_ACCESS_FLAGS_* by device ordinal.
    pub access: Mutex<HashMap<usize, u32>>,
    /// Bytes the pool may keep when they are not in use.
    pub release_threshold: AtomicU64,
    /// The name by which other processes know it; None for a pool that was not made to be shared.
    pub name: Option<PoolName>,
    /// The pool of another process that this one stands for. Nothing can be allocated from it.
    pub source: Option<Id>,
    /// Largest sum of its allocations in bytes; 0 is no limit.
    max_bytes: u64,
    heap: Arc<Heap>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kept: Vec<Arc<Extent>>,
    /// Freed, in pages that other processes have open.
    lent: Vec<Arc<Extent>>,
    reserved_high: u64,
    used: u64,
    used_high: u64,
}

/// What a pool holds, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Taken from the device, in whole pages.
    pub reserved: u64,
    /// The most that was ever taken.
    pub reserved_high: u64,
    /// Of that, in use by the program.
    pub used: u64,
    /// The most that was ever in use.
    pub used_high: u64,
}

/// The name of a pool that other processes may import.
pub struct PoolName {
    /// The name itself.
    pub id: Id,
    file: Mutex<Option<MemoryFile>>,
}

impl PoolName {
    /// A new name.
    pub fn new() -> std::result::Result<PoolName, Errno> {
        Ok(PoolName {
            id: Id::random()?,
            file: Mutex::default(),
        })
    }

    /// A descriptor that says the name.
    pub fn export(&self, device: Uuid) -> std::result::Result<OwnedFd, Errno> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_none() {
            let trailer = Trailer {
                device,
                id: self.id,
                bytes: 0,
                kind: trailer::Kind::Pool,
            };
            *file = Some(trailer.create()?);
        }
        file.as_ref().ok_or(Errno::BADF)?.export()
    }
}

impl MemoryPool {
    /// An empty pool, with pages of its own, beside a device's heap.
    pub fn new(handle: u64, device: usize, heap: Arc<Heap>, max_bytes: u64) -> Arc<MemoryPool> {
        Arc::new(MemoryPool::make(handle, device, heap, max_bytes))
    }

    /// An empty pool that other processes may import.
    pub fn shareable(
        handle: u64,
        device: usize,
        heap: Arc<Heap>,
        max_bytes: u64,
        name: PoolName,
    ) -> Arc<MemoryPool> {
        Arc::new(MemoryPool {
            name: Some(name),
            ..MemoryPool::make(handle, device, heap, max_bytes)
        })
    }

    /// Another process's pool.
    pub fn imported(handle: u64, device: usize, heap: Arc<Heap>, source: Id) -> Arc<MemoryPool> {
        Arc::new(MemoryPool {
            source: Some(source),
            ..MemoryPool::make(handle, device, heap, 0)
        })
    }

    fn make(handle: u64, device: usize, heap: Arc<Heap>, max_bytes: u64) -> MemoryPool {
        MemoryPool {
            handle,
            device,
            reuse: [1, 1, 1].map(AtomicI32::new),
            destroyed: AtomicBool::new(false),
            access: Mutex::default(),
            release_threshold: AtomicU64::new(0),
            name: None,
            source: None,
            max_bytes,
            heap: heap.apart(),
            state: Mutex::default(),
        }
    }

    /// At least `bytes`: kept memory if some fits, new memory otherwise.
    pub fn take(&self, bytes: u64) -> Result<Arc<Extent>, OutOfMemory> {
        let mut state = self.lock();
        self.collect(&mut state);
        if self.max_bytes != 0 && state.used.saturating_add(bytes) > self.max_bytes {
            return Err(OutOfMemory);
        }
        // The smallest that fits, and not one so large that most of it is wasted.
        let fitting = (0..state.kept.len())
            .filter(|&at| (bytes..=bytes.saturating_mul(2).max(4096)).contains(&state.kept[at].bytes()))
            .min_by_key(|&at| state.kept[at].bytes());
        let extent = match fitting {
            Some(at) => state.kept.swap_remove(at),
            None => {
                let extent = Arc::new(self.heap.take(bytes)?);
                state.reserved_high = state.reserved_high.max(self.heap.paged_bytes());
                extent
            }
        };
        state.used += extent.bytes();
        state.used_high = state.used_high.max(state.used);
        Ok(extent)
    }

    /// Takes memory back, to keep as far as the release threshold allows, and as long as others have it open.
    pub fn give(&self, extent: Arc<Extent>) {
        // First: a process that opens it from here on is refused.
        extent.withdraw();
        let mut state = self.lock();
        state.used -= extent.bytes();
        if extent.is_shared() && !self.destroyed.load(Ordering::Relaxed) {
            state.lent.push(extent);
        } else {
            self.keep(&mut state, extent);
        }
    }

    fn keep(&self, state: &mut State, extent: Arc<Extent>) {
        let threshold = self.release_threshold.load(Ordering::Relaxed);
        if !self.destroyed.load(Ordering::Relaxed) && self.heap.paged_bytes() <= threshold {
            state.kept.push(extent);
        }
    }

    /// Takes back memory that no process has open any more.
    fn collect(&self, state: &mut State) {
        let back: Vec<_> = state.lent.extract_if(.., |extent| !extent.is_shared()).collect();
        for extent in back {
            self.keep(state, extent);
        }
    }

    /// Releases kept memory until at most `keep` bytes are reserved, or nothing is kept.
    pub fn trim(&self, keep: u64) {
        let mut state = self.lock();
        self.collect(&mut state);
        while self.heap.paged_bytes() > keep
            && let Some(extent) = state.kept.pop()
        {
            drop(extent);
        }
    }

    /// The program has given the pool up: what is in use goes back to the device when it is freed.
    pub fn destroy(&self) {
        self.destroyed.store(true, Ordering::Relaxed);
        let mut state = self.lock();
        state.kept.clear();
        state.lent.clear();
    }

    /// What it holds now.
    pub fn figures(&self) -> Figures {
        let mut state = self.lock();
        self.collect(&mut state);
        Figures {
            reserved: self.heap.paged_bytes(),
            reserved_high: state.reserved_high,
            used: state.used,
            used_high: state.used_high,
        }
    }

    /// Starts the high-water marks again from what is held now.
    pub fn reset_high(&self, reserved: bool) {
        let mut state = self.lock();
        if reserved {
            state.reserved_high = self.heap.paged_bytes();
        } else {
            state.used_high = state.used;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Releases what a device's pools keep without use.
pub fn trim_all(pools: &Handles<MemoryPool>, device: usize) {
    for pool in pools.all().iter().filter(|pool| pool.device == device) {
        pool.trim(0);
    }
}

/// Returns freed memory to the pool it came from, if it came from one.
pub fn give_back(pools: &Handles<MemoryPool>, allocation: &Allocation) {
    if let Kind::Pooled { pool } = allocation.kind
        && let Some(extent) = allocation.extent()
        && let Some(pool) = pools.get(pool)
    {
        pool.give(Arc::clone(extent));
    }
}

/// Whether the pool of this handle lets another device use its memory.
pub fn grants_access(pools: &Handles<MemoryPool>, pool: u64, device: usize) -> bool {
    pools.get(pool).is_some_and(|pool| {
        let access = pool.access.lock().unwrap_or_else(PoisonError::into_inner);
        access.get(&device).is_some_and(|&flags| flags == READ_WRITE)
    })
}

/// CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
const READ_WRITE: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_device::memory::charge::Charge;

    struct Unlimited;
    impl Charge for Unlimited {
        fn take(&self, _: u64) -> Result<(), OutOfMemory> {
            Ok(())
        }
        fn take_over(&self, _: u64) -> Result<(), OutOfMemory> {
            Ok(())
        }
        fn give(&self, _: u64) {}
    }

    fn pool(max_bytes: u64) -> Arc<MemoryPool> {
        MemoryPool::new(1, 0, Heap::new(Arc::new(Unlimited)), max_bytes)
    }

    #[test]
    fn keeps_up_to_its_threshold_and_trims() {
        let pool = pool(0);
        let first = pool.take(1 << 20).unwrap();
        pool.give(first);
        assert_eq!(pool.figures().reserved, 0, "the default threshold keeps nothing");
        pool.release_threshold.store(u64::MAX, Ordering::Relaxed);
        let first = pool.take(1 << 20).unwrap();
        let address = first.address();
        pool.give(first);
        assert_eq!(pool.figures().reserved, 2 << 20, "a page");
        let again = pool.take((1 << 20) - 5).unwrap();
        assert_eq!(again.address(), address, "kept memory is used again");
        pool.give(again);
        pool.trim(0);
        assert_eq!(
            pool.figures(),
            Figures {
                reserved_high: 2 << 20,
                used_high: 1 << 20,
                ..Figures::default()
            }
        );
    }

    #[test]
    fn a_bounded_pool_refuses_more() {
        let pool = pool(1 << 20);
        let held = pool.take(1 << 20).unwrap();
        assert!(pool.take(1).is_err());
        pool.give(held);
        assert!(pool.take(1).is_ok());
    }
}
