//! A device's memory inside this process: where allocations get their bytes and what they cost the device.
//!
//! As on hardware, the device gives memory in pages of 2 MiB. Large allocations have pages of their own; small ones
//! share slabs of one page with others of the same heap. A device has one heap for direct allocations, and each pool
//! has its own. Pages are charged to the device when mapped and given back when unmapped.

use super::charge::{Charge, Charged, GRANULE, OutOfMemory, PAGE};
use super::free_list::FreeList;
use super::mapping::Mapping;
use super::store::{FileExtent, Store};
use crate::log;
use crate::shared::ownership::{Id, OwnershipRecord};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Allocations up to this many bytes share a page.
const SMALL: u64 = PAGE / 2;

/// The memory of one device as this process sees it, or a pool's part of it.
pub struct Heap {
    charge: Arc<dyn Charge>,
    /// Where bytes come from, one for all heaps of a device.
    store: Arc<Mutex<Option<Arc<Store>>>>,
    slabs: Mutex<BTreeMap<u64, Slab>>,
    /// Bytes of all pages of this heap: never less than what the device has given it.
    paged: Arc<AtomicU64>,
}

struct Slab {
    free: FreeList,
    pages: Pages,
}

/// Mapped and charged pages. The fields are dropped in order: unmapped, emptied, given back.
struct Pages {
    mapping: Mapping,
    /// None where memory files cannot be had; no other process can see such pages.
    file_extent: Option<FileExtent>,
    /// What other processes know of them, once one was told.
    record: Mutex<Option<Arc<OwnershipRecord>>>,
    charged: Charged,
    _counted: Counted,
}

/// Bytes in a heap's count of its pages; out of it on drop.
struct Counted(Arc<AtomicU64>, u64);

impl Counted {
    fn add(paged: &Arc<AtomicU64>, bytes: u64) -> Counted {
        paged.fetch_add(bytes, Ordering::AcqRel);
        Counted(Arc::clone(paged), bytes)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::AcqRel);
    }
}

impl Pages {
    fn new(heap: &Heap, bytes: u64) -> Result<Pages, OutOfMemory> {
        // Counted first, and dropped last.
        let counted = Counted::add(&heap.paged, bytes);
        let charged = Charged::take(&heap.charge, bytes)?;
        let file_extent = heap.store().and_then(|store| store.take(bytes));
        if let Some(file_extent) = file_extent
            && let Ok(mapping) = file_extent.map(PAGE as usize)
        {
            return Ok(Pages {
                mapping,
                file_extent: Some(file_extent),
                record: Mutex::default(),
                charged,
                _counted: counted,
            });
        }
        let length = usize::try_from(bytes).map_err(|_| OutOfMemory)?;
        Ok(Pages {
            mapping: Mapping::new(length, PAGE as usize, true).map_err(|_| OutOfMemory)?,
            file_extent: None,
            record: Mutex::default(),
            charged,
            _counted: counted,
        })
    }

    fn address(&self) -> u64 {
        self.mapping.address()
    }

    fn bytes(&self) -> u64 {
        self.charged.bytes()
    }

    /// Their ownership record, written by `write` if there is none yet. None where they have no file.
    fn record(
        &self,
        write: impl FnOnce(&FileExtent, u64) -> Option<Arc<OwnershipRecord>>,
    ) -> Option<Arc<OwnershipRecord>> {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        if record.is_none() {
            *record = write(self.file_extent.as_ref()?, self.bytes());
        }
        record.clone()
    }

    /// Whether another process has them.
    fn is_shared(&self) -> bool {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.as_ref().is_some_and(|record| record.is_shared())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let record = self
            .record
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(record) = record
            && record.is_shared()
            && let Some(file_extent) = self.file_extent.take()
        {
            record.leave_behind(file_extent);
        }
    }
}

/// Device memory of one allocation; given back on drop.
pub struct Extent {
    address: u64,
    bytes: u64,
    /// Where others look it up, once they may: the ownership record, and the place in it.
    exported: Mutex<Option<(Arc<OwnershipRecord>, u64)>>,
    source: Source,
}

enum Source {
    Own(Pages),
    Shared { heap: Arc<Heap>, slab: u64 },
}

impl std::fmt::Debug for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Extent({:#x})", self.address)
    }
}

impl Extent {
    /// First address; a multiple of [`GRANULE`].
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Lists it, as the allocation of this number, in the ownership record of the pages it lies in, which `write` makes
    /// if there is none. Gives the ownership record's name, and where in the pages it starts.
    pub fn export(
        &self,
        allocation: u64,
        write: impl FnOnce(&FileExtent, u64) -> Option<Arc<OwnershipRecord>>,
    ) -> Option<(Id, u64)> {
        let (record, offset) = match &self.source {
            Source::Own(pages) => (pages.record(write)?, 0),
            Source::Shared { heap, slab } => {
                let slabs = heap.lock();
                (slabs.get(slab)?.pages.record(write)?, self.address - slab)
            }
        };
        record.list(offset, allocation).ok()?;
        let id = record.id;
        *self.exported.lock().unwrap_or_else(PoisonError::into_inner) = Some((record, offset));
        Some((id, offset))
    }

    /// No process may open it any more.
    pub fn withdraw(&self) {
        let exported = self
            .exported
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some((record, offset)) = exported {
            let _ = record.list(offset, 0);
        }
    }

    /// Whether another process has the pages that it lies in.
    pub fn is_shared(&self) -> bool {
        match &self.source {
            Source::Own(pages) => pages.is_shared(),
            Source::Shared { heap, slab } => heap.lock().get(slab).is_some_and(|slab| slab.pages.is_shared()),
        }
    }

    /// Whether its bytes were zeros when it was taken: they are, unless it shares a page with others.
    pub fn starts_as_zeros(&self) -> bool {
        matches!(self.source, Source::Own(_))
    }

    /// Its size: what was asked for, rounded up to what the device gives.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        self.withdraw();
        if let Source::Shared { heap, slab } = &self.source {
            heap.give(*slab, self.address, self.bytes);
        }
    }
}

impl Heap {
    /// A heap that takes its pages from `charge`.
    pub fn new(charge: Arc<dyn Charge>) -> Arc<Heap> {
        Arc::new(Heap {
            charge,
            store: Arc::default(),
            slabs: Mutex::default(),
            paged: Arc::default(),
        })
    }

    /// Another heap of the same device, whose allocations share no pages with this one's.
    pub fn apart(&self) -> Arc<Heap> {
        Arc::new(Heap {
            charge: Arc::clone(&self.charge),
            store: Arc::clone(&self.store),
            slabs: Mutex::default(),
            paged: Arc::default(),
        })
    }

    /// Bytes of the pages that allocations of this heap lie in.
    pub fn paged_bytes(&self) -> u64 {
        self.paged.load(Ordering::Acquire)
    }

    /// Where the device's memory is accounted.
    pub fn charge(&self) -> &Arc<dyn Charge> {
        &self.charge
    }

    /// Pages of their own, charged, for a caller that maps them: `bytes` are whole device pages.
    ///
    /// # Errors
    /// [`OutOfMemory`]: the device has not so many bytes, or the system gives no file.
    pub fn take_pages(&self, bytes: u64) -> Result<(FileExtent, Charged), OutOfMemory> {
        let charged = Charged::take(&self.charge, bytes)?;
        let file_extent = self.store().and_then(|store| store.take(bytes));
        Ok((file_extent.ok_or(OutOfMemory)?, charged))
    }

    /// Where pages get their bytes, made when first asked for. A program that closed its descriptor gets a new one.
    fn store(&self) -> Option<Arc<Store>> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        if !store.as_ref().is_some_and(|store| store.is_usable()) {
            *store = Store::create()
                .inspect_err(|why| log::once("store", format_args!("no memory file: {why}; IPC is off")))
                .ok();
        }
        store.clone()
    }

    /// At least `bytes` of device memory, never 0, aligned to [`GRANULE`].
    ///
    /// # Errors
    /// [`OutOfMemory`]: the device has not so many bytes.
    pub fn take(self: &Arc<Heap>, bytes: u64) -> Result<Extent, OutOfMemory> {
        // No mapping can be as large as this, and rounding up could overflow.
        if bytes > i64::MAX as u64 {
            return Err(OutOfMemory);
        }
        if bytes > SMALL {
            let pages = Pages::new(self, bytes.next_multiple_of(PAGE))?;
            return Ok(Extent {
                address: pages.address(),
                bytes: pages.bytes(),
                exported: Mutex::default(),
                source: Source::Own(pages),
            });
        }
        let bytes = bytes.max(1).next_multiple_of(GRANULE);
        let mut slabs = self.lock();
        let found = slabs
            .iter_mut()
            .find_map(|(&slab, entry)| entry.free.take(bytes).map(|offset| (slab, offset)));
        let (slab, offset) = match found {
            Some(found) => found,
            None => {
                let pages = Pages::new(self, PAGE)?;
                let slab = pages.address();
                let mut entry = Slab {
                    free: FreeList::new(PAGE),
                    pages,
                };
                let offset = entry.free.take(bytes).ok_or(OutOfMemory)?;
                slabs.insert(slab, entry);
                (slab, offset)
            }
        };
        let source = Source::Shared {
            heap: Arc::clone(self),
            slab,
        };
        Ok(Extent {
            address: slab + offset,
            bytes,
            exported: Mutex::default(),
            source,
        })
    }

    fn give(&self, slab: u64, address: u64, bytes: u64) {
        let mut slabs = self.lock();
        let Some(entry) = slabs.get_mut(&slab) else { return };
        entry.free.give(address - slab, bytes);
        if entry.free.is_whole() {
            slabs.remove(&slab);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Slab>> {
        self.slabs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[derive(Default)]
    struct Meter(AtomicU64);

    impl Charge for Meter {
        fn take(&self, bytes: u64) -> Result<(), OutOfMemory> {
            if self.0.load(Ordering::Relaxed) + bytes > 10 * PAGE {
                return Err(OutOfMemory);
            }
            self.0.fetch_add(bytes, Ordering::Relaxed);
            Ok(())
        }
        fn take_over(&self, bytes: u64) -> Result<(), OutOfMemory> {
            self.take(bytes)
        }
        fn give(&self, bytes: u64) {
            self.0.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn heap() -> (Arc<Meter>, Arc<Heap>) {
        let meter = Arc::new(Meter::default());
        (Arc::clone(&meter), Heap::new(meter))
    }

    #[test]
    fn small_ones_share_a_page_and_give_it_back() {
        let (meter, heap) = heap();
        let extents: Vec<Extent> = (0..PAGE / GRANULE).map(|_| heap.take(1).unwrap()).collect();
        assert_eq!(meter.0.load(Ordering::Relaxed), PAGE);
        let mut addresses: Vec<u64> = extents.iter().map(Extent::address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len() as u64, PAGE / GRANULE);
        let one_more = heap.take(SMALL).unwrap();
        assert_eq!(meter.0.load(Ordering::Relaxed), 2 * PAGE);
        drop((extents, one_more));
        assert_eq!(meter.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn large_ones_cost_whole_pages_and_refusals_cost_nothing() {
        let (meter, heap) = heap();
        let large = heap.take(PAGE + 1).unwrap();
        assert_eq!(large.address() % PAGE, 0);
        assert_eq!(meter.0.load(Ordering::Relaxed), 2 * PAGE);
        assert!(heap.take(9 * PAGE).is_err());
        assert!(heap.take(u64::MAX).is_err());
        drop(large);
        assert_eq!(meter.0.load(Ordering::Relaxed), 0);
    }
}
